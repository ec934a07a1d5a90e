"""Reduced convex hulls, their nu-form, and the linear soft margin: the other objectives of the separation theory.

With rows r of a homogeneous separation problem (scores difference = θ·r), in groups g (the two classes of a binary
problem, or one group of pairwise differences):

    minimise ½ |θ|² - Σ_g ρ_g + Σ_i μ_g(i) ξ_i   subject to   θ·r_i >= ρ_g(i) - ξ_i,  ξ >= 0.

Its dual is the nearest point problem of reduced hulls: multipliers of a group sum to 1 and none exceeds μ; θ is the
combination ``Σ λ_i r_i``. With μ = 1 the hulls are whole. A row with ξ > 0 has λ = μ, so there are at most 1/μ of them
in a group, and at least 1/μ rows have λ > 0 (Crisp and Burges, 1999; Bennett and Bredensteiner, 2000).

Axes: ``rows``, ``parameters``, ``groups``.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from deploy.arrays import Array
from deploy.errors import UsageError
from deploy.requirement import require
from fhe.separation.exact import in_row_space
from fhe.separation.lift import Lift
from fhe.separation.losses import SquaredHinge
from fhe.separation.newton import minimise_anchored
from fhe.separation.targets import Targets

__all__ = ["ReducedHulls", "reduced_hulls", "soft_margin"]


@dataclass(frozen=True, slots=True, eq=False)
class ReducedHulls:
    """Where the reduced hulls come closest.

    Parameters
    ----------
    theta : (parameters,) normal of the separating plane, ``Σ λ_i r_i``.
    rho : (groups,) offsets; their sum is |θ|² at the optimum where no hull is shared.
    multipliers : (rows,).
    apart : distance of the hulls over the mean size of a row; about 0 where they overlap and nothing separates.
    gap : primal minus dual objective, relative to 1 + |primal|.
    errors : rows (per group) with ξ > 0.
    supports : rows (per group) with λ > 0.
    """

    theta: Array
    rho: Array
    multipliers: Array
    apart: float
    gap: float
    errors: tuple[int, ...]
    supports: tuple[int, ...]


def reduced_hulls(rows: Array, groups: Array, caps: Array) -> ReducedHulls:
    """Solve the program above over all `rows` (rows, parameters).

    Parameters
    ----------
    groups : (rows,) group of each row, 0, 1, ….
    caps : (groups,) mu of each group, from 1/(its rows) to 1.

    Raises
    ------
    UsageError : a cap so small that its group's multipliers cannot sum to 1.
    """
    counts = np.bincount(groups, minlength=len(caps))
    for group, (cap, count) in enumerate(zip(caps, counts, strict=True)):
        if cap * count < 1 - 1e-12:
            raise UsageError(
                f"a cap of {cap:g} over {count} rows of group {group} cannot sum to 1",
                remedy=f"ask for a cap of {1 / count:.3g} or more",
            )
    cvxpy = require("cvxpy", extra="ckks")
    require("clarabel", extra="ckks")
    size = float(np.sqrt((rows * rows).sum(axis=1)).mean()) or 1.0
    scaled = rows / size
    multipliers = cvxpy.Variable(len(rows), nonneg=True)
    belongs = (groups[None] == np.arange(len(caps))[:, None]).astype(np.float64)
    constraints = [belongs @ multipliers == 1, multipliers <= caps[groups]]
    program = cvxpy.Problem(cvxpy.Minimize(0.5 * cvxpy.sum_squares(scaled.T @ multipliers)), constraints)
    _solve(cvxpy, program)
    found = np.clip(np.asarray(multipliers.value), 0.0, caps[groups])
    for group in range(len(caps)):
        found[groups == group] = _on_simplex(found[groups == group], float(caps[group]))
    theta = scaled.T @ found
    reach = scaled @ theta
    rho = np.array([_best_offset(reach[groups == g], float(caps[g])) for g in range(len(caps))])
    short = np.maximum(rho[groups] - reach, 0.0)
    primal = 0.5 * float(theta @ theta) - float(rho.sum()) + float((caps[groups] * short).sum())
    dual = -0.5 * float(theta @ theta)
    slack = 1e-6 * max(1.0, float(np.abs(reach).max()))
    return ReducedHulls(
        theta=theta * size,
        rho=rho * size**2,
        multipliers=found,
        apart=float(np.linalg.norm(theta)),
        gap=(primal - dual) / (1.0 + abs(primal)),
        errors=tuple(int(np.count_nonzero(short[groups == g] > slack)) for g in range(len(caps))),
        supports=tuple(int(np.count_nonzero(found[groups == g] > 1e-9 * caps[g])) for g in range(len(caps))),
    )


def _best_offset(reach: Array, cap: float) -> float:
    """The ρ that maximises ρ - cap · Σ max(0, ρ - reach): the smallest reach at which 1/cap rows lie below."""
    ordered = np.sort(reach)
    return float(ordered[min(int(np.ceil(1 / cap - 1e-9)), len(ordered)) - 1])


def _on_simplex(values: Array, cap: float) -> Array:
    """Nearest point with sum 1 and entries in [0, cap], by bisection on the shift."""
    low, high = float(values.min()) - 1.0, float(values.max()) + 1.0
    for _ in range(200):
        shift = (low + high) / 2
        if np.clip(values - shift, 0.0, cap).sum() > 1.0:
            low = shift
        else:
            high = shift
    return np.asarray(np.clip(values - (low + high) / 2, 0.0, cap))


def _solve(cvxpy: Any, program: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            program.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11, max_iter=400)
        except cvxpy.error.SolverError:  # too strict for this one
            program.solve(solver=cvxpy.CLARABEL)


def soft_margin(
    lift: Lift, targets: Targets, anchor: Array, *, gamma: float, strength: float, max_rounds: int = 20
) -> Array:
    """Minimise ``½ |θ - anchor|² + strength · Σ_n max(0, gamma - least margin of row n)``.

    One slack a row, over all its pairs, as in the multiclass soft margin of Crammer and Singer (2001). Solved over
    the rows that fall short at the squared-hinge solution; others join while they fall short.
    """
    cvxpy = require("cvxpy", extra="ckks")
    require("clarabel", extra="ckks")
    start = minimise_anchored(lift, SquaredHinge(targets, gamma), anchor=anchor, strength=strength / gamma)
    theta = start.parameters
    base = lift.at(anchor)
    row, other = np.nonzero(targets.margins(start.scores) < 1.05 * gamma)
    for _ in range(max_rounds):
        if not len(row):
            return np.asarray(theta)
        owners, owner = np.unique(row, return_inverse=True)
        matrix = base.rows(row, targets.chosen[row], other)
        margins = base.scores[row, targets.chosen[row]] - base.scores[row, other]
        compact, back = in_row_space(matrix)
        step, slack = cvxpy.Variable(compact.shape[1]), cvxpy.Variable(len(owners), nonneg=True)
        objective = 0.5 * cvxpy.sum_squares(step) + strength * cvxpy.sum(slack)
        _solve(cvxpy, cvxpy.Problem(cvxpy.Minimize(objective), [compact @ step + slack[owner] >= gamma - margins]))
        theta = anchor + back @ np.asarray(step.value)
        short_row, short_other = np.nonzero(targets.margins(lift.at(theta).scores) < gamma * (1 - 1e-6))
        known = set(zip(row.tolist(), other.tolist(), strict=True))
        fresh = [p for p in zip(short_row.tolist(), short_other.tolist(), strict=True) if p not in known]
        if not fresh:
            return np.asarray(theta)
        row = np.append(row, [pair[0] for pair in fresh])
        other = np.append(other, [pair[1] for pair in fresh])
    return np.asarray(theta)
