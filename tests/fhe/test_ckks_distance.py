"""The bound on the distance between a polynomial network and its original."""

from __future__ import annotations

import numpy as np
import pytest
from polynomials import random_polynomial_network

from deploy.arrays import Array
from deploy.model import Activation, Affine, Decision, Mlp, apply_activation
from deploy.ranges import Box
from fhe.distance import distance_over
from fhe.network import PolynomialNetwork


def _pair(
    rng: np.random.Generator, widths: tuple[int, ...], *, degree: int, retrained: float
) -> tuple[Mlp, PolynomialNetwork]:
    """A polynomial network, and a ReLU or square network of the same shapes with weights that differ a little."""
    network = random_polynomial_network(rng, widths, degree=degree)
    affines = tuple(
        Affine(layer.weight + retrained * rng.normal(size=layer.weight.shape), layer.bias)
        for layer in network.affines
    )
    activations = tuple("square" if index % 2 else "relu" for index in range(len(widths) - 2))
    return Mlp(affines, activations, network.decision), network


def _search(model: Mlp, network: PolynomialNetwork, x: Array, rng: np.random.Generator) -> Array:
    """Rows of [0, 1] at which the logits of the two lie as far apart as a random ascent from x finds."""
    worst = x.copy()
    for step in np.geomspace(1.0, 0.02, 60):
        moved = np.clip(worst + step * rng.normal(size=worst.shape), 0, 1)
        gain = _distance(model, network, moved).max(axis=1) > _distance(model, network, worst).max(axis=1)
        worst[gain] = moved[gain]
    return worst


def _distance(model: Mlp, network: PolynomialNetwork, x: Array) -> Array:
    return np.abs(network.logits(x) - model.logits(x))


@pytest.mark.parametrize("widths", [(5, 3), (6, 5, 3), (7, 9, 8, 1), (4, 6, 6, 6, 2)])
@pytest.mark.parametrize(("degree", "retrained"), [(2, 0.0), (2, 0.1), (4, 0.0)])
def test_no_input_that_a_search_of_the_box_finds_lies_beyond_the_bound(
    widths: tuple[int, ...], degree: int, retrained: float
) -> None:
    rng = np.random.default_rng(len(widths) + degree)
    model, network = _pair(rng, widths, degree=degree, retrained=retrained)
    bound = distance_over(model, network, Box(np.zeros(widths[0]), np.ones(widths[0]), "proved"))
    worst = _search(model, network, rng.random((40, widths[0])), rng)
    assert (_distance(model, network, worst) <= bound).all()


@pytest.mark.parametrize("bias", [-3.0, -1.0, 0.25])
@pytest.mark.parametrize("activation", ["relu", "square"])
def test_bound_of_one_unit_is_the_largest_distance(bias: float, activation: Activation) -> None:
    """Nothing is lost with one unit, where f - p is centred: the bound is no idle number."""
    layers = (Affine([[2.0]], [bias]), Affine([[-3.0]], [0.5]))
    z = np.linspace(0, 1, 4001)[:, None] * 2.0 + bias
    gap = apply_activation(activation, z) - (0.5 * z + 0.3 * z * z)
    table = np.array([[(gap.min() + gap.max()) / 2, 0.5, 0.3]])
    network = PolynomialNetwork(layers, (table,), Decision("sign"))
    model = Mlp(layers, (activation,), Decision("sign"))
    found = distance_over(model, network, Box([0.0], [1.0], "proved"))
    # the grid of 4,001 points misses the summit of a parabola by at most 3 (2.5e-4)^2
    assert found == pytest.approx(_distance(model, network, (z - bias) / 2.0).max(), abs=1e-6)


def test_a_square_widens_what_came_before_by_its_slope() -> None:
    """relu(x) against 1.5 x, then ten times that squared: 100 against 225 at x = 1."""
    layers = (Affine([[1.0]], [0.0]), Affine([[10.0]], [0.0]), Affine([[1.0]], [0.0]))
    tables = (np.array([[0.0, 1.5, 0.0]]), np.array([[0.0, 0.0, 1.0]]))
    network = PolynomialNetwork(layers, tables, Decision("sign"))
    model = Mlp(layers, ("relu", "square"), Decision("sign"))
    found = distance_over(model, network, Box([0.0], [1.0], "proved"))
    assert 125 <= found[0] <= 200
