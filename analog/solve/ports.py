"""Coupled ports: t = t_open - H y with y = law(t), many samples at once.

A linear network leaves to its nonlinear ports only H (ports, ports) and the open-circuit values t_open. In the wave
z_k = t_k + rho_k y_k with rho_k = H_kk each port's law has a unique solution y_k(z_k) whose slope lies in
(0, 1/rho_k) (:mod:`analog.solve.loop`), and

    F(z) = z - t_open + (H - diag(rho)) y(z) = 0

is solved by semismooth Newton. The slopes are bounded, so no junction limiting and no warm start is needed. For
ideal diodes the same iteration is the active-set method for the linear complementarity problem. A step that does
not reduce |F| is halved; what then still fails is reported, not hidden.

Ports that do not conduct have slope near 0: their columns leave the linear system, which shrinks to the ports that
do conduct.

Axes: ``ports``, ``batch``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analog.circuit import OpAmps
from analog.solve.loop import Junctions, solve_loops
from deploy.arrays import Array

__all__ = ["MAX_ITERATIONS", "Amplifiers", "PortLaws", "solve_ports"]

MAX_ITERATIONS = 100

_RELATIVE_STEP = 1e-13
"""A wave that moved by less, relative to 1 V or itself, is solved: Newton converges quadratically."""


@dataclass(frozen=True, eq=False)
class Amplifiers:
    """Op-amp laws y = middle + half tanh(gain u / half), (ports,) each."""

    gain: Array
    middle: Array
    half: Array

    @classmethod
    def of(cls, table: OpAmps) -> Amplifiers:
        """Read them from the circuit's table."""
        return cls(table.gain, (table.low + table.high) / 2, (table.high - table.low) / 2)

    def take(self, ports: Array) -> Amplifiers:
        """Keep some."""
        return Amplifiers(self.gain[ports], self.middle[ports], self.half[ports])


@dataclass(frozen=True, eq=False)
class PortLaws:
    """Laws of a block's ports: diodes first, then op-amps."""

    junctions: Junctions
    amplifiers: Amplifiers

    @property
    def diodes(self) -> int:
        """How many ports are diodes."""
        return len(self.junctions.slope)

    def solve(self, waves: Array, rho: Array) -> tuple[Array, Array]:
        """Solve z = t + rho y of each port: y and dy/dz, (ports, batch)."""
        d = self.diodes
        if d == len(waves):
            return solve_loops(waves, rho, self.junctions)
        from analog.solve.kernel import solve_op_amps

        y, slope = np.empty_like(waves), np.empty_like(waves)
        if d:
            y[:d], slope[:d] = solve_loops(waves[:d], rho[:d], self.junctions)
        amp = self.amplifiers
        solve_op_amps(waves[d:], rho[d:], amp.gain, amp.middle, amp.half, y[d:], slope[d:])
        return y, slope


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
    rho = np.diag(H).copy()
    rho[laws.diodes :] = np.where(rho[laws.diodes :] > 1e-3, rho[laws.diodes :], 1.0)
    couple = H - np.diag(rho)
    z = np.array(open_circuit)
    iterations = np.zeros(z.shape[1], dtype=np.int64)
    active = np.arange(z.shape[1])
    y, slope = laws.solve(z, rho)
    F = z - open_circuit + couple @ y
    for _ in range(MAX_ITERATIONS):
        step = _newton_step(couple, slope, F, rho)
        old = np.abs(F).max(axis=0)
        scale = np.ones(len(active))
        for _ in range(12):
            trial = z[:, active] - scale * step
            y_trial, slope_trial = laws.solve(trial, rho)
            F_trial = trial - open_circuit[:, active] + couple @ y_trial
            worse = np.abs(F_trial).max(axis=0) > (1 - 1e-4 * scale) * old + 1e-12 * np.abs(trial).max(axis=0)
            if not worse.any():
                break
            scale = np.where(worse, scale / 2, scale)
        z[:, active], y[:, active] = trial, y_trial
        iterations[active] += 1
        moved = np.abs(scale * step)
        solved = (moved <= _RELATIVE_STEP * np.maximum(1.0, np.abs(trial))).all(axis=0)
        keep = ~solved
        active, slope, F = active[keep], slope_trial[:, keep], F_trial[:, keep]
        if not active.size:
            break
    converged = np.ones(z.shape[1], dtype=bool)
    converged[active] = False
    return y, iterations, converged & np.isfinite(z).all(axis=0)


def _newton_step(couple: Array, slope: Array, F: Array, rho: Array) -> Array:
    """(I + couple diag(slope))^-1 F for each sample."""
    jacobian = couple[None] * slope.T[:, None, :]
    index = np.arange(len(rho))
    jacobian[:, index, index] += 1.0
    return np.asarray(np.linalg.solve(jacobian, F.T[:, :, None])[:, :, 0].T)
