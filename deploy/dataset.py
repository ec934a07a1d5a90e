"""Rows: what a network is calibrated on, and what it is judged on, as two types.

The files are read by :mod:`deploy.rows`; ``Calibration.read("mnist_t10k.npz[0:8000]")`` takes rows 0 to 8000.

Axes: ``rows``, ``n_in``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from deploy.arrays import Array, frozen
from deploy.errors import DataError, OverlapError
from deploy.rows import read_rows

__all__ = ["Calibration", "HeldOut", "Rows", "check_disjoint", "row_hashes"]


def row_hashes(x: Array) -> tuple[bytes, ...]:
    """SHA-256 of each float64 row of x (rows, n_in); -0.0 counts as 0.0."""
    return tuple(hashlib.sha256((row.astype("<f8") + 0.0).tobytes()).digest() for row in x)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of numbers with optional labels.

    Parameters
    ----------
    x : (rows, n_in) float64, read-only, finite, at least one row.
    y : (rows,) labels (integers or strings), or None.
    source : where they came from, for messages.
    first_row : index of x[0] in that source, so that messages name rows as the user counts them.
    features : name of each column where the file names them, or None.
    kept : (rows,) places in the source, counted from `first_row`, where rows between them were left out, or None.

    Examples
    --------
    >>> len(Calibration(np.zeros((3, 2))))
    3
    """

    x: Array
    y: Array | None = None
    source: str = ""
    first_row: int = 0
    features: tuple[str, ...] | None = None
    kept: Array | None = None

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

    @property
    def numbers(self) -> Array:
        """Which row of its file each row is: (rows,) of int64."""
        offsets = np.arange(len(self.x)) if self.kept is None else self.kept
        return self.first_row + offsets.astype(np.int64)

    @classmethod
    def read(
        cls,
        argument: str | Path,
        *,
        labels: str | Path | None = None,
        divide_by: float = 1.0,
        label_column: str | None = None,
    ) -> Self:
        """Read a file, see :func:`deploy.rows.read_rows`; raises :class:`deploy.errors.DataError`."""
        table = read_rows(argument, labels=labels, divide_by=divide_by, label_column=label_column)
        return cls(table.x, table.y, table.source, table.first_row, table.features)


@dataclass(frozen=True, eq=False)
class Calibration(Rows):
    """Rows that a conversion may look at. Labels are never needed."""


@dataclass(frozen=True, eq=False)
class HeldOut(Rows):
    """Rows that no conversion has looked at."""


def check_disjoint(held_out: HeldOut, calibration_hashes: frozenset[bytes], *, drop: bool = False) -> HeldOut:
    """Give the held-out rows back if none was calibrated on.

    With `drop`, rows that were calibrated on are left out instead (tables often hold the same row twice).

    Raises
    ------
    OverlapError : with the count of rows that were calibrated on.
    """
    hashes = row_hashes(held_out.x)
    seen = np.array([digest in calibration_hashes for digest in hashes])
    if not seen.any():
        return held_out
    if drop and not seen.all():
        y = None if held_out.y is None else held_out.y[~seen]
        kept = held_out.numbers[~seen] - held_out.first_row
        return replace(held_out, x=held_out.x[~seen], y=y, kept=kept)
    raise OverlapError(
        f"{seen.sum()} of {len(seen)} rows were calibrated on, the first is row "
        f"{held_out.first_row + int(np.argmax(seen))}",
        place=held_out.source,
        remedy="evaluate on rows that the conversion has not seen",
    )
