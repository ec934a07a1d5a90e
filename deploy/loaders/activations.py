"""Piecewise linear activations as ReLU units, exactly; each closes the current layer of a chain.

A value x becomes, with one ReLU unit for each term:

=================  =================================================
leaky_relu         relu(x) - slope relu(-x)
absolute           relu(x) + relu(-x)
clip(a, b)         a + relu(x - a) - relu(x - b)
maximum(x, a)      a + relu(x - a)
minimum(x, b)      b - relu(b - x)
=================  =================================================
"""

from __future__ import annotations

import math

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders.chain import Chain, Piece
from deploy.loaders.signal import Signal
from deploy.loaders.weights import check_broadcast

__all__ = ["absolute", "clip", "leaky_relu", "maximum", "minimum"]


def leaky_relu(chain: Chain, signal: Signal, slope: Array | float, name: str) -> Signal:
    """x where x >= 0, slope * x elsewhere; `slope` broadcasts over the signal."""
    slope = np.asarray(slope, dtype=np.float64)
    if not np.isfinite(slope).all():
        raise LoadError(f"slope {slope.ravel()[:3].tolist()} is not finite")
    if check_broadcast(signal.shape, slope) != signal.shape:
        raise LoadError(f"slope of shape {list(slope.shape)} for a tensor of shape {list(signal.shape)}")
    if not slope.any():
        return chain.activate(signal, "relu", name)
    chain.note(f"{name} was rewritten as {2 * signal.size} ReLU units: relu(x) - slope relu(-x)")
    return chain.activate_pieces(signal, [Piece(1.0, 0.0, 1.0), Piece(-1.0, 0.0, -slope)], 0.0, name)


def absolute(chain: Chain, signal: Signal, name: str) -> Signal:
    """|x|."""
    chain.note(f"{name} was rewritten as {2 * signal.size} ReLU units: relu(x) + relu(-x)")
    return chain.activate_pieces(signal, [Piece(1.0, 0.0, 1.0), Piece(-1.0, 0.0, 1.0)], 0.0, name)


def clip(chain: Chain, signal: Signal, low: float | None, high: float | None, name: str) -> Signal:
    """min(max(x, low), high); None leaves a side open."""
    for bound in (low, high):
        if bound is not None and not math.isfinite(bound):
            raise LoadError(f"a bound of {bound}")
    if low is not None and high is not None:
        if low >= high:
            raise LoadError(f"clips to [{low}, {high}], which leaves a constant")
        chain.note(f"{name} was rewritten as {2 * signal.size} ReLU units: clip(x, {low:g}, {high:g})")
        return chain.activate_pieces(signal, [Piece(1.0, -low, 1.0), Piece(1.0, -high, -1.0)], low, name)
    if low is not None:
        return maximum(chain, signal, low, name)
    return signal if high is None else minimum(chain, signal, high, name)


def maximum(chain: Chain, signal: Signal, bound: Array | float, name: str) -> Signal:
    """max(x, bound), entry by entry."""
    return _extreme(chain, signal, bound, 1.0, name)


def minimum(chain: Chain, signal: Signal, bound: Array | float, name: str) -> Signal:
    """min(x, bound), entry by entry."""
    return _extreme(chain, signal, bound, -1.0, name)


def _extreme(chain: Chain, signal: Signal, bound: Array | float, sign: float, name: str) -> Signal:
    bound = np.asarray(bound, dtype=np.float64)
    if not np.isfinite(bound).all():
        raise LoadError(f"a bound of {bound.ravel()[:3].tolist()}")
    wide = signal.broadcast(check_broadcast(signal.shape, bound))
    if sign > 0 and not bound.any():
        return chain.activate(wide, "relu", name)
    chain.note(f"{name} was rewritten as {wide.size} ReLU units")
    bounds = np.broadcast_to(bound, wide.shape)
    return chain.activate_pieces(wide, [Piece(sign, -sign * bounds, sign)], bounds, name)
