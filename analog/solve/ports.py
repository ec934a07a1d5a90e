"""Coupled ports: t = t_open - H y with y = law(t), many samples at once.

A linear network leaves to its nonlinear ports only H (ports, ports) and the open-circuit values t_open. In the wave
z_k = t_k + rho_k y_k with rho_k = H_kk each port's law has a unique solution y_k(z_k) whose slope lies in
(0, 1/rho_k) (:mod:`analog.solve.loop`), and

    F(z) = z - t_open + (H - diag(rho)) y(z) = 0

is solved by semismooth Newton. The slopes are bounded, so no junction limiting and no warm start is needed. For
ideal diodes the same iteration is the active-set method for the linear complementarity problem. A step that does
not reduce |F| is halved; where Newton cycles all the same, Douglas-Rachford splitting, which always converges but
slowly, finds it a new start. What then still fails is reported, not hidden.

Ports that do not conduct have slope near 0: their columns leave the linear system, which shrinks to the ports that
do conduct.

Axes: ``ports`` (diodes first, then op-amps), ``batch``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analog.circuit import OpAmps
from analog.solve.loop import Junctions, solve_loops
from deploy.arrays import Array
from deploy.requirement import require

__all__ = ["MAX_ITERATIONS", "PortLaws", "amplifier_laws", "solve_ports"]

MAX_ITERATIONS = 50

_RESTARTS, _SPLITTING_STEPS = 4, 50
"""Where Newton cycles (some nets of many diodes in loops): 50, 200, 800, 3,200 splitting steps, then Newton again."""

_SMALLEST_SIGMA = 1e-3
"""Wave resistance of an op-amp whose output does not act on its own input: any positive number serves."""


def amplifier_laws(table: OpAmps) -> Array:
    """Gain, middle and half of each op-amp's output range, (op_amps, 3): y = middle + half tanh(gain u / half)."""
    return np.column_stack([table.gain, (table.low + table.high) / 2, (table.high - table.low) / 2])


@dataclass(frozen=True, eq=False)
class PortLaws:
    """Laws of a block's ports: its diodes, then its op-amps (op_amps, 3)."""

    junctions: Junctions
    amplifiers: Array


def solve_ports(open_circuit: Array, H: Array, laws: PortLaws) -> tuple[Array, Array, Array]:
    """Solve one block for all samples.

    Parameters
    ----------
    open_circuit : (ports, batch).
    H : (ports, ports).

    Returns
    -------
    y (ports, batch), iterations (batch,), and which samples converged (batch,) of bool.
    """
    require("numba", extra="circuit")
    from analog.solve.kernel import solve_coupled_ports

    junctions = laws.junctions
    rho = np.diag(H).copy()
    amps = slice(len(junctions.slope), None)
    rho[amps] = np.where(rho[amps] > _SMALLEST_SIGMA, rho[amps], 1.0)
    ports, batch = open_circuit.shape
    goal = np.ascontiguousarray(open_circuit.T)
    y = np.empty((batch, ports))
    iterations, converged = np.zeros(batch, dtype=np.int64), np.zeros(batch, dtype=bool)
    rows, start = np.arange(batch), goal
    for round_ in range(1 + (_RESTARTS if ports == len(junctions.slope) else 0)):
        found, count = np.empty((len(rows), ports)), np.zeros(len(rows), dtype=np.int64)
        good = np.zeros(len(rows), dtype=bool)
        solve_coupled_ports(
            goal[rows],
            start,
            H - np.diag(rho),
            rho,
            junctions.slope,
            junctions.saturation,
            junctions.series,
            junctions.ideal,
            junctions.gmin,
            np.ascontiguousarray(laws.amplifiers),
            MAX_ITERATIONS,
            found,
            count,
            good,
        )
        y[rows], converged[rows] = found, good
        iterations[rows] += count
        rows = rows[~good]
        if not rows.size:
            break
        start = _split(goal[rows], H, rho, junctions, steps=_SPLITTING_STEPS * 4**round_)
        iterations[rows] += _SPLITTING_STEPS * 4**round_
    return y.T, iterations, converged


def _split(goal: Array, H: Array, rho: Array, junctions: Junctions, *, steps: int) -> Array:
    """Waves (batch, ports) after some Douglas-Rachford steps, a good start where Newton cycles.

    The diodes reflect z into b = z - 2 rho i; the network answers b with b + 2 rho (H + rho)^-1 (t_open - b);
    the mean of that and z is a contraction wherever H + H' is positive definite, at a linear rate only.
    """
    answer = 2 * rho * np.linalg.inv(H + np.diag(rho)).T
    z = goal.copy()
    for _ in range(steps):
        current, _ = solve_loops(np.ascontiguousarray(z.T), rho, junctions)
        reflected = z - 2 * rho * current.T
        z = (z + reflected + (goal - reflected) @ answer) / 2
        if not np.isfinite(z).all():
            return goal
    return z
