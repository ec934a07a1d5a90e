"""``fit=rch`` and ``fit=nu``: coefficients from the nearest points of reduced hulls, at any number of rows.

Axes: ``batch``, ``classes``, ``parameters``, ``reduced`` (coordinates that may move).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from deploy.arrays import Array
from fhe.separation.families import SharedFamily
from fhe.separation.hulls import ReducedHulls, reduced_hulls
from fhe.separation.losses import SquaredHinge
from fhe.separation.newton import minimise_anchored
from fhe.separation.problem import LastLayer
from fhe.separation.targets import Targets

__all__ = ["fit_hulls"]

_FIRST_ROWS = 1500

_CAPS = (1.0, 0.8, 0.6, 0.4, 0.3, 0.2, 0.15, 0.1, 0.08, 0.05, 0.03, 0.02, 0.01, 0.005, 0.002, 0.001)

_APART = 1e-3
"""Hulls closer than this share of a row's size count as overlapping."""


def fit_hulls(
    last: LastLayer, targets: Targets, *, cap: float, shared: SharedFamily | None = None, two_hulls: bool
) -> tuple[Array, dict[str, Any]]:
    """Fit by reduced hulls, then scale the scores to the original's size (decisions do not depend on it).

    Parameters
    ----------
    cap : mu, lowered along a fixed ladder until the hulls are apart (the largest mu that separates does best), but
        never below what a class's number of rows allows.
    shared : coordinates of the shared polynomial, or None for per-unit ones.
    two_hulls : for two classes, one hull each and a free threshold between them; otherwise one hull of all pairwise
        differences, with the constants among the coordinates.

    Returns
    -------
    parameters of `last`, and what is reported: rho, gap, margin errors, support vectors.
    """
    lift = last.lift
    count = lift.features.shape[1]
    directions = np.eye(lift.size)[:, : count if two_hulls else lift.size]
    if shared is not None:
        directions = shared.powers if two_hulls else shared.lift.directions
    origin = np.zeros(lift.size)
    origin[count:] = -np.asarray(lift.fixed)
    row, other = np.nonzero(targets.counts)
    chosen = targets.chosen[row]
    groups = chosen if two_hulls else np.zeros(len(row), dtype=np.int64)
    point = lift.at(origin)

    def rows_of(which: Array) -> Array:
        return np.asarray(point.rows(row[which], chosen[which], other[which]) @ directions)

    members = np.bincount(groups)
    first = _first_rows(last, targets, row, other)
    for lower in (cap, *(value for value in _CAPS if value < cap)):
        caps = np.maximum(lower, 1.0 / members)
        hulls, used = _solve_by_working_set(rows_of, groups, caps, first)
        if hulls.apart > _APART:
            break
    step = directions @ hulls.theta
    if two_hulls:
        threshold = (hulls.rho[1] - hulls.rho[0]) / 2
        step[count:] += np.array([threshold, -threshold]) / 2
    scores = lift.at(origin + step).scores
    ours, theirs = (a - a.mean(axis=1, keepdims=True) for a in (scores, targets.scores))
    overlap, size = float(np.vdot(ours, theirs)), float(np.vdot(ours, ours))
    scale = overlap / size if overlap > 0 and size > 0 else 1.0
    return origin + scale * step, {
        "caps": caps.tolist(),
        "apart": hulls.apart,
        "rho": hulls.rho.tolist(),
        "gap": hulls.gap,
        "margin_errors": list(hulls.errors),
        "support_vectors": list(hulls.supports),
        "working_set": used,
    }


def _first_rows(last: LastLayer, targets: Targets, row: Array, other: Array) -> Array:
    """Constraints that a squared-hinge fit finds hardest, the first working set."""
    if len(row) <= _FIRST_ROWS:
        return np.arange(len(row))
    fit = minimise_anchored(
        last.lift, SquaredHinge(targets, 1.0), anchor=last.anchor, strength=0.1, tolerance=1e-3, max_steps=10
    )
    margins = targets.margins(fit.scores)[row, other]
    return np.sort(np.argsort(margins, kind="stable")[:_FIRST_ROWS])


def _solve_by_working_set(rows_of: Any, groups: Array, caps: Array, first: Array) -> tuple[ReducedHulls, int]:
    """Solve over a few constraints; those left out with a reach below their group's rho join, until none is."""
    working = _enough(first, groups, caps)
    for _ in range(30):
        hulls = reduced_hulls(rows_of(working), groups[working], caps)
        outside = np.setdiff1d(np.arange(len(groups)), working, assume_unique=True)
        if not len(outside):
            break
        reach = np.concatenate(
            [rows_of(part) @ hulls.theta for part in np.array_split(outside, 1 + len(outside) // 8192)]
        )
        short = hulls.rho[groups[outside]] - reach
        wrong = outside[short > 1e-7 * np.abs(hulls.rho).max()]
        if not len(wrong):
            break
        worst = wrong[np.argsort(-short[np.isin(outside, wrong)], kind="stable")[:_FIRST_ROWS]]
        working = np.union1d(working, worst)
    return hulls, len(working)


def _enough(first: Array, groups: Array, caps: Array) -> Array:
    """Add rows of a group whose cap asks for more than are there."""
    chosen = [first]
    for group, cap in enumerate(caps):
        needed = int(np.ceil(1 / cap)) + 1
        mine = np.flatnonzero(groups == group)
        if np.count_nonzero(groups[first] == group) < needed:
            chosen.append(mine[: 2 * needed])
    return np.unique(np.concatenate(chosen))
