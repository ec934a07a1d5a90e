"""The plan's primitives compute the network: in the clear to rounding, on ciphertexts within the bound."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polynomials import Session, random_polynomial_network

from deploy.model import Affine, Decision
from fhe.network import PolynomialNetwork
from fhe.plan import Layout, Plan, PlanOptions, Ranges, plan_network, reduce_network
from fhe.plan.stages import InputScaling
from fhe.runtime.engine import run_in_clear
from fhe.runtime.program import program_of

TINY = PlanOptions(poly_modulus_degree=8192)


def make(rng, widths, **kinds):
    network = random_polynomial_network(rng, widths, **kinds)
    x = rng.random((64, widths[0]))
    return network, x, Ranges.seen(network, x)


def relative_error(found, expected):
    return np.abs(found - expected).max() / max(1.0, np.abs(expected).max())


@settings(deadline=None, max_examples=15)
@given(
    st.integers(0, 10_000),
    st.lists(st.integers(1, 40), min_size=0, max_size=2),
    st.integers(1, 200),
    st.integers(1, 20),
    st.sampled_from([2, 3]),
)
def test_cleartext_run_equals_the_network(seed, hidden, n_in, n_out, degree):
    rng = np.random.default_rng(seed)
    network, x, ranges = make(rng, (n_in, *hidden, n_out), degree=degree, dead=0.3, linear=0.3)
    plan = plan_network(network, ranges)
    # double precision on sums of at most 200 terms
    assert relative_error(run_in_clear(plan, network, x[:3]), network.logits(x[:3])) < 1e-9


@pytest.mark.parametrize(
    ("widths", "degree"),
    [
        ((64, 32, 10), 2),
        ((784, 128, 10), 2),
        ((30, 16, 2), 2),
        ((9, 64, 7), 4),
        ((9, 64, 7), 6),
        ((7, 5), 2),
        ((5, 1), 2),
    ],
)
def test_decrypted_logits_stay_within_the_bound(rng, tmp_path, widths, degree):
    network, x, ranges = make(rng, widths, degree=degree)
    plan = plan_network(network, ranges)
    session = Session(plan, network, tmp_path)
    errors = np.abs(session.logits(x[:3]) - network.logits(x[:3]))
    assert (errors <= plan.bound).all()
    assert np.array_equal(session.logits(x[:1]).argmax(axis=1), network.logits(x[:1]).argmax(axis=1))


def test_deep_network_runs_on_ciphertexts(rng, tmp_path):
    network, x, ranges = make(rng, (20, 16, 12, 12, 3))
    plan = plan_network(network, ranges)
    session = Session(plan, network, tmp_path)
    assert (np.abs(session.logits(x[:2]) - network.logits(x[:2])) <= plan.bound).all()


def test_scales_stay_on_course_over_eighteen_multiplications(rng):
    """Short primes are off their length by a third of a bit at most, and every multiplication doubles what a scale is
    off by: uncorrected, this network's last products would outgrow the primes that are left."""
    widths = (5, 4, 4, 4, 4, 4, 4, 3)
    affines = tuple(
        Affine(rng.normal(size=(rows, columns)) / columns, np.zeros(rows))
        for columns, rows in itertools.pairwise(widths)
    )
    rectifier = np.array([0.0, 0.5, 0.6, 0.0, -0.3, 0.0, 0.1])
    network = PolynomialNetwork(affines, tuple(np.tile(rectifier, (4, 1)) for _ in range(6)), Decision("argmax"))
    x = rng.random((64, 5))
    plan = plan_network(network, Ranges.seen(network, x))
    assert len(plan.stages) == 7
    assert relative_error(run_in_clear(plan, network, x[:2]), network.logits(x[:2])) < 1e-9
    primes = np.log2(np.array(plan.exchange.parameters.data_primes, dtype=float))
    assert plan.exchange.answer_scale < 2.0 ** primes[0]


