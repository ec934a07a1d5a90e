"""Compiled inner loops; imported only where numba is known to be there.

The mathematics is in :mod:`analog.solve.loop` (one diode) and :mod:`analog.solve.ports` (coupled ports).
"""

from __future__ import annotations

import math

import numpy as np

from deploy.arrays import Array
from deploy.compiled import compiled

__all__ = ["solve_coupled_ports", "solve_diode_loops", "wright_omega"]

_jit = compiled()

_NEWTON_STEP, _SOLVED = 1e-13, 1e-11
"""Solved: the waves no longer move, and |F| is small beside them (a singular step would not move either)."""
_SINGULAR = 1e-12
"""Pivots below this (of an identity plus products of order one) come from ideal diodes in a loop, whose currents are
not unique: the last of them does not move."""
_ROUNDING = 2.0**-51
"""An |F| of two units in the last place of the largest wave is rounding; a step from it would be noise."""
_HALVINGS = 10
"""Shortest step 2^-9; where even that does not reduce |F| (a kink) a long one is taken, of varying length."""
_OPEN, _PATIENCE = 3e-3, 10
"""A port that moves all waves together by less than this share of its own move is left out of the linear system: the
iteration then contracts by that share at least, which costs a step and saves most of the elimination. Op-amps, and
blocks that still move after _PATIENCE iterations, get the whole system."""


@_jit
def wright_omega(x: float) -> float:
    """omega + ln omega = x, to the last bits, for real x: two steps of the fourth-order iteration."""
    if x < -30.0:
        e = math.exp(x)
        return e * (1 - e)
    if x < -2.0:
        e = math.exp(x)
        w = e * (1 - e * (1 - 1.5 * e))
    elif x < 3.0:
        t = x - 1.0
        w = 1 + t * (0.5 + t * (0.0625 - t * (1 / 192 + t * (1 / 3072 - t * 13 / 61440))))
    else:
        log = math.log(x)
        w = x - log + log / x + log * (log - 2) / (2 * x * x)
    for _ in range(2):
        residual = x - w - math.log(w)
        first = 1 + w
        twice = 2 * first * (first + 2 * residual / 3)
        w *= 1 + residual / first * (twice - residual) / (twice - 2 * residual)
        if abs(residual) < 1e-4 * first:
            break
    return w


@_jit
def _bare_junction(v: float, s: float, saturation: float, gmin: float) -> tuple[float, float]:
    """Current and conductance of a junction at v."""
    if v >= -3 * s:
        e = saturation * math.exp(v / s)
        return e - saturation + gmin * v, e / s + gmin
    cubic = (3 * s / (math.e * v)) ** 3
    return -saturation * (1 + cubic) + gmin * v, 3 * saturation * cubic / v + gmin


@_jit
def _loop_constants(
    total: float, s: float, saturation: float, gmin: float
) -> tuple[float, float, float, float, float]:
    """a, r, the argument's shift, the cubic's constant, and the wave at v_j = -3 s (over a)."""
    a = 1 + total * gmin
    r = total / a
    shift = math.log(saturation * r / s) + saturation * r / s
    return a, r, shift, (3 * s / math.e) ** 3 * saturation, -3 * s + r * saturation * (math.exp(-3.0) - 1)


@_jit
def _loop(
    z: float,
    total: float,
    s: float,
    saturation: float,
    gmin: float,
    a: float,
    r: float,
    shift: float,
    c3: float,
    knee: float,
) -> tuple[float, float]:
    """Current and di/dz of one diode behind `total` ohms."""
    zeta = z / a
    if zeta >= knee:
        e = wright_omega(shift + zeta / s) * s / r
        inner = e - saturation
        v = zeta - r * inner
        g = e / s + gmin
    else:
        v = min(zeta + r * saturation, -3 * s)
        for _ in range(40):
            cube = c3 / (v * v * v)
            step = (v - zeta - r * (saturation + cube)) / (1 + 3 * r * cube / v)
            v -= step
            if abs(step) <= 1e-16 * abs(v):
                break
        inner = -saturation - c3 / (v * v * v)
        g = 3 * c3 / (v * v * v * v) + gmin
    return inner + gmin * v, g / (1 + total * g)


