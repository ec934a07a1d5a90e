"""An engine of ours as the trunk's: rows in, logits out, with the voltages' distance from the native solver's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import numpy as np

from analog.engines.native import NativeEngine
from analog.engines.protocol import CircuitEngine
from deploy.arrays import Array
from deploy.requirement import Requirement
from deploy.target import EngineRun, Json

__all__ = ["RealEngine"]


class RealEngine:
    """``--real N --engine NAME`` of the target: runs a simulator and reads its outputs as logits.

    Parameters
    ----------
    engine : not entered yet.
    read : node voltages (batch, nodes) to logits (batch, n_out); default: the circuit's own scale and offset.
    """

    def __init__(self, engine: CircuitEngine, read: Callable[[Array], Array] | None = None) -> None:
        self._engine = engine
        self._read = read or engine.circuit.read_outputs
        self.requires: Requirement | None = engine.requires

    def __enter__(self) -> Self:
        self._engine.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._engine.__exit__(*exc)

    def run(self, x: Array) -> EngineRun:
        """Run rows (batch, n_in); diagnostics hold the largest |difference| from the native solver in volts."""
        solution = self._engine.solve(x)
        with NativeEngine(self._engine.circuit, self._engine.conditions) as native:
            reference = native.solve(x)
        ours = solution.converged
        difference = np.abs(solution.volts[ours] - reference.volts[ours]).max(initial=0.0)
        diagnostics: dict[str, Json] = {
            "simulator": solution.engine,
            "max_abs_volts_difference": float(difference),
            "kcl_residual_A": float(np.max(solution.residual[ours], initial=0.0)),
            "notes": sorted(set(solution.notes.values())),
        }
        return EngineRun(
            logits=self._read(solution.volts),
            seconds={"client": 0.0, "server": solution.seconds},
            failures={int(row): solution.notes.get(int(row), "failed") for row in np.flatnonzero(~ours)},
            diagnostics=diagnostics,
        )
