"""How many parts a network will need, from its shapes and zeros."""

from __future__ import annotations

import numpy as np

from analog.options import CircuitOptions
from deploy.cost import Quantity
from deploy.model import Mlp, Model

__all__ = ["predict_parts"]


def predict_parts(model: Model, options: CircuitOptions) -> tuple[Quantity, ...]:
    """Resistors of weights, biases, pads and cells; diodes; active parts. Estimated: compensation fills zeros."""
    if not isinstance(model, Mlp):
        return ()
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
