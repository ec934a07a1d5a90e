"""Weights refitted to what the layer before really gives.

Axes: ``batch``, ``units``.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from deploy.arrays import Array

__all__ = ["RIDGE", "refit"]

RIDGE = 1e-5
"""Pull towards the network's own weights, relative to the mean variance of the regressors: the fit may correct the
diodes, not the network (held-out agreement is flat from 1e-6 to 1e-4)."""


def refit(given: Array, wanted: Array, weight: Array, bias: Array, *, unit_V: float) -> tuple[Array, Array, float]:
    """Find weights near (weight, bias) that map `given` (batch, n_in) to `wanted` (batch, units).

    Minimises |given W' + b' - wanted|² + ridge |(W' - W, (b' - b) / unit_V)|². Gives W' (units, n_in), b' (units,)
    and the root mean square of what is left.
    """
    left = np.column_stack([given, np.full(len(given), unit_V)])
    gram = left.T @ left
    gram[np.diag_indices_from(gram)] += RIDGE * np.trace(gram) / len(gram)
    moves = scipy.linalg.solve(gram, left.T @ (wanted - given @ weight.T - bias), assume_a="pos").T
    new_weight, new_bias = weight + moves[:, :-1], bias + moves[:, -1] * unit_V
    rest = given @ new_weight.T + new_bias - wanted
    return new_weight, new_bias, float(np.sqrt(np.mean(rest**2)))
