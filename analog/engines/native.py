"""The native solver behind the interface of the engines."""

from __future__ import annotations

from analog.engines.protocol import CircuitEngine, check_rows
from analog.solution import Solution
from analog.solve import NativePlan, plan_circuit
from deploy.arrays import Array

__all__ = ["NativeEngine"]


class NativeEngine(CircuitEngine):
    """Our solver: analysed once on entering, batched over rows."""

    name = "native"
    _plan: NativePlan | None = None

    def _open(self) -> None:
        self._plan = plan_circuit(self.circuit, self.conditions)

    def _close(self) -> None:
        self._plan = None

    def solve(self, x: Array) -> Solution:
        """Solve rows x (batch, n_in)."""
        if self._plan is None:
            raise RuntimeError("enter the engine first: `with engine: engine.solve(x)`")
        return self._plan.solve(check_rows(self.circuit, x))

    def _solve(self, x: Array) -> tuple[Array, dict[int, str], str]:
        solution = self.solve(x)
        return solution.volts, dict(solution.notes), solution.engine
