"""Weights: arrays of real, finite numbers, as files store them."""

from __future__ import annotations

import mmap

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError

__all__ = ["MAX_PARAMETERS", "check_broadcast", "check_finite", "check_size", "doubled"]

MAX_PARAMETERS = 1 << 26
"""Most entries of one dense layer, unless the caller asks for more (2^26 float64 are 512 MiB)."""

_BLOCK = 1 << 20


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


def doubled(array: Array) -> Array:
    """A float64 copy, contiguous and its own; pages of a mapped file are given back as they are read."""
    out = np.empty(array.shape)
    is_turned = array.ndim == 2 and array.flags.f_contiguous and not array.flags.c_contiguous
    source, target = (array.T, out.T) if is_turned else (array, out)
    mapped = _mapped_file(array)
    if mapped is None or array.ndim < 2:
        target[...] = source
        return out
    step = max(1, _BLOCK // max(1, source[0].size))
    for start in range(0, len(source), step):
        target[start : start + step] = source[start : start + step]
        mapped.madvise(mmap.MADV_DONTNEED)
    return out


def _mapped_file(array: Array) -> mmap.mmap | None:
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner if isinstance(owner, mmap.mmap) else None


def check_size(entries: int, limit: int, what: str) -> None:
    """Raise :class:`LoadError` where `what` would have more than `limit` entries."""
    if entries > limit:
        raise LoadError(
            f"{what} would have {entries:,} entries, the limit is {limit:,}",
            remedy="raise max_parameters if that is meant and memory allows it",
        )


def check_broadcast(shape: tuple[int, ...], constant: Array) -> tuple[int, ...]:
    """The shape that both broadcast to, or :class:`LoadError`."""
    try:
        return np.broadcast_shapes(shape, constant.shape)
    except ValueError:
        raise LoadError(f"shapes {list(shape)} and {list(constant.shape)} do not broadcast") from None
