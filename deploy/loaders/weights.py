"""Weights: arrays of real, finite numbers, as files store them."""

from __future__ import annotations

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError

__all__ = ["check_broadcast", "check_finite"]


def check_finite(value: Array, name: str) -> Array:
    """Check that a weight is numbers, all finite."""
    if value.dtype.kind in "OSUcMmV" and value.dtype.names is None and not _is_small_float(value):
        raise LoadError(f"tensor {name} is of type {value.dtype}; supported are real numbers")
    if value.dtype.kind not in "biu":
        bad = int(value.size - np.count_nonzero(np.isfinite(value)))
        if bad:
            raise LoadError(
                f"tensor {name} has {bad} of {value.size} entries that are NaN or infinite",
                remedy="the training diverged; give an earlier checkpoint",
            )
    return value


def _is_small_float(value: Array) -> bool:
    """bfloat16 and the 8-bit floats have numpy kind V."""
    return value.dtype.kind == "V" and hasattr(value.dtype.type, "__float__")


def check_broadcast(shape: tuple[int, ...], constant: Array) -> tuple[int, ...]:
    """The shape that both broadcast to, or :class:`LoadError`."""
    try:
        return np.broadcast_shapes(shape, constant.shape)
    except ValueError:
        raise LoadError(f"shapes {list(shape)} and {list(constant.shape)} do not broadcast") from None
