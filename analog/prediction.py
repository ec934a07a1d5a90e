"""How many parts a network will need, from its shapes and zeros."""

from __future__ import annotations

import numpy as np

from analog.compile.equilibrium import dominant_scaling
from analog.compile.parts import Parts
from analog.netlist.op_amp import UserOpAmp
from analog.options import CircuitOptions
from deploy.cost import Quantity
from deploy.model import Equilibrium, Mlp, Model

__all__ = ["predict_parts"]


def predict_parts(model: Model, options: CircuitOptions) -> tuple[Quantity, ...]:
    """Resistors of weights, biases, pads and cells; diodes; active parts. Estimated: compensation fills zeros.

    Raises
    ------
    UsageError, InputError : the texts of diode or op-amp are not understood.
    """
    Parts.of(options)
    if options.op_amp:
        UserOpAmp(options.op_amp)
    if not isinstance(model, Mlp):
        return _predict_equilibrium(model, options)
    weights = sum(
        int(np.count_nonzero(layer.weight)) + int(np.count_nonzero(layer.bias)) for layer in model.affines
    )
    rows = sum(layer.n_out for layer in model.affines)
    units = sum(model.widths[1:-1])
    cell_resistors = 0 if options.cell == "shunt" else units
    active = 3 * units + (units if options.cell == "superdiode" else 0)
    return (
        Quantity("resistors", weights + rows + cell_resistors, "", "estimated"),
        Quantity("diodes", units, "", "exact"),
        Quantity("active_parts", active, "", "exact"),
    )


def _predict_equilibrium(model: Equilibrium, options: CircuitOptions) -> tuple[Quantity, ...]:
    n = len(model.b)
    symmetric, skew = np.triu(model.W + model.W.T, 1), np.triu(model.W - model.W.T, 1)
    resisted, crossed = int(np.count_nonzero(symmetric > 0)), int(np.count_nonzero(symmetric < 0))
    gyrators = int(np.count_nonzero(skew))
    doubled = options.realisation != "controlled" and dominant_scaling(model.W) is not None
    sides = 2 if doubled else 1
    inputs = int(np.count_nonzero(model.U)) + int(np.count_nonzero(model.V))
    couplings = 2 * (resisted + crossed) if doubled else resisted
    active = 2 * n + sides * n + 2 * sides * gyrators + (0 if doubled else 2 * crossed)
    return (
        Quantity("resistors", inputs + couplings + 2 * n + 2 * model.n_out, "", "estimated"),
        Quantity("diodes", sides * n, "", "exact"),
        Quantity("active_parts", active, "", "estimated"),
    )
