"""What an engine is: something that gives the operating points of one circuit. Axes: ``batch``, ``n_in``."""

from __future__ import annotations

import abc
import time
from typing import Self

import numpy as np

from analog.check import check_circuit
from analog.circuit import Circuit
from analog.conditions import Conditions
from analog.solution import Solution
from analog.solve.evidence import collect_evidence
from deploy.arrays import Array
from deploy.errors import DataError
from deploy.requirement import Requirement

__all__ = ["CircuitEngine", "check_rows"]


class CircuitEngine(abc.ABC):
    """Solves one circuit at one ambient temperature, row after row. A context manager: entering sets it up.

    Raises, on construction, :class:`deploy.errors.InputError` for a circuit with a floating node or a loop of
    voltage sources, by name; on entering, :class:`deploy.errors.RequirementMissing`. A row that cannot be solved
    is a result (outcome "failed", NaN, a note).
    """

    name: str
    requires: Requirement | None = None

    def __init__(self, circuit: Circuit, conditions: Conditions | None = None) -> None:
        check_circuit(circuit)
        self.circuit = circuit
        self.conditions = conditions or Conditions()

    def __enter__(self) -> Self:
        if self.requires is not None:
            self.requires.check()
        self._open()
        return self

    def __exit__(self, *exc: object) -> None:
        self._close()

    def solve(self, x: Array) -> Solution:
        """Solve rows x (batch, n_in)."""
        rows = check_rows(self.circuit, x)
        started = time.perf_counter()
        volts, notes, version = self._solve(rows)
        seconds = time.perf_counter() - started
        solved = np.asarray(np.isfinite(volts).all(axis=1))
        residual, complementarity = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
        amps = np.full((len(rows), len(self.circuit.diodes)), np.nan)
        if solved.any():
            evidence = collect_evidence(self.circuit, volts[solved], rows[solved], self.conditions)
            residual[solved], complementarity[solved] = evidence.residual, evidence.complementarity
            amps[solved] = evidence.diode_amps
        for row in np.flatnonzero(residual > self._residual_limit(volts, amps)).tolist():
            said = f" ({notes[row]})" if row in notes else ""
            notes[row] = f"no operating point: Kirchhoff's current law misses {residual[row]:.1e} A{said}"
            volts[row] = amps[row] = np.nan
            solved[row] = False
        return Solution(
            volts=volts,
            residual=residual,
            complementarity=complementarity,
            iterations=np.zeros(len(rows), dtype=np.int64),
            outcome=np.where(solved, "converged", "failed"),
            diode_amps=amps,
            engine=version,
            seconds=seconds,
            notes=notes,
        )

    def _residual_limit(self, volts: Array, amps: Array) -> Array:
        """Missing current (A) above which a row is no operating point, (batch,).

        A simulator that says "finished successfully" after its transient rescue may hand over anything. Allowed
        are a millionth of the largest current and 10 nV across the steepest junction (i / N V_T siemens).
        """
        resistors, models = self.circuit.resistors, self.circuit.models
        flows = np.abs(volts[:, resistors.a] - volts[:, resistors.b]) / np.abs(resistors.ohm)
        slopes = np.array([model.slope_V(self.conditions.celsius) for model in models])
        steepest = (
            (np.abs(amps) / slopes[self.circuit.diodes.model]).max(axis=1, initial=0.0) if len(models) else 0.0
        )
        return np.asarray(1e-9 + 1e-6 * flows.max(axis=1, initial=0.0) + 1e-8 * steepest)

    @abc.abstractmethod
    def _open(self) -> None:
        """Set up; the requirement is met."""

    @abc.abstractmethod
    def _close(self) -> None:
        """Free what was set up."""

    @abc.abstractmethod
    def _solve(self, x: Array) -> tuple[Array, dict[int, str], str]:
        """Give node voltages (batch, nodes; a failed row NaN), notes by row, and the engine's name with version."""


def check_rows(circuit: Circuit, x: Array) -> Array:
    """Give rows back as float64 (batch, n_in), or raise :class:`DataError`."""
    rows = np.asarray(x, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != circuit.n_in:
        raise DataError(f"rows of shape {rows.shape}, the circuit takes {circuit.n_in} values a row")
    if not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0]
        raise DataError(f"value {rows[row, column]} is not finite", place=f"row {row}, column {column}")
    return rows
