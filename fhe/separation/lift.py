"""Scores as a function of the coefficients: linear for one hidden layer, differentiable for more.

A lift holds the calibration rows in the space where the fit happens. It never forms the matrix of all constraints:
scores are one product of the lifted rows with the weights that the coefficients imply, gradients one product back, and
curvature is summed over the few pairs of outputs that a loss asks for.

Axes: ``batch``, ``classes``, ``units``, ``powers``, ``parameters``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from deploy.arrays import Array

__all__ = ["HeadLift", "Lift", "Point", "ReducedLift", "UnitLift"]

BLOCK_NUMBERS = 1 << 23
"""Numbers in one block of constraint rows: 64 MB."""


class Point(Protocol):
    """A lift at given coefficients."""

    @property
    def scores(self) -> Array:
        """(batch, classes)."""
        ...

    def gradient(self, slopes: Array) -> Array:
        """Pull the slopes of a loss by the scores (batch, classes) back: (parameters,)."""
        ...

    def derivative(self, direction: Array) -> Array:
        """How fast the scores change along a direction (parameters,): (batch, classes)."""
        ...

    def rows(self, row: Array, plus: Array, minus: Array) -> Array:
        """Derivative of ``scores[row, plus] - scores[row, minus]`` by the parameters: (pairs, parameters)."""
        ...


class Lift(Protocol):
    """Calibration rows in the space of the coefficients."""

    @property
    def linear(self) -> bool:
        """Scores are linear in the parameters, so that fits are convex."""
        ...

    @property
    def size(self) -> int:
        """Number of parameters."""
        ...

    @property
    def work(self) -> int:
        """Multiplications that a derivative of the scores, or a gradient, takes over all rows."""
        ...

    def __len__(self) -> int: ...

    def at(self, parameters: Array) -> Point:
        """Evaluate all rows."""
        ...

    def take(self, rows: Array) -> Self:
        """The same for some rows."""
        ...


def sum_curvature(point: Point, size: int, row: Array, plus: Array, minus: Array, weight: Array) -> Array:
    """Sum ``weight · r rᵀ`` over pairs of outputs, r as :meth:`Point.rows` gives it: (parameters, parameters)."""
    special = getattr(point, "curvature", None)
    if special is not None:
        return np.asarray(special(row, plus, minus, weight))
    total = np.zeros((size, size))
    step = max(1, BLOCK_NUMBERS // size)
    root = np.sqrt(weight)
    for start in range(0, len(row), step):
        part = slice(start, start + step)
        block = point.rows(row[part], plus[part], minus[part])
        block *= root[part, None]
        total += block.T @ block
    return total


@dataclass(frozen=True, slots=True, eq=False)
class UnitLift:
    """One polynomial per unit before a linear output: scores = fixed + Σ_jp weight_kj θ_pj q_p(z_j) + θ_k.

    Parameters
    ----------
    features : (batch, powers · units) values of the basis, power by power.
    weight : (classes, units) output weights of these units.
    fixed : (batch, classes) everything that no parameter moves, or (classes,) where that is the same for all rows.

    The parameters are the coefficients, power by power, then one constant per class.
    """

    features: Array
    weight: Array
    fixed: Array
    linear: bool = True

    @property
    def powers(self) -> int:
        """Degree of the polynomials."""
        return int(self.features.shape[1] // max(1, self.weight.shape[1]))

    @property
    def size(self) -> int:
        """Number of parameters."""
        return int(self.features.shape[1] + self.weight.shape[0])

    @property
    def work(self) -> int:
        """Multiplications that a derivative of the scores, or a gradient, takes over all rows."""
        return int(self.features.size * self.weight.shape[0])

    def __len__(self) -> int:
        return len(self.features)

    def at(self, parameters: Array) -> Point:
        """Evaluate all rows."""
        return _UnitPoint(self, self.moved(parameters) + self.fixed)

    def moved(self, parameters: Array) -> Array:
        """The part of the scores that is linear in the parameters: (batch, classes)."""
        width = self.features.shape[1]
        spread = np.tile(self.weight, self.powers) * parameters[:width]
        return np.asarray(self.features @ spread.T + parameters[width:])

    def take(self, rows: Array) -> UnitLift:
        """The same for some rows."""
        fixed = self.fixed[rows] if self.fixed.ndim == 2 else self.fixed
        return UnitLift(self.features[rows], self.weight, fixed)


@dataclass(frozen=True, slots=True, eq=False)
class _UnitPoint:
    lift: UnitLift
    scores: Array

    def derivative(self, direction: Array) -> Array:
        return self.lift.moved(direction)

    def gradient(self, slopes: Array) -> Array:
        lift = self.lift
        back = slopes.T @ lift.features
        return np.concatenate([(back * np.tile(lift.weight, lift.powers)).sum(axis=0), slopes.sum(axis=0)])

    def rows(self, row: Array, plus: Array, minus: Array) -> Array:
        lift = self.lift
        width = lift.features.shape[1]
        block = np.zeros((len(row), lift.size))
        difference = lift.weight[plus] - lift.weight[minus]
        block[:, :width] = lift.features[row]
        block[:, :width].reshape(len(row), lift.powers, difference.shape[1])[:] *= difference[:, None]
        place = np.arange(len(row))
        block[place, width + plus] = 1.0
        block[place, width + minus] -= 1.0
        return block


@dataclass(frozen=True, slots=True, eq=False)
class HeadLift:
    """Output weights free too: scores_k = fixed_k + Σ_i θ_ki features_i + θ_k.

    The parameters are one row of weights per class, then one constant per class.
    """

    features: Array
    classes: int
    fixed: Array
    linear: bool = True

    @property
    def size(self) -> int:
        """Number of parameters."""
        return int(self.classes * (self.features.shape[1] + 1))

    @property
    def work(self) -> int:
        """Multiplications that a derivative of the scores, or a gradient, takes over all rows."""
        return int(self.features.size * self.classes)

    def __len__(self) -> int:
        return len(self.features)

    def at(self, parameters: Array) -> Point:
        """Evaluate all rows."""
        return _HeadPoint(self, self.moved(parameters) + self.fixed)

    def moved(self, parameters: Array) -> Array:
        """The part of the scores that is linear in the parameters: (batch, classes)."""
        width = self.features.shape[1]
        weights = parameters[: self.classes * width].reshape(self.classes, width)
        return np.asarray(self.features @ weights.T + parameters[self.classes * width :])

    def take(self, rows: Array) -> HeadLift:
        """The same for some rows."""
        fixed = self.fixed[rows] if self.fixed.ndim == 2 else self.fixed
        return HeadLift(self.features[rows], self.classes, fixed)


@dataclass(frozen=True, slots=True, eq=False)
class _HeadPoint:
    lift: HeadLift
    scores: Array

    def derivative(self, direction: Array) -> Array:
        return self.lift.moved(direction)

    def gradient(self, slopes: Array) -> Array:
        return np.concatenate([(slopes.T @ self.lift.features).ravel(), slopes.sum(axis=0)])

    def rows(self, row: Array, plus: Array, minus: Array) -> Array:
        lift = self.lift
        width = lift.features.shape[1]
        block = np.zeros((len(row), lift.size))
        weights = block[:, : lift.classes * width].reshape(len(row), lift.classes, width)
        place = np.arange(len(row))
        weights[place, plus] = lift.features[row]
        weights[place, minus] -= lift.features[row]
        block[place, lift.classes * width + plus] = 1.0
        block[place, lift.classes * width + minus] -= 1.0
        return block

    def curvature(self, row: Array, plus: Array, minus: Array, weight: Array) -> Array:
        """Sum by pairs of classes: each touches four blocks of the matrix and nothing else."""
        lift = self.lift
        width, classes = lift.features.shape[1], lift.classes
        blocks = np.zeros((classes, width + 1, classes, width + 1))
        low, high = np.minimum(plus, minus), np.maximum(plus, minus)
        for first, second in np.unique(np.stack([low, high], axis=1), axis=0).tolist():
            mine = (low == first) & (high == second)
            part = np.hstack([lift.features[row[mine]], np.ones((int(mine.sum()), 1))])
            part *= np.sqrt(weight[mine])[:, None]
            gram = part.T @ part
            blocks[first, :, first, :] += gram
            blocks[second, :, second, :] += gram
            blocks[first, :, second, :] -= gram
            blocks[second, :, first, :] -= gram
        order = np.concatenate(
            [
                np.arange(classes * (width + 1)).reshape(classes, width + 1)[:, :width].ravel(),
                np.arange(classes) * (width + 1) + width,
            ]
        )
        return np.asarray(blocks.reshape(classes * (width + 1), -1)[np.ix_(order, order)])


@dataclass(frozen=True, slots=True, eq=False)
class ReducedLift:
    """A lift whose parameters are ``offset + directions @ reduced``: the shared polynomial, for one.

    Parameters
    ----------
    whole : the lift.
    directions : (parameters, reduced).
    offset : (parameters,).
    """

    whole: Lift
    directions: Array
    offset: Array

    @property
    def linear(self) -> bool:
        """Linear where the whole is."""
        return self.whole.linear

    @property
    def size(self) -> int:
        """Number of reduced parameters."""
        return int(self.directions.shape[1])

    @property
    def work(self) -> int:
        """Multiplications that a derivative of the scores, or a gradient, takes over all rows."""
        return self.whole.work + int(self.directions.size)

    def __len__(self) -> int:
        return len(self.whole)

    def expand(self, parameters: Array) -> Array:
        """Parameters of the whole."""
        return np.asarray(self.offset + self.directions @ parameters)

    def at(self, parameters: Array) -> Point:
        """Evaluate all rows."""
        inner = self.whole.at(self.expand(parameters))
        return _ReducedPoint(self, inner, inner.scores)

    def take(self, rows: Array) -> ReducedLift:
        """The same for some rows."""
        return ReducedLift(self.whole.take(rows), self.directions, self.offset)


@dataclass(frozen=True, slots=True, eq=False)
class _ReducedPoint:
    lift: ReducedLift
    inner: Point
    scores: Array

    def derivative(self, direction: Array) -> Array:
        return self.inner.derivative(self.lift.directions @ direction)

    def gradient(self, slopes: Array) -> Array:
        return np.asarray(self.lift.directions.T @ self.inner.gradient(slopes))

    def rows(self, row: Array, plus: Array, minus: Array) -> Array:
        return np.asarray(self.inner.rows(row, plus, minus) @ self.lift.directions)
