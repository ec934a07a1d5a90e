"""Anchored convex fits by semismooth Newton, and their Levenberg–Marquardt form for deep networks.

Minimises ``½ |θ - anchor|² + strength · loss(scores(θ))``. For a lift that is linear in θ and the squared hinge the
objective is piecewise quadratic and strongly convex, so Newton's method with a line search ends at the minimum after
finitely many steps (Mangasarian, "A finite Newton method for classification", 2002). For a deep network the scores
are linearised at each step (Gauss–Newton) and a step is taken only if the true objective falls.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deploy.arrays import Array
from fhe.separation.lift import Lift, Point
from fhe.separation.losses import Loss, Pairs
from fhe.separation.newton_system import NewtonSystem, newton_system

__all__ = ["Fit", "minimise_anchored"]

PAIRS_PER_PARAMETER = 64
"""More pairs than this are thinned: a Hessian from so many is off by about an eighth, the step is searched along, and
near the solution of a hinge few pairs are left, so that its last steps are exact."""


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Where a fit ended.

    Parameters
    ----------
    parameters : (parameters,).
    scores : (batch, classes) at these parameters.
    objective, gradient_norm, steps : at the end.
    converged : the gradient is small; False is a result too (the step limit), and not an error.
    """

    parameters: Array
    scores: Array
    objective: float
    gradient_norm: float
    steps: int
    converged: bool


def minimise_anchored(
    lift: Lift,
    loss: Loss,
    *,
    anchor: Array,
    strength: float,
    start: Array | None = None,
    tolerance: float = 1e-6,
    max_steps: int = 50,
) -> Fit:
    """Minimise ``½ |θ - anchor|² + strength · loss``; deterministic.

    Parameters
    ----------
    lift, loss : over the same rows.
    anchor : (parameters,), where a fit without any loss would stay.
    start : (parameters,), or the anchor. Large strengths want the solution of a smaller one here.
    tolerance : on |gradient|, relative to 1 + |gradient of the loss's part|.
    max_steps : Newton steps at most; reaching it is a result (``converged`` is False).
    """
    objective = _Objective(lift, loss, anchor, strength)
    theta = (anchor if start is None else start).copy()
    point = lift.at(theta)
    here = _Place(theta, point, objective.value(theta, point.scores))
    damping = 1e-3
    norm, converged, step = np.inf, False, 0
    for step in range(max_steps + 1):
        pull = strength * here.point.gradient(loss.slopes(here.point.scores))
        gradient = here.theta - anchor + pull
        norm = float(np.linalg.norm(gradient))
        if norm <= tolerance * (1.0 + float(np.linalg.norm(pull))):
            converged = True
            break
        if step == max_steps:
            break
        row, plus, minus, weight = _thinned(loss.pairs(here.point.scores), PAIRS_PER_PARAMETER * lift.size)
        system = newton_system(lift, here.point, (row, plus, minus, strength * weight))
        if lift.linear:
            moved = _search_line(objective, here, gradient, system)
        else:
            moved, damping = _damped_step(objective, here, gradient, system, damping)
        if moved is None:
            break
        here = moved
    return Fit(here.theta, here.point.scores, here.value, norm, step, converged)


def _thinned(pairs: Pairs, most: int) -> Pairs:
    """Every k-th pair with k times its weight, where there are more than a good step needs."""
    stride = -(-len(pairs[0]) // most)
    if stride <= 1:
        return pairs
    row, plus, minus, weight = (values[::stride] for values in pairs)
    return row, plus, minus, weight * stride


@dataclass(frozen=True, slots=True, eq=False)
class _Objective:
    """½ |θ - anchor|² + strength · loss, over a lift."""

    lift: Lift
    loss: Loss
    anchor: Array
    strength: float

    def value(self, theta: Array, scores: Array) -> float:
        away = theta - self.anchor
        return 0.5 * float(away @ away) + self.strength * self.loss.value(scores)


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """Parameters, the lift there, and the objective."""

    theta: Array
    point: Point
    value: float


def _search_line(objective: _Objective, here: _Place, gradient: Array, system: NewtonSystem) -> _Place | None:
    """Halve the Newton step until the objective falls; the scores are linear, so they are computed once."""
    direction = system.step(gradient)
    slope = float(gradient @ direction)
    change = here.point.derivative(direction)
    size = 1.0
    for _ in range(30):
        new = here.theta + size * direction
        value = objective.value(new, here.point.scores + size * change)
        if value <= here.value + 1e-4 * size * slope:
            return _Place(new, objective.lift.at(new), value)
        size /= 2
    return None


def _damped_step(
    objective: _Objective, here: _Place, gradient: Array, system: NewtonSystem, damping: float
) -> tuple[_Place | None, float]:
    """Raise the damping until the true objective falls; lower it after a success."""
    mean = max(system.mean_curvature, 1e-12)
    for _ in range(12):
        new = here.theta + system.step(gradient, damping * mean)
        point = objective.lift.at(new)
        with np.errstate(over="ignore", invalid="ignore"):
            value = objective.value(new, point.scores)
        if np.isfinite(value) and value < here.value:
            return _Place(new, point, value), max(damping / 5, 1e-9)
        damping = max(damping * 4, 1e-6)
    return None, damping
