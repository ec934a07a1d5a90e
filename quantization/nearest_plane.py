"""Error feedback with a scale grid: Babai's nearest plane over many scales of every row at once.

With H = L'L (see :class:`quantization.problem.Factor`) the error of a row is |L d|², d = target - scale * codes,
and code j is chosen to make entry j least, given the codes before it. Rows and candidate scales are stacked
along the last axis, so the loop over columns runs once for all; updates within a block of columns are rank one,
those past it one matrix product.

For given codes the best scale is a quotient, ``s = q'Hw / q'Hq``, and the error left is ``w'Hw - (q'Hw)² / q'Hq``:
this refit, not the scale that made the codes, decides which candidate a row keeps.

Axes: ``n_in`` (in the order of processing), ``rows``, ``grid``, ``beam``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deploy.arrays import Array
from quantization.baselines import quantize_uniform
from quantization.problem import LayerProblem

__all__ = ["RowCodes", "better_rows", "refit", "round_with_feedback", "search_beam", "search_scales"]

_BLOCK = 32
_PORTION = 1 << 23
"""Codes that are searched at once."""


@dataclass(frozen=True, eq=False)
class RowCodes:
    """codes (rows, n_in) float64 integers, scale (rows,) >= 0, error (rows,) under the problem's hessian."""

    codes: Array
    scale: Array
    error: Array


def refit(problem: LayerProblem, codes: Array) -> RowCodes:
    """Give codes (rows, n_in) their least-squares scale; a row that would need a negative one is turned round."""
    codes = np.asarray(codes, dtype=np.float64)
    pull = np.einsum("ij,ji->i", codes, problem.pull)
    codes = np.where((pull < 0)[:, None], -codes, codes)
    pull = np.abs(pull)
    energy = np.einsum("ij,ij->i", codes @ problem.hessian, codes)
    safe = np.where(energy > 0, energy, 1.0)
    return RowCodes(codes, pull / safe, np.maximum(problem.energy - pull**2 / safe, 0.0))


def better_rows(first: RowCodes, second: RowCodes) -> RowCodes:
    """Keep, row by row, the one of less error (the first on a tie)."""
    take = second.error < first.error
    return RowCodes(
        np.where(take[:, None], second.codes, first.codes),
        np.where(take, second.scale, first.scale),
        np.where(take, second.error, first.error),
    )


def search_scales(
    problem: LayerProblem,
    levels: int,
    *,
    start: RowCodes | None = None,
    multipliers: Array | None = None,
    passes: int = 2,
) -> RowCodes:
    """Round with feedback at a grid of scales per row and keep the best after the refit.

    Parameters
    ----------
    levels : codes lie in -levels..levels.
    start : codes to begin from and never to fall behind; the weight-only optimum by default.
    multipliers : (grid,) of the row's current scale; the second pass searches a quarter of its width.
    """
    if multipliers is None:
        multipliers = np.linspace(0.55, 1.45, 10) if levels == 1 else np.linspace(0.7, 1.3, 10)
    best = start if start is not None else _plain_start(problem, levels)
    for index in range(passes):
        width = multipliers if index == 0 else 1 + (multipliers - multipliers.mean()) / 4**index
        best = better_rows(best, _search_grid(problem, best.scale[:, None] * width, levels))
    return best