def test_interleaved_rows_answer_each_row(rng, tmp_path):
    network, x, ranges = make(rng, (64, 32, 10))
    plan = plan_network(network, ranges, PlanOptions(packing="interleaved", rows=4))
    assert relative_error(run_in_clear(plan, network, x[:6]), network.logits(x[:6])) < 1e-9
    session = Session(plan, network, tmp_path)
    # six rows: a full request and one that is half empty
    assert (np.abs(session.logits(x[:6]) - network.logits(x[:6])) <= plan.bound).all()


def test_client_rotations_give_the_same_answer_with_fewer_keys(rng, tmp_path):
    network, x, ranges = make(rng, (300, 60, 5))
    usual = plan_network(network, ranges, TINY.model_copy(update={"client_rotations": False}))
    plan = plan_network(network, ranges, TINY.model_copy(update={"client_rotations": True}))
    assert plan.exchange.request_ciphertexts > usual.exchange.request_ciphertexts
    assert relative_error(run_in_clear(plan, network, x[:2]), network.logits(x[:2])) < 1e-9
    session = Session(plan, network, tmp_path)
    assert (np.abs(session.logits(x[:2]) - network.logits(x[:2])) <= plan.bound).all()


def test_real_packing_serves_clients_without_complex_encoding(rng):
    network, x, ranges = make(rng, (64, 32, 10))
    plan = plan_network(network, ranges, PlanOptions(pairs=False))
    assert not plan.exchange.pairs
    assert relative_error(run_in_clear(plan, network, x[:2]), network.logits(x[:2])) < 1e-9


def test_input_wider_than_the_slots_travels_in_tiles(rng, tmp_path):
    network, x, ranges = make(rng, (9000, 3, 2))
    plan = plan_network(network, ranges, TINY)
    assert plan.exchange.tiles > 1
    session = Session(plan, network, tmp_path)
    assert (np.abs(session.logits(x[:2]) - network.logits(x[:2])) <= plan.bound).all()


def test_square_activation_needs_no_odd_stream(rng, tmp_path):
    table = np.zeros((6, 3))
    table[:, 2] = 1.0
    network = PolynomialNetwork(
        (Affine(rng.normal(size=(6, 4)), rng.normal(size=6)), Affine(rng.normal(size=(3, 6)), rng.normal(size=3))),
        (table,),
        Decision("argmax"),
    )
    x = rng.random((32, 4))
    plan = plan_network(network, Ranges.seen(network, x))
    assert not plan.stages[0].odd and not plan.stages[1].closing
    session = Session(plan, network, tmp_path)
    assert (np.abs(session.logits(x[:2]) - network.logits(x[:2])) <= plan.bound).all()


def test_network_of_zeros_still_answers_with_its_biases(rng, tmp_path):
    network = PolynomialNetwork(
        (Affine(np.zeros((4, 3)), np.ones(4)), Affine(np.ones((2, 4)), np.array([0.5, -0.25]))),
        (np.tile([0.0, 1.0, 2.0], (4, 1)),),
        Decision("argmax"),
    )
    x = rng.random((5, 3))
    plan = plan_network(network, Ranges.seen(network, x))
    session = Session(plan, network, tmp_path)
    # the one plaintext that keeps the answer a real encryption adds less than the bound
    assert np.abs(session.logits(x[:1]) - [12.5, 11.75]).max() < 1e-3


def test_zero_rows_and_zero_columns_are_handled(rng, tmp_path):
    weight = rng.normal(size=(8, 6))
    weight[2] = 0.0
    weight[:, 3] = 0.0
    out = rng.normal(size=(3, 8))
    out[1] = 0.0
    network = PolynomialNetwork(
        (Affine(weight, rng.normal(size=8)), Affine(out, rng.normal(size=3))),
        (rng.normal(size=(8, 3)),),
        Decision("argmax"),
    )
    x = rng.random((32, 6))
    plan = plan_network(network, Ranges.seen(network, x))
    assert plan.widths == (6, 7, 3)
    session = Session(plan, network, tmp_path)
    assert (np.abs(session.logits(x[:2]) - network.logits(x[:2])) <= plan.bound).all()


