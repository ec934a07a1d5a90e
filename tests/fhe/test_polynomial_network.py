"""The value that the separation makes and the plan reads."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.errors import BundleError, InputError
from deploy.model import Affine, Decision
from fhe.network import PolynomialNetwork


def random_network(rng, widths=(5, 4, 3), degree=2) -> PolynomialNetwork:
    affines = tuple(Affine(rng.normal(size=(n, m)), rng.normal(size=n)) for m, n in pairwise(widths))
    tables = tuple(rng.normal(size=(n, degree + 1)) / 4 for n in widths[1:-1])
    return PolynomialNetwork(affines, tables, Decision("value"))


@given(st.integers(0, 10_000), st.integers(1, 3), st.sampled_from([1, 2, 4, 6]))
def test_logits_equal_a_sum_over_power_weights(seed, hidden, degree):
    rng = np.random.default_rng(seed)
    network = random_network(rng, (3, *[4] * hidden, 2), degree)
    x = rng.normal(size=(7, 3))
    z = network.affines[0](x)
    for index in range(hidden):
        z = (
            sum(z ** (p + 1) @ w.T for p, w in enumerate(network.power_weights(index)))
            + network.affines[index + 1].bias
        )
    # two orders of summation of some dozens of terms
    scale = 1 + np.abs(z).max()
    np.testing.assert_allclose(network.logits(x), z, rtol=0, atol=1e-12 * scale)
    np.testing.assert_array_equal(network.preactivations(x)[-1], network.logits(x))


def test_bytes_bring_the_network_back_exactly(rng):
    network = random_network(rng, (5, 4, 3, 2), 4)
    again = PolynomialNetwork.from_bytes(network.to_bytes())
    assert again.sha256 == network.sha256
    assert again.to_bytes() == network.to_bytes()
    assert again.decision == network.decision


@pytest.mark.parametrize("damage", [b"", b"\x00" * 40, "cut", "flip"])
def test_damaged_bytes_are_refused(rng, damage):
    data = random_network(rng).to_bytes()
    if damage == "cut":
        data = data[:-8]
    elif damage == "flip":
        data = data.replace(b"polynomial", b"polynomiaX")
    else:
        data = damage
    with pytest.raises(BundleError):
        PolynomialNetwork.from_bytes(data)


def test_removing_dead_units_changes_no_logit(rng):
    network = random_network(rng, (5, 6, 4, 2))
    tables = [table.copy() for table in network.coefficients]
    tables[0][[1, 3]] = 0.0
    tables[1][:] = 0.0
    network = PolynomialNetwork(network.affines, tuple(tables), network.decision)
    smaller = network.without_dead_units()
    assert smaller.widths == (5, 4, 1, 2)
    x = rng.normal(size=(9, 5))
    np.testing.assert_allclose(smaller.logits(x), network.logits(x), rtol=1e-13, atol=1e-13)


def test_tables_that_do_not_fit_are_refused(rng):
    network = random_network(rng)
    with pytest.raises(InputError, match="coefficients of shape"):
        PolynomialNetwork(network.affines, (np.zeros((3, 3)),), network.decision)
