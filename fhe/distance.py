"""How far a polynomial network's logits may lie from its original's, anywhere in a box of inputs.

Axes: ``n_in``, ``units``, ``n_out``.
"""

from __future__ import annotations

import numpy as np

from deploy.arrays import Array
from deploy.model import Activation, Mlp
from deploy.ranges import Box
from fhe.network import PolynomialNetwork
from fhe.plan.stages import Ranges, polynomial_range

__all__ = ["distance_over"]

_ROUNDING = 1e-12
"""Of the evaluation of both networks and of this bound, relative to the largest sums."""


def distance_over(model: Mlp, network: PolynomialNetwork, box: Box) -> Array:
    """(n_out,) at least ``|network.logits(x) - model.logits(x)|`` for every x in a box of inputs.

    Let the pre-activations of a layer be z in the network and at most ``d`` away from z in the original. With f the
    original's activation, ``f(z) - p(z)`` lies in an interval over the range of z, of centre c and radius r, so that
    the values differ by c and at most

        r + d               for the ReLU, which moves by no more than its argument,
        r + d (2 |z| + d)   for the square.

    The next layer's difference is ``|W| (r + d)`` and what the centres do to its bias. The range of z is interval
    arithmetic, so the bound is proved, and loose where layers are wide: it grows with the sums of the magnitudes of
    the weights.

    Examples
    --------
    >>> from deploy.model import Affine, Decision
    >>> layers = Affine(np.eye(1), np.zeros(1)), Affine([[4.0]], np.zeros(1))
    >>> model = Mlp(layers, ("relu",), Decision("sign"))
    >>> network = PolynomialNetwork(layers, (np.array([[0.25, 0.5, 0.25]]),), Decision("sign"))
    >>> distance_over(model, network, Box([-1.0], [1.0], "proved")).round(6)
    array([1.])
    """
    ranges = Ranges.proved(network, box)
    inputs, own = np.maximum(np.abs(box.low), np.abs(box.high)), (*ranges.preactivations, ranges.logits)
    centre, apart = np.zeros(model.n_in), np.zeros(model.n_in)
    for index, (original, layer) in enumerate(zip(model.affines, network.affines, strict=True)):
        weight = np.abs(original.weight)
        moved = weight @ apart + np.abs(original.bias + original.weight @ centre - layer.bias)
        moved += np.abs(original.weight - layer.weight) @ inputs
        reach = own[index].radius + moved
        moved += _ROUNDING * (
            weight @ (inputs + np.abs(centre)) + reach + np.abs(original.bias) + np.abs(layer.bias)
        )
        if index == len(network.coefficients):
            return np.asarray(moved)
        activation, z = model.activations[index], own[index]
        low, high = _gap(activation, network.coefficients[index], z)
        centre, apart = (low + high) / 2, (high - low) / 2
        apart = apart + (moved if activation == "relu" else moved * (2 * z.radius + moved))
        inputs = np.max(np.abs(polynomial_range(network.coefficients[index], z.low, z.high)), axis=0)
    raise AssertionError("no last layer")


def _gap(activation: Activation, table: Array, z: Box) -> tuple[Array, Array]:
    """(units,) each: where ``f(z) - p(z)`` lies over the range of z."""
    below, above = -table, -table
    if activation == "square":
        above = np.pad(above, ((0, 0), (0, max(0, 3 - table.shape[1]))))
        above[:, 2] += 1.0
        return polynomial_range(above, z.low, z.high)
    above = above.copy()
    above[:, 1] += 1.0
    left = polynomial_range(below, np.minimum(z.low, 0.0), np.minimum(z.high, 0.0))
    right = polynomial_range(above, np.maximum(z.low, 0.0), np.maximum(z.high, 0.0))
    low = np.where(z.low >= 0, right[0], np.where(z.high <= 0, left[0], np.minimum(left[0], right[0])))
    high = np.where(z.low >= 0, right[1], np.where(z.high <= 0, left[1], np.maximum(left[1], right[1])))
    return low, high
