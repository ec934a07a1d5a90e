"""Relayouts of values: transpositions, reshapes, slices, applied to the indices of the entries."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders.signal import Signal
from deploy.loaders.tails import Tailed

__all__ = ["Moved", "one_row", "relayout"]

Moved = Signal | Tailed


def relayout(value: Moved, change: Callable[[Array], Array]) -> Moved:
    """Apply a numpy relayout to a signal or tail.

    Raises
    ------
    LoadError : the change does not fit the shape.
    """
    try:
        changed = change(value.indices())
    except (ValueError, IndexError, TypeError, OverflowError) as error:
        raise LoadError(f"shape {list(value.shape)}: {error}") from None
    return value.selected(np.ascontiguousarray(changed))


def one_row(shape: list[int], size: int, batch: int) -> list[int]:
    """A target shape for a batch of one: a first axis that is the file's batch becomes 1.

    `batch` is the number of rows that the file fixes, 0 where it fixes none.

    >>> one_row([32, 784], 784, 32)
    [1, 784]
    """
    if not shape or batch == 1:
        return shape
    rest = shape[1:]
    if -1 not in shape and math.prod(shape) != size and batch in (0, shape[0]) and math.prod(rest) == size:
        return [1, *rest]
    if -1 in rest and batch > 1 and shape[0] == batch:
        return [1, *rest]
    return shape
