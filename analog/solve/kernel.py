"""Compiled inner loops; imported only where numba is known to be there. The mathematics is in analog.solve.loop."""

from __future__ import annotations

import math
from typing import Any

import numba

from deploy.arrays import Array

__all__ = ["solve_diode_loops", "solve_op_amps", "wright_omega"]

_jit: Any = numba.njit(cache=True, nogil=True, error_model="numpy")


@_jit  # type: ignore[untyped-decorator]
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


@_jit  # type: ignore[untyped-decorator]
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
    ports, batch = z.shape
    for p in range(ports):
        total = ohm[p] + series[p]
        if ideal[p]:
            for k in range(batch):
                on = z[p, k] > 0
                current[p, k] = z[p, k] / ohm[p] if on else 0.0
                slope[p, k] = 1 / ohm[p] if on else 0.0
            continue
        s, sat = slope_V[p], saturation[p]
        if total == 0.0:
            for k in range(batch):
                v = z[p, k]
                if v >= -3 * s:
                    e = sat * math.exp(v / s)
                    current[p, k] = e - sat + gmin * v
                    slope[p, k] = e / s + gmin
                else:
                    cubic = (3 * s / (math.e * v)) ** 3
                    current[p, k] = -sat * (1 + cubic) + gmin * v
                    slope[p, k] = 3 * sat * cubic / v + gmin
            continue
        a = 1 + total * gmin
        r = total / a
        shift = math.log(sat * r / s) + sat * r / s
        c3 = (3 * s / math.e) ** 3 * sat
        knee = -3 * s + r * sat * (math.exp(-3.0) - 1)
        for k in range(batch):
            zeta = z[p, k] / a
            if zeta >= knee:
                e = wright_omega(shift + zeta / s) * s / r
                inner = e - sat
                v = zeta - r * inner
                g = e / s + gmin
            else:
                v = zeta + r * sat
                if v > -3 * s:
                    v = -3 * s
                for _ in range(40):
                    cube = c3 / (v * v * v)
                    step = (v - zeta - r * (sat + cube)) / (1 + 3 * r * cube / v)
                    v -= step
                    if abs(step) <= 1e-16 * abs(v):
                        break
                inner = -sat - c3 / (v * v * v)
                g = 3 * c3 / (v * v * v * v) + gmin
            current[p, k] = inner + gmin * v
            slope[p, k] = g / (1 + total * g)


@_jit  # type: ignore[untyped-decorator]
def solve_op_amps(
    wave: Array, sigma: Array, gain: Array, middle: Array, half: Array, output: Array, slope: Array
) -> None:
    """Solve wave = u + sigma y, y = middle + half tanh(gain u / half), for y and dy/dwave; (ports, batch)."""
    ports, batch = wave.shape
    for p in range(ports):
        h, m, a, c = half[p], middle[p], gain[p], sigma[p]
        for k in range(batch):
            goal = abs(wave[p, k] - c * m)
            q = 0.0
            for _ in range(200):
                t = math.tanh(q)
                step = (goal - h * q / a - c * h * t) / (h / a + c * h * (1 - t * t))
                q += step
                if abs(step) <= 1e-15 * (1 + q):
                    break
            t = math.tanh(q)
            f = a * (1 - t * t)
            output[p, k] = m + h * t if wave[p, k] >= c * m else m - h * t
            slope[p, k] = f / (1 + c * f)
