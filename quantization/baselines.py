"""Quantisers that look at the weights alone.

========  =======================================================================================================
absmean   scale mean |w|, code clip(round(w / scale)): BitNet b1.58 (Ma et al., arXiv 2402.17764)
twn       threshold 0.7 mean |w|, scale the mean of what is kept: Li et al., arXiv 1605.04711
exact     the least-squares ternary: sort |w|, keep the k largest where (Σ_{i<=k} |w|_(i))² / k is largest
sign      scale mean |w|, code sign(w): binary, the W_T of the sign-magnitude analysis (arXiv 2605.18933)
========  =======================================================================================================

`exact` is a proof in one line: for a support S the best scale is the mean of |w| over S, the error that is left is
``‖w‖² - (Σ_S |w|)² / |S|``, and for each size the best S holds the largest magnitudes.

Axes: ``n_in``, ``n_out``, ``groups``.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from deploy.arrays import Array
from quantization.network import Plane

__all__ = ["Granularity", "quantize_absmean", "quantize_exact", "quantize_sign", "quantize_twn", "quantize_uniform"]

Granularity = Literal["tensor", "row"] | int
"""What shares a scale: the whole tensor, a row, or a run of that many columns of a row."""


def quantize_absmean(weight: Array, granularity: Granularity = "tensor") -> Plane:
    """Quantise weight (n_out, n_in) by the absolute mean.

    >>> quantize_absmean(np.array([[0.9, -0.1, 0.5]])).codes.tolist()
    [[1, 0, 1]]
    """
    blocks, mask = _blocks(weight, granularity)
    scale = np.abs(blocks).sum(axis=1) / mask.sum(axis=1)
    codes = np.clip(np.rint(_divide(blocks, scale)), -1, 1)
    return _plane(codes, scale, weight, granularity)


def quantize_twn(weight: Array, granularity: Granularity = "tensor") -> Plane:
    """Quantise weight (n_out, n_in) by the threshold of Ternary Weight Networks."""
    blocks, mask = _blocks(weight, granularity)
    magnitude = np.abs(blocks)
    kept = magnitude > 0.7 * (magnitude.sum(axis=1) / mask.sum(axis=1))[:, None]
    scale = (magnitude * kept).sum(axis=1) / np.maximum(kept.sum(axis=1), 1)
    return _plane(np.sign(blocks) * kept, scale, weight, granularity)


def quantize_exact(weight: Array, granularity: Granularity = "row") -> Plane:
    """Quantise weight (n_out, n_in) to the ternary of least squared error.

    >>> plane = quantize_exact(np.array([[2.0, -1.9, 0.1, 0.0]]))
    >>> plane.codes.tolist(), plane.scales.round(3).tolist()
    ([[1, -1, 0, 0]], [[1.95]])
    """
    blocks, _ = _blocks(weight, granularity)
    magnitude = np.abs(blocks)
    order = np.argsort(-magnitude, axis=1, kind="stable")
    sums = np.cumsum(np.take_along_axis(magnitude, order, axis=1), axis=1)
    counts = np.arange(1, blocks.shape[1] + 1)
    best = np.argmax(sums**2 / counts, axis=1)
    kept = np.zeros(blocks.shape, dtype=bool)
    np.put_along_axis(kept, order, counts[None] <= best[:, None] + 1, axis=1)
    scale = np.take_along_axis(sums, best[:, None], axis=1)[:, 0] / (best + 1)
    return _plane(np.sign(blocks) * kept, scale, weight, granularity)


def quantize_sign(weight: Array, granularity: Granularity = "row") -> Plane:
    """Quantise weight (n_out, n_in) to its signs; a zero weight stays zero."""
    blocks, mask = _blocks(weight, granularity)
    scale = np.abs(blocks).sum(axis=1) / mask.sum(axis=1)
    return _plane(np.sign(blocks), scale, weight, granularity)


def quantize_uniform(weight: Array, levels: int) -> Plane:
    """Quantise each row of weight (n_out, n_in) to the nearest of -levels..levels, the scale from a fine search.

    The scale is the best in squared error of 60 between a tenth of max |w| / levels and all of it, refitted.
    """
    if levels == 1:
        return quantize_exact(weight, "row")
    top = np.abs(weight).max(axis=1) / levels
    shares = np.linspace(0.1, 1.0, 60) if levels < 127 else np.ones(1)
    scales = top[:, None] * shares
    best_codes, best_scale = np.zeros(weight.shape), np.zeros(len(weight))
    best_error = np.full(len(weight), np.inf)
    for scale in scales.T:
        codes = np.clip(np.rint(_divide(weight, scale)), -levels, levels)
        energy = (codes**2).sum(axis=1)
        refit = (codes * weight).sum(axis=1) / np.maximum(energy, 1)
        error = ((weight - refit[:, None] * codes) ** 2).sum(axis=1)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best_scale = np.where(better, refit, best_scale)
        best_codes = np.where(better[:, None], codes, best_codes)
    return Plane(best_codes, best_scale[:, None], levels)


def _blocks(weight: Array, granularity: Granularity) -> tuple[Array, Array]:
    """One line for each scale, zero-padded, with a mask of what is no padding: both (lines, length)."""
    n_in = weight.shape[1]
    if granularity == "tensor":
        blocks = weight.reshape(1, -1)
        return blocks, np.ones_like(blocks, dtype=bool)
    group = n_in if granularity == "row" else min(int(granularity), n_in)
    groups = -(-n_in // group)
    padding = ((0, 0), (0, groups * group - n_in))
    mask = np.pad(np.ones(weight.shape, dtype=bool), padding)
    return np.pad(weight, padding).reshape(-1, group), mask.reshape(-1, group)


def _plane(codes: Array, scale: Array, weight: Array, granularity: Granularity) -> Plane:
    n_out, n_in = weight.shape
    if granularity == "tensor":
        return Plane(codes.reshape(weight.shape), np.full((n_out, 1), scale[0]))
    group = n_in if granularity == "row" else min(int(granularity), n_in)
    return Plane(codes.reshape(n_out, -1)[:, :n_in], scale.reshape(n_out, -1), 1, group)


def _divide(values: Array, scale: Array) -> Array:
    """values (lines, n) over scale (lines,), 0 where the scale is 0."""
    safe = np.where(scale > 0, scale, 1.0)
    return np.asarray(values / safe[:, None])
