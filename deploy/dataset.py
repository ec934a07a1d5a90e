"""Rows: what a network is calibrated on, and what it is judged on, as two types.

Axes: ``rows``, ``n_in``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from deploy.arrays import Array, frozen
from deploy.errors import DataError

__all__ = ["Calibration", "HeldOut", "row_hashes"]


def row_hashes(x: Array) -> tuple[bytes, ...]:
    """SHA-256 of each float64 row of x (rows, n_in); -0.0 counts as 0.0."""
    rows = np.ascontiguousarray(x, dtype="<f8") + 0.0
    return tuple(hashlib.sha256(row.tobytes()).digest() for row in rows)


@dataclass(frozen=True, eq=False)
class _Rows:
    """x (rows, n_in) float64, read-only; y (rows,) labels or None; where they came from."""

    x: Array
    y: Array | None = None
    source: str = ""

    def __post_init__(self) -> None:
        x = frozen(self.x, ndim=2)
        if not x.size:
            raise DataError(f"no values: shape {x.shape}", place=self.source)
        if not np.isfinite(x).all():
            bad = np.argwhere(~np.isfinite(x))
            raise DataError(
                f"{len(bad)} values are NaN or infinite, the first at row {bad[0][0]}, column {bad[0][1]}",
                place=self.source,
                remedy="clean or drop these rows",
            )
        object.__setattr__(self, "x", x)
        if self.y is not None and np.shape(self.y) != (len(x),):
            raise DataError(
                f"labels of shape {np.shape(self.y)} for {len(x)} rows",
                place=self.source,
                remedy="give one label a row, or none",
            )

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, eq=False)
class Calibration(_Rows):
    """Rows that a conversion may look at. Labels are never needed."""


@dataclass(frozen=True, eq=False)
class HeldOut(_Rows):
    """Rows that no conversion has looked at."""