def test_reduction_keeps_the_function(rng):
    for _ in range(20):
        network = random_polynomial_network(rng, (5, 6, 4, 3), dead=0.5, linear=0.5)
        reduced = reduce_network(network).network
        x = rng.normal(size=(10, 5))
        assert np.allclose(reduced.logits(x), network.logits(x), rtol=1e-12, atol=1e-12)


def test_linear_layers_are_merged_into_one(rng):
    network = random_polynomial_network(rng, (5, 6, 4, 3), dead=0.0, linear=1.0)
    assert reduce_network(network).network.widths == (5, 3)


@pytest.mark.parametrize("packing", ["latency", "throughput"])
def test_a_plan_says_which_units_it_does_without(rng, packing):
    whole = random_polynomial_network(rng, (5, 6, 4, 7, 3), dead=0.0, linear=0.0)
    first, second, third = (table.copy() for table in whole.coefficients)
    first[:2] = 0.0
    second[:, 2] = 0.0
    network = PolynomialNetwork(whole.affines, (first, second, third), whole.decision)
    ranges = Ranges.seen(network, rng.random((30, 5)))
    plan = plan_network(network, ranges, PlanOptions(packing=packing))
    assert plan.widths == (5, 4, 7, 3)
    assert plan.notes[:2] == (
        "hidden layer 1: 4 of 6 units left, the others are dead, constant or unread",
        "hidden layer 2 is gone: its 4 units are linear or constant",
    )
    assert plan.text().splitlines()[-len(plan.notes) :] == list(plan.notes)
    assert not any("hidden layer" in note for note in plan_network(whole, ranges).notes)


def test_inputs_of_different_magnitudes_are_scaled_by_the_client(rng, tmp_path):
    spread = 10.0 ** np.arange(-3, 4)
    network = PolynomialNetwork(
        (Affine(rng.normal(size=(8, 7)) / spread, np.zeros(8)), Affine(rng.normal(size=(2, 8)), np.zeros(2))),
        (rng.normal(size=(8, 3)),),
        Decision("argmax"),
    )
    x = (5 + rng.random((64, 7))) * spread
    plan = plan_network(network, Ranges.seen(network, x))
    session = Session(plan, network, tmp_path)
    assert (np.abs(session.logits(x[:2]) - network.logits(x[:2])) <= plan.bound).all()


def test_scaling_brings_a_box_into_the_unit_interval(rng):
    from deploy.ranges import Box

    low = rng.normal(size=9) * 100
    box = Box(low, low + rng.random(9) * 50, "proved")
    scaling = InputScaling.for_box(box)
    for end in (box.low, box.high):
        assert (np.abs(scaling(end[None])) <= 1.0 + 1e-12).all()


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6))
def test_every_window_of_a_layout_holds_each_entry_once(a, b, c):
    stride, block, period = sorted([2**a, 2**b, 2**c])
    layout = Layout(period=period, block=block, stride=stride)
    entries = layout.entries(4 * period)
    for start in range(block):
        seen = [entries[start + block * t + k] for t in range(period // block) for k in range(stride)]
        assert sorted(seen) == list(range(layout.capacity))


def test_plan_survives_its_json(rng):
    network, _, ranges = make(rng, (12, 8, 3))
    plan = plan_network(network, ranges)
    again = Plan.from_bytes(plan.to_bytes())
    assert again == plan and again.to_bytes() == plan.to_bytes()
    assert plan_network(network, ranges).to_bytes() == plan.to_bytes()
    program_of(again, network)


def test_a_pinned_chain_longer_than_needed_is_planned_and_runs(tmp_path):
    """The answer leaves at one prime all the same: its scale must fit that one."""
    rng = np.random.default_rng(6)
    network = random_polynomial_network(rng, (12, 8, 3))
    x = rng.random((40, 12))
    options = PlanOptions(poly_modulus_degree=8192, coeff_modulus_bits=(60, 40, 40, 60))
    plan = plan_network(network, Ranges.seen(network, x), options)
    session = Session(plan, network, tmp_path)
    assert (np.abs(session.logits(x[:2]) - network.logits(x[:2])) <= plan.bound).all()
