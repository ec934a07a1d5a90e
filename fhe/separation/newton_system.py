"""The linear system of one Newton step, solved the cheapest of three exact ways.

The system is ``(d I + Σ_i w_i r_i r_iᵀ) step = -gradient``, over the pairs i that a loss asks for, with d = 1 for the
anchor plus any damping. With m pairs and p parameters:

* *primal*: factor the p x p matrix, m p² + p³/3 multiplications;
* *dual*: factor the m x m matrix of inner products of the rows instead (Woodbury's identity), m² p + m³/3. Wide layers
  over few rows have far fewer pairs than parameters;
* *products*: conjugate gradients, where a multiplication with the matrix is one pass over the calibration rows and one
  back, so that neither matrix is formed. Their number of steps is not known beforehand: they get half of what the
  cheaper factorisation would cost, which takes over if that is not enough. All three give the same step.

Axes: ``pairs``, ``parameters``, ``batch``, ``classes``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from deploy.arrays import Array
from fhe.separation.lift import Lift, Point, sum_curvature
from fhe.separation.losses import Pairs

__all__ = ["NewtonSystem", "newton_system"]

_FEWEST_STEPS = 30
"""Conjugate gradients that may take fewer steps than this are not worth a try."""

_SMALL = 1e-2
"""Residual of conjugate gradients, relative to the gradient: an inexact step, whose error the next one removes."""

_MOST_NUMBERS = 1 << 27
"""Numbers in the rows of the dual system at most: 1 GB."""


class NewtonSystem(Protocol):
    """A curvature to solve with."""

    @property
    def mean_curvature(self) -> float:
        """Trace of the curvature over the number of parameters: what damping is measured by."""
        ...

    def step(self, gradient: Array, damping: float = 0.0) -> Array:
        """Solve ``((1 + damping) I + curvature) step = -gradient``: (parameters,)."""
        ...


def newton_system(lift: Lift, point: Point, pairs: Pairs) -> NewtonSystem:
    """Choose how to solve, by the number of multiplications; `point` is of the `lift`."""
    m, p = len(pairs[0]), lift.size
    primal = p * p * (m + p / 3)
    dual = m * m * (p + m / 3) if m * p <= _MOST_NUMBERS else np.inf
    most = int(min(primal, dual) / 2 / (2 * lift.work))
    if most >= _FEWEST_STEPS:
        return _Products(lift, point, pairs, most)
    return _factorised(lift, point, pairs)


def _factorised(lift: Lift, point: Point, pairs: Pairs) -> NewtonSystem:
    row, plus, minus, weight = pairs
    if len(row) < lift.size and len(row) * lift.size <= _MOST_NUMBERS:
        rows = point.rows(row, plus, minus)
        rows *= np.sqrt(weight)[:, None]
        return _Dual(rows, rows @ rows.T)
    return _Primal(sum_curvature(point, lift.size, row, plus, minus, weight))


@dataclass(frozen=True, slots=True, eq=False)
class _Primal:
    curvature: Array

    @property
    def mean_curvature(self) -> float:
        return float(np.trace(self.curvature) / len(self.curvature))

    def step(self, gradient: Array, damping: float = 0.0) -> Array:
        return -_solve_shifted(self.curvature, 1.0 + damping, gradient)


@dataclass(frozen=True, slots=True, eq=False)
class _Dual:
    """``(d I + RᵀR)⁻¹ = (I - Rᵀ (d I + R Rᵀ)⁻¹ R) / d``."""

    rows: Array
    gram: Array

    @property
    def mean_curvature(self) -> float:
        return float(np.trace(self.gram) / self.rows.shape[1])

    def step(self, gradient: Array, damping: float = 0.0) -> Array:
        shift = 1.0 + damping
        if not len(self.gram):
            return -gradient / shift
        inside = _solve_shifted(self.gram, shift, self.rows @ gradient)
        return np.asarray((self.rows.T @ inside - gradient) / shift)


@dataclass(frozen=True, slots=True, eq=False)
class _Products:
    lift: Lift
    point: Point
    pairs: Pairs
    most: int

    @property
    def mean_curvature(self) -> float:
        row, plus, minus, weight = self.pairs
        few = slice(None, None, 1 + len(row) // 256)
        rows = self.point.rows(row[few], plus[few], minus[few])
        sizes = np.einsum("mp,mp->m", rows, rows)
        return float(weight[few] @ sizes) * len(row) / max(1, len(sizes)) / self.lift.size

    def step(self, gradient: Array, damping: float = 0.0) -> Array:
        """Conjugate gradients (Hestenes and Stiefel 1952) from zero, so that even a cut-off run descends."""
        found, left = np.zeros_like(gradient), -gradient
        direction, size = left.copy(), float(left @ left)
        goal = _SMALL**2 * size
        for _ in range(self.most):
            if size <= goal:
                return found
            image = (1.0 + damping) * direction + self._curve(direction)
            length = size / float(direction @ image)
            found = found + length * direction
            left = left - length * image
            before, size = size, float(left @ left)
            direction = left + (size / before) * direction
        return _factorised(self.lift, self.point, self.pairs).step(gradient, damping)

    def _curve(self, direction: Array) -> Array:
        row, plus, minus, weight = self.pairs
        change = self.point.derivative(direction)
        pulled = weight * (change[row, plus] - change[row, minus])
        slopes = np.zeros_like(change)
        np.add.at(slopes, (row, plus), pulled)
        np.subtract.at(slopes, (row, minus), pulled)
        return self.point.gradient(slopes)


def _solve_shifted(matrix: Array, shift: float, right: Array) -> Array:
    shifted = matrix.copy()
    shifted[np.diag_indices_from(shifted)] += shift
    factor = cho_factor(shifted, lower=True, overwrite_a=True, check_finite=False)
    return np.asarray(cho_solve(factor, right, check_finite=False))
