"""Where a vector's entries sit in the slots of a ciphertext.

A rotation moves all slots cyclically, so a sum over rotations by ``p, 2p, 4p, …, slots/2`` leaves every slot with
the sum over all slots of its residue class modulo ``p``. Layouts here are periodic for that reason: after such a fold,
each slot of a product holds a full row, never a partial sum.

Axes: ``slots``; a *position* is a slot of one sample, slot = position * interleave + sample.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from pydantic import BaseModel, ConfigDict, model_validator

from deploy.arrays import Array

__all__ = ["Layout", "power_of_two"]


def power_of_two(at_least: float) -> int:
    """The least power of two that is no smaller.

    >>> power_of_two(1), power_of_two(12.25), power_of_two(16)
    (1, 16, 16)
    """
    found = 1
    while found < at_least:
        found *= 2
    return found


class Layout(BaseModel):
    """Position s holds entry ``stride * (s mod period // block) + (s mod block) mod stride``.

    With block = stride = period that is the plain repetition ``s mod period``. A smaller stride spreads the entries
    over the blocks: any ``stride`` consecutive positions, taken in every block, hold each entry exactly once, so a
    matrix whose rows repeat with period `block` needs `stride` diagonals and log2(period / block) folds.

    Parameters
    ----------
    period, block, stride : powers of two, stride <= block <= period.

    Examples
    --------
    >>> Layout(period=8, block=4, stride=2).entries(8)
    array([0, 1, 0, 1, 2, 3, 2, 3])
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    period: int
    block: int
    stride: int

    @model_validator(mode="after")
    def _check(self) -> Self:
        for value in (self.period, self.block, self.stride):
            if value < 1 or value & (value - 1):
                raise ValueError(f"{value} is no power of two")
        if not self.stride <= self.block <= self.period:
            raise ValueError(f"stride {self.stride}, block {self.block}, period {self.period} do not nest")
        return self

    @property
    def capacity(self) -> int:
        """Number of entries that fit."""
        return self.stride * (self.period // self.block)

    def entries(self, positions: int) -> Array:
        """(positions,) index of the entry at each position."""
        s = np.arange(positions) % self.period
        return np.asarray(self.stride * (s // self.block) + (s % self.block) % self.stride)

    @classmethod
    def between(cls, period: int, rows_period: int, entries: int) -> Self | None:
        """The layout of least stride, for a product whose rows repeat with `rows_period`; None where none fits."""
        block = min(period, rows_period)
        stride = power_of_two(-(-entries * block // period))
        if stride > block:
            return None
        return cls(period=period, block=block, stride=stride)