def _search_grid(problem: LayerProblem, scales: Array, levels: int) -> RowCodes:
    """Best of a grid of scales (rows, grid) for each row, in portions that fit in memory."""
    rows, grid = scales.shape
    portion = max(1, _PORTION // (problem.weight.shape[1] * grid))
    found = [
        _best_of_grid(part, round_with_feedback(part, scales[begin : begin + portion], levels))
        for begin in range(0, rows, portion)
        for part in [problem.rows(slice(begin, begin + portion))]
    ]
    return (
        found[0]
        if len(found) == 1
        else RowCodes(*(np.concatenate(field) for field in zip(*map(_fields, found), strict=True)))
    )


def _fields(rows: RowCodes) -> tuple[Array, Array, Array]:
    return rows.codes, rows.scale, rows.error


def _plain_start(problem: LayerProblem, levels: int) -> RowCodes:
    codes = quantize_uniform(problem.target, levels).codes.astype(np.float64)
    codes[:, problem.dead] = 0.0
    return refit(problem, codes)


def _best_of_grid(problem: LayerProblem, codes: Array) -> RowCodes:
    """Refit codes (n_in, rows, grid) and keep the best of each row."""
    n_in, rows, grid = codes.shape
    pull = np.einsum("jrg,jr->rg", codes, problem.pull)
    flat = codes.reshape(n_in, rows * grid)
    energy = np.einsum("jk,jk->k", problem.hessian @ flat, flat).reshape(rows, grid)
    gain = np.where(energy > 0, np.maximum(pull, 0.0) ** 2 / np.where(energy > 0, energy, 1.0), 0.0)
    pick = np.argmax(gain, axis=1)
    return refit(problem, np.ascontiguousarray(codes[:, np.arange(rows), pick].T))


def round_with_feedback(problem: LayerProblem, scales: Array, levels: int) -> Array:
    """Choose codes column by column, each making up for those before it.

    Parameters
    ----------
    scales : (rows, grid) > 0 where a code may be non-zero.

    Returns
    -------
    codes : (n_in, rows, grid) float64 in the original order of columns.
    """
    order, lower = problem.factor.order, problem.factor.lower
    n_in, (rows, grid) = len(order), scales.shape
    target = np.repeat(problem.target.T[order], grid, axis=1)
    scale = scales.reshape(-1)
    inverse = np.where(scale > 0, 1 / np.where(scale > 0, scale, 1.0), 0.0)
    live = ~problem.dead[order]
    diagonal = np.diag(lower)
    carried = np.zeros_like(target)
    difference = np.empty_like(target)
    codes = np.zeros_like(target)
    for begin in range(0, n_in, _BLOCK):
        end = min(begin + _BLOCK, n_in)
        for j in range(begin, end):
            if live[j]:
                wanted = (target[j] + carried[j] / diagonal[j]) * inverse
                np.clip(np.rint(wanted, out=wanted), -levels, levels, out=codes[j])
            difference[j] = target[j] - scale * codes[j]
            carried[j + 1 : end] += lower[j + 1 : end, j, None] * difference[j]
        carried[end:] += lower[end:, begin:end] @ difference[begin:end]
    original = np.empty_like(codes)
    original[order] = codes
    return original.reshape(n_in, rows, grid)


def search_beam(
    problem: LayerProblem, start: RowCodes, levels: int, *, width: int, multipliers: Array, chunk: int = 2048
) -> RowCodes:
    """Refine rows by the K-best nearest plane: keep the `width` best partial assignments instead of one.

    Runs at each multiple of the row's scale; never worse than `start`, row by row.
    """
    best = start
    rows = len(start.scale)
    per_chunk = max(1, chunk // (width * len(multipliers)))
    for begin in range(0, rows, per_chunk):
        index = np.arange(begin, min(begin + per_chunk, rows))
        part = problem.rows(index)
        scales = start.scale[index, None] * multipliers
        found = _best_of_grid(part, _beam_codes(part, scales, levels, width))
        here = RowCodes(best.codes[index], best.scale[index], best.error[index])
        kept = better_rows(here, found)
        best.codes[index], best.scale[index], best.error[index] = kept.codes, kept.scale, kept.error
    return best


def _beam_codes(problem: LayerProblem, scales: Array, levels: int, width: int) -> Array:
    """The best assignment of each row and scale: (n_in, rows, grid) float64.

    Partial assignments live along one flat axis (rows * grid, beam); a step expands each by its three nearest codes
    and keeps the `width` of least partial error. Histories are permuted within the block at each step, and past
    it once a block.
    """
    order = problem.factor.order
    lower = problem.factor.lower.astype(np.float32)
    n_in, (rows, grid) = len(order), scales.shape
    lanes = rows * grid
    target = np.repeat(problem.target.T[order], grid, axis=1).astype(np.float32)
    scale = scales.reshape(-1).astype(np.float32)
    inverse = np.where(scale > 0, 1 / np.where(scale > 0, scale, 1), 0).astype(np.float32)[:, None]
    live = ~problem.dead[order]
    offsets = (np.arange(lanes) * width)[:, None]
    cost = np.full((lanes, width), np.inf, dtype=np.float32)
    cost[:, 0] = 0.0
    carried = np.zeros((n_in, lanes * width), dtype=np.float32)
    codes = np.zeros((n_in, lanes * width), dtype=np.int8)
    identity = np.arange(lanes * width)
    for begin in range(0, n_in, _BLOCK):
        end = min(begin + _BLOCK, n_in)
        difference = np.zeros((end - begin, lanes * width), dtype=np.float32)
        ancestor = identity
        for j in range(begin, end):
            diagonal = lower[j, j]
            wanted = target[j][:, None] + carried[j].reshape(lanes, width) / diagonal
            if live[j]:
                nearest = np.clip(np.rint(wanted * inverse), -levels, levels)
                side = np.where(wanted * inverse >= nearest, 1, -1).astype(np.float32)
                options = np.stack([nearest, nearest + side, nearest - side], axis=2)
                residual = diagonal * (wanted[:, :, None] - scale[:, None, None] * options)
                price = cost[:, :, None] + residual**2
                price[np.abs(options) > levels] = np.inf
                flat = price.reshape(lanes, width * 3)
                pick = np.argpartition(flat, width - 1, axis=1)[:, :width] if width > 1 else flat.argmin(1)[:, None]
                cost = np.take_along_axis(flat, pick, axis=1)
                chosen = np.take_along_axis(options.reshape(lanes, width * 3), pick, axis=1).reshape(-1)
                parent = (offsets + pick // 3).reshape(-1)
                carried[j + 1 : end] = carried[j + 1 : end].take(parent, axis=1)
                difference[: j - begin] = difference[: j - begin].take(parent, axis=1)
                codes[begin:j] = codes[begin:j].take(parent, axis=1)
                ancestor = ancestor.take(parent)
                codes[j] = chosen
            else:
                cost = cost + (diagonal * wanted) ** 2
            step = np.repeat(target[j], width) - np.repeat(scale, width) * codes[j]
            difference[j - begin] = step
            carried[j + 1 : end] += lower[j + 1 : end, j, None] * step
        if not np.array_equal(ancestor, identity):
            codes[:begin] = codes[:begin].take(ancestor, axis=1)
            carried[end:] = carried[end:].take(ancestor, axis=1)
        carried[end:] += lower[end:, begin:end] @ difference
    winner = (offsets[:, 0] + cost.argmin(axis=1)).astype(np.intp)
    original = np.empty((n_in, lanes))
    original[order] = codes[:, winner]
    return original.reshape(n_in, rows, grid)
