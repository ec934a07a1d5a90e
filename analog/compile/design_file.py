"""A design as bytes, and back: arrays as safetensors with the options beside them.

Reading checks shapes and numbers, so that a damaged file ends in a named error and never in a wrong circuit.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import ValidationError

from analog.circuit import Circuit
from analog.compile.cascade import CascadeDesign, CellLayer, compile_cascade
from analog.compile.equilibrium import EquilibriumDesign, compile_equilibrium
from analog.compile.parts import Parts
from analog.options import CircuitOptions
from deploy.arrays import Array
from deploy.errors import BundleError, DeployError

__all__ = ["DESIGN_FILE", "OPTIONS_FILE", "Design", "compile_design", "read_design", "write_design"]

DESIGN_FILE = "design.safetensors"
OPTIONS_FILE = "options.json"

Design = CascadeDesign | EquilibriumDesign

_EQUILIBRIUM_ARRAYS = ("input_volts_per_unit", "W", "U", "b", "volts_per_unit", "readout", "readout_bias")


def write_design(design: Design, options: CircuitOptions) -> dict[str, bytes]:
    """Write a design and the options that it was made with."""
    from safetensors.numpy import save

    arrays = _cascade_arrays(design) if isinstance(design, CascadeDesign) else _equilibrium_arrays(design)
    packed = {name: np.ascontiguousarray(array, dtype=np.float64) for name, array in arrays.items()}
    return {DESIGN_FILE: save(packed), OPTIONS_FILE: options.model_dump_json(indent=1).encode() + b"\n"}


def _cascade_arrays(design: CascadeDesign) -> dict[str, Array]:
    arrays: dict[str, Array] = {
        "input_volts_per_unit": design.input_volts_per_unit,
        "readout": design.readout,
        "readout_bias": design.readout_bias,
        "rails": np.array([layer.rail_V for layer in design.layers]),
    }
    for index, layer in enumerate(design.layers):
        arrays[f"weight_{index}"], arrays[f"bias_{index}"] = layer.weight, layer.bias
    return arrays


def _equilibrium_arrays(design: EquilibriumDesign) -> dict[str, Array]:
    arrays: dict[str, Array] = {name: getattr(design, name) for name in _EQUILIBRIUM_ARRAYS}
    return {**arrays, "rail": np.array([design.rail_V]), "doubled": np.array([design.realisation == "doubled"])}


def read_design(files: Mapping[str, bytes]) -> tuple[Design, CircuitOptions]:
    """Read what :func:`write_design` wrote; raises :class:`deploy.errors.BundleError` otherwise."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    for name in (DESIGN_FILE, OPTIONS_FILE):
        if name not in files:
            raise BundleError("is missing", place=name)
    try:
        options = CircuitOptions.model_validate_json(files[OPTIONS_FILE])
        parts = Parts.of(options)
    except (ValidationError, DeployError) as error:
        raise BundleError(f"holds no options: {str(error).splitlines()[0]}", place=OPTIONS_FILE) from None
    try:
        arrays = load(files[DESIGN_FILE])
        for name, array in arrays.items():
            if array.dtype != np.float64 or not np.isfinite(array).all():
                raise BundleError(f"array {name} is not finite float64", place=DESIGN_FILE)
        design = _read_equilibrium(arrays, parts) if "W" in arrays else _read_cascade(arrays, parts)
    except (SafetensorError, KeyError, IndexError, ValueError, TypeError) as error:
        raise BundleError(f"is no design: {error}", place=DESIGN_FILE) from None
    return design, options


def _read_cascade(arrays: Mapping[str, Array], parts: Parts) -> CascadeDesign:
    depth = len(arrays["rails"])
    layers = tuple(
        CellLayer(arrays[f"weight_{k}"], arrays[f"bias_{k}"], float(arrays["rails"][k])) for k in range(depth)
    )
    volts = arrays["input_volts_per_unit"]
    width = len(volts)
    chain = [(layer.weight, layer.bias) for layer in layers] + [(arrays["readout"], arrays["readout_bias"])]
    for weight, bias in chain:
        _check_shape("a weight", weight, (len(bias), width))
        width = len(bias)
    return CascadeDesign(parts, volts, layers, arrays["readout"], arrays["readout_bias"])


def _read_equilibrium(arrays: Mapping[str, Array], parts: Parts) -> EquilibriumDesign:
    n, n_in, n_out = len(arrays["b"]), len(arrays["input_volts_per_unit"]), len(arrays["readout_bias"])
    shapes = {"W": (n, n), "U": (n, n_in), "b": (n,), "volts_per_unit": (n,), "readout": (n_out, n), "rail": (1,)}
    for name, shape in shapes.items():
        _check_shape(name, arrays[name], shape)
    if not (arrays["volts_per_unit"] > 0).all():
        raise ValueError("volts per unit must be positive")
    return EquilibriumDesign(
        parts=parts,
        **{name: arrays[name] for name in _EQUILIBRIUM_ARRAYS},
        rail_V=float(arrays["rail"][0]),
        realisation="doubled" if arrays["doubled"][0] else "controlled",
    )


def _check_shape(name: str, array: Array, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"{name} of shape {array.shape} where {shape} is due")


def compile_design(design: Design) -> Circuit:
    """Build the circuit of a design of either kind."""
    if isinstance(design, CascadeDesign):
        return compile_cascade(design)
    return compile_equilibrium(design)