@_jit
def solve_diode_loops(
    z: Array,
    ohm: Array,
    slope_V: Array,
    saturation: Array,
    series: Array,
    ideal: Array,
    gmin: float,
    current: Array,
    slope: Array,
) -> None:
    """Solve z = v_d + ohm i of each port and sample, (ports, batch)."""
    ports, batch = z.shape
    for p in range(ports):
        total, s, sat = ohm[p] + series[p], slope_V[p], saturation[p]
        if ideal[p]:
            for k in range(batch):
                on = z[p, k] > 0
                current[p, k] = z[p, k] / ohm[p] if on else 0.0
                slope[p, k] = 1 / ohm[p] if on else 0.0
        elif total == 0.0:
            for k in range(batch):
                current[p, k], slope[p, k] = _bare_junction(z[p, k], s, sat, gmin)
        else:
            a, r, shift, c3, knee = _loop_constants(total, s, sat, gmin)
            for k in range(batch):
                current[p, k], slope[p, k] = _loop(z[p, k], total, s, sat, gmin, a, r, shift, c3, knee)


@_jit
def _op_amp(wave: float, sigma: float, gain: float, middle: float, half: float) -> tuple[float, float]:
    """Output y and dy/dwave of wave = u + sigma y, y = middle + half tanh(gain u / half); in q = gain u / half the
    equation is increasing and concave for q > 0, so Newton from 0 never overshoots."""
    goal = abs(wave - sigma * middle)
    q = 0.0
    for _ in range(200):
        t = math.tanh(q)
        step = (goal - half * q / gain - sigma * half * t) / (half / gain + sigma * half * (1 - t * t))
        q += step
        if abs(step) <= 1e-15 * (1 + q):
            break
    t = math.tanh(q)
    f = gain * (1 - t * t)
    output = middle + half * t if wave >= sigma * middle else middle - half * t
    return output, f / (1 + sigma * f)


@_jit
def _residual(
    z: Array,
    open_circuit: Array,
    columns: Array,
    law: Array,
    diodes: int,
    gmin: float,
    y: Array,
    slope: Array,
    F: Array,
) -> float:
    """F = z - open_circuit + couple y at waves z; fills y, slope, F and gives max |F|. `law` holds each port's numbers,
    `columns` the columns of couple as rows."""
    ports = len(z)
    for p in range(ports):
        w = law[p]
        if p >= diodes:
            y[p], slope[p] = _op_amp(z[p], w[0], w[1], w[2], w[3])
        elif w[9] > 0:
            y[p] = z[p] / w[0] if z[p] > 0 else 0.0
            slope[p] = 1 / w[0] if z[p] > 0 else 0.0
        else:
            y[p], slope[p] = _loop(z[p], w[1], w[2], w[3], gmin, w[4], w[5], w[6], w[7], w[8])
        F[p] = z[p] - open_circuit[p]
    for p in range(ports):
        if y[p] != 0.0:
            column, value = columns[p], y[p]
            for q in range(ports):
                F[q] += value * column[q]
    worst = 0.0
    for p in range(ports):
        worst = max(worst, abs(F[p]))
    return worst


