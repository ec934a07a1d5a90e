"""Weights that are ternary already, read as codes and scales without loss.

Networks trained with ternary weights (TWN, Brevitas, BitNet exports) hold rows whose non-zero entries have one
magnitude. Such a row needs no quantiser: its codes are its signs. Equality is exact in float64, so nothing is
rounded.

Axes: ``n_in``, ``n_out``.
"""

from __future__ import annotations

import numpy as np

from deploy.arrays import Array
from quantization.network import Plane, round_to_float32

__all__ = ["recognize_ternary"]


def recognize_ternary(weight: Array) -> Plane | None:
    """Codes and scales of weight (n_out, n_in) where every row is c * {-1, 0, 1}, or None.

    A magnitude that float32 does not hold is not recognised, since the files hold float32.

    >>> recognize_ternary(np.array([[0.5, 0.0, -0.5], [0.0, 0.0, 0.0]])).codes.tolist()
    [[1, 0, -1], [0, 0, 0]]
    >>> recognize_ternary(np.array([[0.5, 0.25]])) is None
    True
    """
    magnitude = np.abs(np.asarray(weight, dtype=np.float64))
    scale = magnitude.max(axis=1)
    if not np.isin(magnitude / np.where(scale > 0, scale, 1.0)[:, None], (0.0, 1.0)).all():
        return None
    if not np.array_equal(round_to_float32(scale), scale):
        return None
    return Plane(np.sign(weight), scale[:, None])
