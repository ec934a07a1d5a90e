"""The array type of the whole project, and read-only float64 arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "frozen"]

Array = npt.NDArray[Any]


def frozen(values: npt.ArrayLike, *, ndim: int | None = None) -> Array:
    """Copy `values` (if need be) into a C-contiguous, read-only float64 array of `ndim` axes.

    >>> frozen([1, 2]).flags.writeable
    False
    """
    array = np.ascontiguousarray(values, dtype=np.float64)
    if ndim is not None and array.ndim != ndim:
        raise ValueError(f"an array of {ndim} axes was expected, this one has shape {array.shape}")
    if array is values or array.base is not None:
        array = array if not array.flags.writeable else array.copy()
    array.flags.writeable = False
    return array
