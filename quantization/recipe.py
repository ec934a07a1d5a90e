"""How a layer is quantised, as a value, and the one function that does it.

A recipe names a quantiser and how its problem is posed. Whatever the quantiser, the result is planes of codes and
scales; the bias follows in :mod:`quantization.layerwise`.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from deploy.arrays import Array
from quantization.baselines import (
    Granularity,
    quantize_absmean,
    quantize_exact,
    quantize_sign,
    quantize_twn,
    quantize_uniform,
)
from quantization.compound import protect_columns, split_nine_levels
from quantization.descent import descend
from quantization.nearest_plane import RowCodes, search_beam, search_scales
from quantization.network import Plane
from quantization.problem import LayerProblem, pose_problem

__all__ = ["Method", "Recipe", "column_factors", "quantize_rows"]

Method = Literal["absmean", "twn", "exact", "sign", "uniform", "feedback"]

_WEIGHT_ONLY: dict[str, Callable[[Array, Granularity], Plane]] = {
    "absmean": quantize_absmean,
    "twn": quantize_twn,
    "exact": quantize_exact,
    "sign": quantize_sign,
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to quantise one layer.

    Parameters
    ----------
    method : a weight-only rule of :mod:`quantization.baselines`, or "feedback": nearest plane, scale grid.
    granularity : what shares a scale (weight-only rules; feedback always has one scale a row).
    levels : codes lie in -levels..levels (feedback and uniform).
    damping : λ of :func:`quantization.problem.pose_problem`.
    weighting : which rows count how much: "uniform", "rows" (1 - Σ p²) or "outputs" (p (1 - p) for each output; the
        last layer only, elsewhere it means "rows").
    beam : width of the K-best refinement, 0 for none.
    descent : sweeps of coordinate descent at the end.
    grid : scales that the first pass tries per row.
    balance : exponent of the column norms that column factors take out: 0 for none, 1 for columns of equal norm.
    planes : 2 for two trit planes (feedback only; `levels` is then not used).
    protected : share of columns that stay in int8 (feedback only).
    """

    method: Method = "feedback"
    granularity: Granularity = "row"
    levels: int = 1
    damping: float = 0.003
    weighting: Literal["uniform", "rows", "outputs"] = "rows"
    beam: int = 0
    descent: int = 4
    grid: int = 10
    balance: float = 0.0
    planes: int = 1
    protected: float = 0.0

    @property
    def name(self) -> str:
        """A short name for reports."""
        if self.method != "feedback":
            return (
                f"{self.method}/{self.granularity}" if self.levels == 1 else f"{self.method}{2 * self.levels + 1}"
            )
        grid = "two planes" if self.planes == 2 else f"feedback{2 * self.levels + 1}"
        parts = [grid, f"damping {self.damping:g}", self.weighting]
        if self.beam:
            parts.append(f"beam {self.beam}")
        if self.protected:
            parts.append(f"{self.protected:.0%} of columns int8")
        if self.balance:
            parts.append(f"columns balanced {self.balance:g}")
        return ", ".join(parts)

    @property
    def needs_rows(self) -> bool:
        """Whether the codes depend on calibration rows."""
        return self.method == "feedback"


def column_factors(weight: Array, balance: float) -> Array | None:
    """Powers of two near norm^balance of each column of weight (n_out, n_in), 1 in the geometric mean; None for 0.

    A ternary row has one scale, so columns of unequal size (raw features with their standard deviations folded in)
    cannot all be met; scaling the input instead is free inside a network and one exponent a feature in front of it.
    """
    if not balance:
        return None
    norms = np.sqrt((weight**2).mean(axis=0))
    live = norms > 0
    if not live.any():
        return None
    exponents = np.zeros(len(norms))
    exponents[live] = balance * (np.log2(norms[live]) - np.log2(norms[live]).mean())
    return np.asarray(2.0 ** np.clip(np.rint(exponents), -60, 60))


def quantize_rows(
    recipe: Recipe,
    weight: Array,
    exact: Array,
    quantized: Array,
    *,
    row_weights: Array | None,
    output_weights: Array | None = None,
) -> tuple[Plane, ...]:
    """Quantise weight (n_out, n_in) given what the layer sees, exact and quantised: (batch, n_in) each.

    `output_weights` (batch, n_out) poses a problem of its own for each output.
    """
    if recipe.method == "uniform":
        return (quantize_uniform(weight, recipe.levels),)
    if recipe.method != "feedback":
        return (_WEIGHT_ONLY[recipe.method](weight, recipe.granularity),)
    shares = None if recipe.weighting == "uniform" else row_weights
    if recipe.weighting != "outputs" or output_weights is None:
        return _solve(recipe, pose_problem(weight, exact, quantized, row_weights=shares, damping=recipe.damping))
    rows = [
        _solve(recipe, pose_problem(weight[[row]], exact, quantized, row_weights=share, damping=recipe.damping))
        for row, share in enumerate(output_weights.T)
    ]
    return tuple(
        replace(
            planes[0],
            codes=np.concatenate([plane.codes for plane in planes]),
            scales=np.concatenate([plane.scales for plane in planes]),
        )
        for planes in zip(*rows, strict=True)
    )


def _solve(recipe: Recipe, problem: LayerProblem) -> tuple[Plane, ...]:
    """Planes of all rows of a problem."""
    if recipe.planes == 2:
        return split_nine_levels(problem, _search(recipe, problem, 4))
    if recipe.protected:
        return protect_columns(problem, recipe.protected, partial(_search, recipe), recipe.levels)
    found = _search(recipe, problem, recipe.levels)
    return (Plane(found.codes, found.scale[:, None], recipe.levels),)


def _search(recipe: Recipe, problem: LayerProblem, levels: int) -> RowCodes:
    """Scale grid, beam, descent: one code matrix."""
    low, high = (0.55, 1.45) if levels == 1 else (0.7, 1.3)
    width = np.linspace(low, high, recipe.grid) if recipe.grid > 1 else np.ones(1)
    found = search_scales(problem, levels, multipliers=width)
    if recipe.beam:
        nearby = np.linspace(0.8, 1.2, 9) if problem.weight.shape[1] <= 128 else np.linspace(0.92, 1.08, 5)
        found = search_beam(problem, found, levels, width=recipe.beam, multipliers=nearby)
    return descend(problem, found, levels, sweeps=recipe.descent)
