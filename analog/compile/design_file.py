"""A design as bytes, and back: arrays as safetensors with the options beside them.

Reading checks shapes and numbers, so that a damaged file ends in a named error and never in a wrong circuit.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import ValidationError

from analog.compile.cascade import CascadeDesign, CellLayer
from analog.compile.parts import Parts
from analog.options import CircuitOptions
from deploy.arrays import Array
from deploy.errors import BundleError, DeployError

__all__ = ["DESIGN_FILE", "OPTIONS_FILE", "Design", "read_design", "write_design"]

DESIGN_FILE = "design.safetensors"
OPTIONS_FILE = "options.json"

Design = CascadeDesign


def write_design(design: Design, options: CircuitOptions) -> dict[str, bytes]:
    """Write a design and the options that it was made with."""
    from safetensors.numpy import save

    arrays: dict[str, Array] = {
        "input_volts_per_unit": design.input_volts_per_unit,
        "readout": design.readout,
        "readout_bias": design.readout_bias,
        "rails": np.array([layer.rail_V for layer in design.layers]),
    }
    for index, layer in enumerate(design.layers):
        arrays[f"weight_{index}"], arrays[f"bias_{index}"] = layer.weight, layer.bias
    packed = {name: np.ascontiguousarray(array, dtype=np.float64) for name, array in arrays.items()}
    return {DESIGN_FILE: save(packed), OPTIONS_FILE: options.model_dump_json(indent=1).encode() + b"\n"}


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
        depth = len(arrays["rails"])
        layers = tuple(
            CellLayer(arrays[f"weight_{k}"], arrays[f"bias_{k}"], float(arrays["rails"][k])) for k in range(depth)
        )
        design = CascadeDesign(
            parts, arrays["input_volts_per_unit"], layers, arrays["readout"], arrays["readout_bias"]
        )
        _check_shapes(design)
    except (SafetensorError, KeyError, IndexError, ValueError, TypeError) as error:
        raise BundleError(f"is no design: {error}", place=DESIGN_FILE) from None
    return design, options


def _check_shapes(design: CascadeDesign) -> None:
    width = len(design.input_volts_per_unit)
    chain = [(layer.weight, layer.bias) for layer in design.layers] + [(design.readout, design.readout_bias)]
    for weight, bias in chain:
        if weight.shape != (len(bias), width):
            raise ValueError(f"a weight of shape {weight.shape} where ({len(bias)}, {width}) is due")
        width = len(bias)
