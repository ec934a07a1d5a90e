"""The polynomial of least worst error to a ReLU on an interval, by Remez' exchange.

The error of a polynomial against a ReLU is smooth on each side of zero, so its extrema are roots of polynomials, the
ends and the kink: they are found exactly, without a grid.

Axes: ``powers``, ``points``.
"""

from __future__ import annotations

import numpy as np
from numpy.polynomial import Chebyshev, chebyshev

from deploy.arrays import Array

__all__ = ["minimax_relu"]

_MOST_EXCHANGES = 100

_LEVEL = 1e-12
"""The worst error may pass the levelled one by this share of the interval: rounding."""


def minimax_relu(low: float, high: float, degree: int) -> Chebyshev:
    """Approximate max(0, v) on [low, high], low < 0 < high, with the least worst error.

    By the alternation theorem a polynomial is the best if and only if its error takes its largest size at degree + 2
    points with alternating signs. The exchange levels the error at so many points, moves them to the extrema of what
    came out, and repeats until no error is larger than the levelled one (Remez 1934; Cheney, *Introduction to
    Approximation Theory*, ch. 3).

    >>> minimax_relu(-1.0, 1.0, 2).convert(kind=np.polynomial.Polynomial).coef.round(6)
    array([0.0625, 0.5   , 0.5   ])
    """
    middle, half = (low + high) / 2, (high - low) / 2
    kink = -middle / half
    points = np.cos(np.linspace(np.pi, 0.0, degree + 2))
    signs = (-1.0) ** np.arange(degree + 2)
    series = np.zeros(degree + 1)
    for _ in range(_MOST_EXCHANGES):
        system = np.column_stack([chebyshev.chebvander(points, degree), signs])
        solved = np.linalg.solve(system, np.maximum(points - kink, 0.0))
        series, level = solved[:-1], float(solved[-1])
        candidates = np.union1d(points, _extrema(series, kink))
        errors = chebyshev.chebval(candidates, series) - np.maximum(candidates - kink, 0.0)
        if np.abs(errors).max() <= abs(level) + _LEVEL:
            break
        points = _alternating(candidates, errors, degree + 2)
    return Chebyshev(series * half, domain=[low, high])


def _extrema(series: Array, kink: float) -> Array:
    """Where the error may be largest: ends, kink, and where its slope vanishes on either side."""
    slope = chebyshev.chebder(series)
    left, right = (chebyshev.chebroots(chebyshev.chebsub(slope, [rise])) for rise in (0.0, 1.0))
    left, right = (roots[np.abs(roots.imag) < 1e-9].real for roots in (left, right))
    inside = [left[(left > -1) & (left < kink)], right[(right > kink) & (right < 1)]]
    return np.concatenate([[-1.0, kink, 1.0], *inside])


def _alternating(points: Array, errors: Array, count: int) -> Array:
    """Of each run of one sign the largest error; of those, `count` neighbours that hold the largest of all."""
    runs = np.split(np.arange(len(points)), np.flatnonzero(np.diff(np.sign(errors))) + 1)
    best = [int(run[np.argmax(np.abs(errors[run]))]) for run in runs]
    while len(best) > count:
        best.pop(0 if abs(errors[best[0]]) < abs(errors[best[-1]]) else -1)
    return points[best]
