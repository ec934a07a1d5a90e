"""What every engine gives back: node voltages with their evidence.

Axes: ``batch``, ``nodes`` (as in :attr:`analog.circuit.Circuit.node_names`), ``diodes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from deploy.arrays import Array

__all__ = ["Outcome", "Solution"]

Outcome = Literal["converged", "iteration limit", "not finite", "failed"]
"""How a row ended; "failed" is an engine's own failure and comes with a note."""


@dataclass(frozen=True, eq=False)
class Solution:
    """Operating points, one a row. A row that failed holds NaN and says why in `notes`.

    Parameters
    ----------
    volts : (batch, nodes); column 0 is ground.
    residual : (batch,) largest current (A) that Kirchhoff's current law misses at a node, recomputed from `volts`
        by :func:`analog.solve.evidence.kcl_residual`; NaN where nobody computed it.
    complementarity : (batch,) for ideal diodes the largest of a negative current (A), a positive voltage (V) and
        |i v| (W); for real diodes the largest |i - law(v)| (A); NaN where nobody computed it.
    iterations : (batch,) of the inner solver; 0 where the engine does not say.
    outcome : (batch,) of str, see :data:`Outcome`.
    diode_amps : (batch, diodes) anode to cathode, or None.
    engine : who solved it, with version.
    seconds : wall time.
    notes : row (or -1 for all) to what the engine said about it.
    """

    volts: Array
    residual: Array
    complementarity: Array
    iterations: Array
    outcome: Array
    diode_amps: Array | None = None
    engine: str = "native"
    seconds: float = 0.0
    notes: Mapping[int, str] = field(default_factory=dict)

    @property
    def converged(self) -> Array:
        """(batch,) of bool."""
        return np.asarray(self.outcome == "converged")

    def __len__(self) -> int:
        return len(self.volts)

    @property
    def hint(self) -> str:
        """What to do about rows that did not converge; empty where all did."""
        bad = np.flatnonzero(~self.converged)
        if not bad.size:
            return ""
        first = int(bad[0])
        said = self.notes.get(first, self.notes.get(-1, ""))
        return f"{bad.size} of {len(self)} rows: {self.outcome[first]} (row {first}){': ' + said if said else ''}"
