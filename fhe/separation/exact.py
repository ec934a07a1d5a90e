"""Can every calibration decision be kept, and by which coefficients closest to the anchor?

For a lift that is linear in its parameters the question is whether ``A θ + f > 0`` has a solution, one row of A for
each (row, other class). The squared hinge answers both ways: if its minimum reaches zero, θ is at hand; if not, the
shortfalls s at the minimum satisfy ``Aᵀ s = 0`` in the limit, which is Gordan's certificate that no θ exists
(Gordan, 1873; Mangasarian, "Nonlinear Programming", 1969, section 2.4).

Axes: ``batch``, ``classes``, ``parameters``, ``tight`` (rows of the working set).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from deploy.arrays import Array
from deploy.requirement import require
from fhe.separation.lift import Lift
from fhe.separation.losses import SquaredHinge
from fhe.separation.newton import minimise_anchored
from fhe.separation.targets import Targets

if TYPE_CHECKING:
    from deploy.progress import Progress

__all__ = ["Closest", "Verdict", "closest_separating", "decide_separability", "in_row_space"]

_SLACK = 1e-8
"""The quadratic program asks for so much more than gamma (relative), to outweigh its own tolerance."""

_MAX_TIGHT = 4000

_CANCELS = 1e-8
"""Shortfalls that cancel this well (in an orthonormal basis, so rows have size about 1) are worth making exact."""


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """Whether all decisions can be kept.

    Parameters
    ----------
    answer : "separable" (`parameters` keep all), "infeasible" (`shortfall` is a certificate up to rounding, to be
        made exact), or "undecided": neither was reached within the steps allowed.
    parameters : (parameters,) where the search ended.
    shortfall : (batch, classes) of each pair, summing to 1, or None where separable.
    residual : |Aᵀ shortfall|_1: no parameters of size R reach a margin above R · residual.
    """

    answer: Literal["separable", "infeasible", "undecided"]
    parameters: Array
    shortfall: Array | None
    residual: float


def decide_separability(
    lift: Lift, targets: Targets, anchor: Array, *, gamma: float, max_steps: int = 25, strongest: float = 1e9
) -> Verdict:
    """Climb in strength until all margins are positive, or until the shortfalls cancel.

    A jump to a large strength stalls (the Hessian is ill conditioned), hence the climb by factors of ten.
    """
    loss = SquaredHinge(targets, gamma)
    start, strength = anchor, 1e-1
    residual, shortfall = np.inf, None
    while strength <= strongest:
        fit = minimise_anchored(
            lift, loss, anchor=anchor, strength=strength, start=start, tolerance=1e-9, max_steps=max_steps
        )
        start = fit.parameters
        margins = targets.margins(fit.scores)
        if margins.min() > 0.5 * gamma:
            return Verdict("separable", start, None, 0.0)
        short = np.maximum(gamma - margins, 0.0)
        total = float(short.sum())
        slopes = short / total
        slopes[np.arange(len(slopes)), targets.chosen] = -slopes.sum(axis=1)
        residual = float(np.abs(lift.at(start).gradient(slopes)).sum())
        shortfall = short / total
        if residual < _CANCELS:
            return Verdict("infeasible", start, shortfall, residual)
        strength *= 10
    if targets.agrees(lift.at(start).scores).all():
        return Verdict("separable", start, None, 0.0)
    return Verdict("undecided", start, shortfall, residual)


@dataclass(frozen=True, slots=True, eq=False)
class Closest:
    """Parameters closest to the anchor that keep every margin at `gamma` or more.

    Parameters
    ----------
    parameters : (parameters,), or None where the program found none.
    distance : |parameters - anchor|.
    tight : number of constraints in the last working set.
    rounds : programs solved.
    least_margin : over all rows.
    """

    parameters: Array | None
    distance: float
    tight: int
    rounds: int
    least_margin: float


def closest_separating(
    lift: Lift,
    targets: Targets,
    anchor: Array,
    start: Array,
    *,
    gamma: float,
    progress: Progress,
    max_rounds: int = 30,
) -> Closest:
    """Minimise ``½ |θ - anchor|²`` with every margin at `gamma` or more, exactly.

    A quadratic program over the constraints that `start` nearly violates; then all margins are swept, violated ones
    join, until none is violated. The program over the last working set and the sweep together are the optimality
    conditions of the program over all constraints.
    """
    asked = gamma * (1 + _SLACK)
    theta = start
    row, other = _nearest(targets.margins(lift.at(theta).scores), 1.05 * gamma)
    with progress.stage("exact program") as advance:
        for rounds in range(1, max_rounds + 1):
            point = lift.at(anchor)
            matrix = point.rows(row, targets.chosen[row], other)
            margins = point.scores[row, targets.chosen[row]] - point.scores[row, other]
            step = _least_norm(matrix, asked - margins)
            advance(1)
            if step is None:
                return Closest(None, np.inf, len(row), rounds, -np.inf)
            theta = anchor + step
            all_margins = targets.margins(lift.at(theta).scores)
            new_row, new_other = np.nonzero(all_margins < gamma * (1 + _SLACK / 4))
            known = set(zip(row.tolist(), other.tolist(), strict=True))
            fresh = [pair for pair in zip(new_row.tolist(), new_other.tolist(), strict=True) if pair not in known]
            if not fresh:
                least = float(all_margins.min())
                return Closest(theta, float(np.linalg.norm(step)), len(row), rounds, least)
            row = np.append(row, [pair[0] for pair in fresh])
            other = np.append(other, [pair[1] for pair in fresh])
    return Closest(None, np.inf, len(row), max_rounds, -np.inf)


def _nearest(margins: Array, limit: float) -> tuple[Array, Array]:
    """Pairs below the limit, the closest few thousand at most."""
    row, other = np.nonzero(margins < limit)
    if len(row) > _MAX_TIGHT:
        keep = np.sort(np.argsort(margins[row, other], kind="stable")[:_MAX_TIGHT])
        row, other = row[keep], other[keep]
    return row, other


def _least_norm(matrix: Array, needed: Array) -> Array | None:
    """The shortest step with ``matrix @ step >= needed``, or None where the solver finds none.

    The answer is rebuilt from the multipliers' support by least squares and checked: a solver's status and last
    digits are not trusted.
    """
    if not len(needed) or (needed <= 0).all():
        return np.zeros(matrix.shape[1])
    cvxpy = require("cvxpy", extra="ckks")
    require("clarabel", extra="ckks")
    compact, back = in_row_space(matrix)
    step = cvxpy.Variable(compact.shape[1])
    constraint = compact @ step >= needed
    program = cvxpy.Problem(cvxpy.Minimize(0.5 * cvxpy.sum_squares(step)), [constraint])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            program.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10, max_iter=300)
    except cvxpy.error.SolverError:
        return None
    if step.value is None or constraint.dual_value is None:
        return None
    found = _polish(matrix, needed, np.asarray(constraint.dual_value).ravel())
    best = found if found is not None else back @ np.asarray(step.value)
    scale = float(np.abs(needed).max())
    return best if float((needed - matrix @ best).max()) <= 1e-6 * scale else None


def in_row_space(matrix: Array) -> tuple[Array, Array]:
    """Write rows (m, p) in an orthonormal basis of what they span, where m < p: (m, min(m, p)) and the way back.

    A shortest step lies in the span of its constraints, so a program over few of them needs no more variables than
    there are constraints, however wide the layer.
    """
    if matrix.shape[0] >= matrix.shape[1]:
        return matrix, np.eye(matrix.shape[1])
    basis, triangle = np.linalg.qr(matrix.T)
    return triangle.T, basis


def _polish(matrix: Array, needed: Array, multipliers: Array) -> Array | None:
    """Solve the equations of the active constraints; None unless the result satisfies all conditions."""
    active = multipliers > 1e-7 * max(float(multipliers.max()), 1e-300)
    tight = matrix[active]
    dual, *_ = np.linalg.lstsq(tight @ tight.T, needed[active], rcond=1e-13)
    step = tight.T @ dual
    good = dual.min(initial=0.0) >= -1e-9 * np.abs(dual).max(initial=1.0)
    scale = float(np.abs(needed).max())
    return np.asarray(step) if good and float((needed - matrix @ step).max()) <= 1e-10 * scale else None
