"""One row per slot: exact integer products on residues, and every row of a batch right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polynomials import Session, random_polynomial_network

from deploy.errors import PlanError
from fhe.plan import PlanOptions, Ranges, plan_network
from fhe.runtime.engine import run_in_clear
from fhe.runtime.throughput import integer_product

BATCH = PlanOptions(packing="throughput")
PRIMES = (1009, (1 << 31) - 1, 1152921504606683137, 1152921504606748673)


@given(st.integers(0, 10_000), st.integers(1, 40), st.sampled_from(PRIMES), st.sampled_from([1, 12, 20, 26]))
def test_product_on_residues_is_exact(seed, columns, prime, bits):
    rng = np.random.default_rng(seed)
    weight = rng.integers(-(1 << bits), (1 << bits) + 1, size=(3, columns))
    words = rng.integers(0, prime, size=(columns, 5), dtype=np.uint64)
    words[:, 0] = prime - 1
    exact = [
        [sum(int(w) * int(x) for w, x in zip(row, column, strict=True)) % prime for column in words.T]
        for row in weight
    ]
    assert integer_product(weight.astype(np.float64), words, prime).tolist() == exact


def test_extreme_products_stay_exact():
    prime = PRIMES[-1]
    weight = np.full((1, 2000), -float(1 << 12))
    words = np.full((2000, 2), prime - 1, dtype=np.uint64)
    assert integer_product(weight, words, prime).tolist() == [[2000 * 4096 % prime] * 2]


@pytest.mark.parametrize("widths", [(9, 7, 4), (20, 6, 5, 3), (6, 4)])
def test_every_row_of_a_batch_is_right(rng, tmp_path, widths):
    network = random_polynomial_network(rng, widths)
    x = rng.random((5000, widths[0]))
    plan = plan_network(network, Ranges.seen(network, x), BATCH)
    assert plan.exchange.rows == plan.exchange.parameters.poly_modulus_degree
    session = Session(plan, network, tmp_path)
    # 5,000 rows at 4,096 slots: real and imaginary parts are both in use
    assert (np.abs(session.logits(x) - network.logits(x)) <= plan.bound).all()
    assert np.abs(run_in_clear(plan, network, x) - network.logits(x)).max() <= max(plan.bound)


def test_sizes_of_a_batch_are_the_predicted_ones(rng, tmp_path):
    network = random_polynomial_network(rng, (5, 4, 2))
    x = rng.random((50, 5))
    plan = plan_network(network, Ranges.seen(network, x), BATCH)
    session = Session(plan, network, tmp_path)
    request = session.client.encrypt(x, session.keys.secret)
    assert len(request) == plan.expected.request_bytes
    assert len(session.server.infer(request, session.key)) == plan.expected.answer_bytes
    assert len(session.keys.evaluation) == plan.expected.key_bytes


def test_higher_degrees_are_refused_with_the_numbers(rng):
    network = random_polynomial_network(rng, (5, 4, 2), degree=4)
    with pytest.raises(PlanError, match="degree 4 with packing=throughput"):
        plan_network(network, Ranges.seen(network, rng.random((50, 5))), BATCH)