@_jit
def _newton_step(
    F: Array, slope: Array, columns: Array, reach: Array, A: Array, on: Array, cut: float, step: Array
) -> None:
    """Solve (I + couple diag(slope)) step = F over the ports that conduct; the others follow."""
    ports = len(F)
    m = 0
    for p in range(ports):
        if slope[p] * reach[p] > cut:
            on[m] = p
            m += 1
    for j in range(m):
        column, g = columns[on[j]], slope[on[j]]
        for i in range(m):
            A[i, j] = column[on[i]] * g
        A[j, j] += 1.0
    for i in range(m):
        step[i] = F[on[i]]
    for k in range(m):
        pivot = k
        for i in range(k + 1, m):
            if abs(A[i, k]) > abs(A[pivot, k]):
                pivot = i
        if pivot != k:
            for j in range(k, m):
                A[k, j], A[pivot, j] = A[pivot, j], A[k, j]
            step[k], step[pivot] = step[pivot], step[k]
        if abs(A[k, k]) < _SINGULAR:
            A[k, k] = 1e30
        row = A[k, k + 1 : m]  # views let the compiler prove the bounds, and vectorise: three times as fast
        for i in range(k + 1, m):
            factor = A[i, k] / A[k, k]
            if factor != 0.0:
                other = A[i, k + 1 : m]
                for j in range(len(row)):
                    other[j] -= factor * row[j]
                step[i] -= factor * step[k]
    for k in range(m - 1, -1, -1):
        step[k] /= A[k, k]
        for i in range(k):
            step[i] -= A[i, k] * step[k]
    solved = step[:m].copy()
    step[:] = F
    for j in range(m):
        column, push = columns[on[j]], slope[on[j]] * solved[j]
        for p in range(ports):
            step[p] -= push * column[p]
    for j in range(m):
        step[on[j]] = solved[j]


@_jit
def solve_coupled_ports(
    open_circuit: Array,
    start: Array,
    couple: Array,
    rho: Array,
    slope_V: Array,
    saturation: Array,
    series: Array,
    ideal: Array,
    gmin: float,
    amplifiers: Array,
    limit: int,
    y_out: Array,
    iterations: Array,
    converged: Array,
) -> None:
    """Solve z - open_circuit + couple y(z) = 0 of each sample from z = start; all of them (batch, ports)."""
    batch, ports = open_circuit.shape
    diodes = len(slope_V)
    columns = np.ascontiguousarray(couple.T)
    law = np.zeros((ports, 10))
    reach = np.zeros(ports)
    for p in range(ports):
        reach[p] = np.abs(columns[p]).sum()
        law[p, 0] = rho[p]
        if p >= diodes:
            law[p, 1:4] = amplifiers[p - diodes]
            continue
        total = rho[p] + series[p]
        law[p, 1], law[p, 2], law[p, 3] = total, slope_V[p], saturation[p]
        law[p, 9] = 1.0 if ideal[p] else 0.0
        law[p, 4], law[p, 5], law[p, 6], law[p, 7], law[p, 8] = _loop_constants(
            total, slope_V[p], saturation[p], gmin
        )
    y, slope, F, step, trial = np.empty(ports), np.empty(ports), np.empty(ports), np.empty(ports), np.empty(ports)
    A, on = np.empty((ports, ports)), np.empty(ports, dtype=np.int64)
    for k in range(batch):
        goal = open_circuit[k]
        z = start[k].copy()
        old = _residual(z, goal, columns, law, diodes, gmin, y, slope, F)
        for iteration in range(limit):
            cut = _OPEN if diodes == ports and iteration < _PATIENCE else 0.0
            _newton_step(F, slope, columns, reach, A, on, cut, step)
            scale, moved, size, new = 1.0, 0.0, 1.0, old
            for attempt in range(_HALVINGS + 1):
                if attempt == _HALVINGS:
                    scale = (1 + iteration % 3) / 3
                moved, size = 0.0, 1.0
                for p in range(ports):
                    trial[p] = z[p] - scale * step[p]
                    moved = max(moved, abs(scale * step[p]))
                    size = max(size, abs(trial[p]))
                new = _residual(trial, goal, columns, law, diodes, gmin, y, slope, F)
                if new <= (1 - 1e-4 * scale) * old + 1e-13 * size:
                    break
                scale /= 2
            z[:] = trial
            old = new
            iterations[k] = iteration + 1
            if not math.isfinite(old):
                break
            if (moved <= _NEWTON_STEP * size and new <= _SOLVED * size) or new <= _ROUNDING * size:
                converged[k] = True
                break
        for p in range(ports):
            y_out[k, p] = y[p] if converged[k] else 0.0
