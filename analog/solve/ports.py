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

Axes: ``ports`` (diodes first, then op-amps), ``batch``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analog.circuit import OpAmps
from analog.solve.loop import Junctions
from deploy.arrays import Array
from deploy.requirement import require

__all__ = ["MAX_ITERATIONS", "PortLaws", "amplifier_laws", "solve_ports"]

MAX_ITERATIONS = 100

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
    y = np.empty((batch, ports))
    iterations, converged = np.zeros(batch, dtype=np.int64), np.zeros(batch, dtype=bool)
    solve_coupled_ports(
        np.ascontiguousarray(open_circuit.T),
        H - np.diag(rho),
        rho,
        junctions.slope,
        junctions.saturation,
        junctions.series,
        junctions.ideal,
        junctions.gmin,
        np.ascontiguousarray(laws.amplifiers),
        MAX_ITERATIONS,
        y,
        iterations,
        converged,
    )
    return y.T, iterations, converged
