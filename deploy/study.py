"""Studies: tables that a target can compute about a deployment, case by case.

A study is a small picklable value. ``cases`` lists what to compute, each with an identity that does not depend
on order or machine, so that an interrupted table resumes; ``solve`` computes one case and nothing else, so that
joblib and a cluster give the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from pydantic import BaseModel

from deploy.arrays import Array

__all__ = ["Case", "Column", "Row", "Study"]

Row = Mapping[str, Any]
"""Value of each column; a case that failed says so in its own columns (``outcome``), never by an exception."""


@dataclass(frozen=True, slots=True)
class Column:
    """Name, unit ("" where it has none) and meaning of one column of a table."""

    name: str
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to compute: a stable identity and its parameters (plain values, picklable)."""

    id: str
    parameters: Mapping[str, Any]


class Study(Protocol):
    """What ``simulate BUNDLE STUDY`` runs. Instances must be picklable.

    A study that measures wall time cannot give the same row twice; it says so with an attribute ``is_timed = True``.
    """

    @property
    def summary(self) -> str:
        """One line for people."""
        ...

    @property
    def options(self) -> type[BaseModel]:
        """What ``--set NAME=VALUE`` takes."""
        ...

    @property
    def columns(self) -> tuple[Column, ...]:
        """Every column of the table; each row has exactly these."""
        ...

    def cases(self, options: Any, rng: np.random.Generator) -> Iterator[Case]:
        """List the cases; the same options and seed give the same cases in the same order."""
        ...

    def solve(self, case: Case, x: Array) -> Row:
        """Compute one case on rows `x` (batch, n_in); pure."""
        ...
