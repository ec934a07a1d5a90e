"""The noise model against decryptions, and a search for an input that breaks its bound."""

from __future__ import annotations

import numpy as np
import pytest
from polynomials import Session, planned_session, random_polynomial_network

from fhe.network import PolynomialNetwork
from fhe.noise import key_switch_variance, rescale_variance
from fhe.plan import PlanOptions, Ranges, plan_network
from fhe.runtime.bounds import logit_bound, logit_standard_deviation
from fhe.runtime.engine import run_in_clear


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    options = PlanOptions(poly_modulus_degree=8192)
    return planned_session(np.random.default_rng(8), (64, 32, 10), 200, tmp_path_factory.mktemp("keys"), options)


def test_measured_error_has_the_size_that_the_model_says(case):
    network, x, plan, session = case
    errors = session.logits(x[:40]) - network.logits(x[:40])
    sigma = logit_standard_deviation(plan, network, x[:40])
    ratio = float(np.sqrt((errors**2).mean() / (sigma**2).mean()))
    # 400 errors that share the rounding of one set of plaintexts: a factor of three either way is the model's claim
    assert 1 / 3 < ratio < 1.5
    assert (np.abs(errors) <= logit_bound(plan, network, x[:40])).all()


def test_search_for_the_worst_input_of_the_box_stays_below_its_bound(case):
    """Gradient-free ascent of the derivative's energy, then of the measured error, from several corners."""
    network, _, plan, session = case
    rng = np.random.default_rng(0)
    corners = (rng.random((300, 64)) < 0.5).astype(float)
    energy = logit_standard_deviation(plan, network, corners).max(axis=1)
    worst = corners[np.argsort(energy)[-6:]]
    for _ in range(3):
        moved = np.clip(worst + (rng.random(worst.shape) < 0.1) * (1 - 2 * worst), 0, 1)
        errors = np.abs(session.logits(worst) - network.logits(worst))
        assert (errors <= logit_bound(plan, network, worst)).all()
        better = np.abs(session.logits(moved) - network.logits(moved)).max(axis=1) > errors.max(axis=1)
        worst[better] = moved[better]


def test_error_shrinks_when_less_of_it_is_asked_for(case):
    network, x, _, _ = case
    sigmas = [
        max(plan_network(network, Ranges.seen(network, x), PlanOptions(logit_error=error)).sigma)
        for error in (0.05, 1e-3, 1e-5)
    ]
    assert sigmas[0] >= sigmas[1] >= sigmas[2]
    assert sigmas[2] < sigmas[0] / 3


def test_objective_error_takes_the_least_error_and_keys_the_fewest_bytes(case):
    network, x, plan, _ = case
    ranges = Ranges.seen(network, x)
    assert max(plan_network(network, ranges, PlanOptions(objective="error")).sigma) <= max(plan.sigma)
    assert (
        plan_network(network, ranges, PlanOptions(objective="keys")).expected.key_bytes <= plan.expected.key_bytes
    )


def test_ranges_proved_from_a_box_hold_every_row_of_it(case):
    from deploy.ranges import Box

    network, x, _, _ = case
    ranges = Ranges.proved(network, Box(np.zeros(64), np.ones(64), "proved"), rows=x)
    assert ranges.kind == "proved"
    *hidden, logits = network.preactivations(x)
    for box, values in zip((*ranges.preactivations, ranges.logits), (*hidden, logits), strict=True):
        assert box.contains(values).all()


def test_variances_are_those_of_the_literature():
    # Cheon, Kim, Kim, Song 2017: a rescale of two polynomials under a ternary secret, N = 8192
    assert np.isclose(np.sqrt(rescale_variance(8192)), 1931, rtol=1e-3)
    # a special prime far above the data primes leaves the rounding alone
    assert np.isclose(key_switch_variance(8192, (30.0,), 60.0), rescale_variance(8192), rtol=1e-3)
    assert key_switch_variance(8192, (60.0, 60.0), 60.0) > 100 * rescale_variance(8192)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_random_networks_are_planned_run_and_stay_within_their_bounds(seed, tmp_path):
    """Widths 3 to 3,000, one to four hidden layers, 1 to 200 outputs, dead and identity units."""
    rng = np.random.default_rng(seed)
    hidden = int(rng.integers(1, 5))
    limit = 3000 if hidden == 1 else 300
    widths = [int(np.exp(rng.uniform(np.log(3), np.log(most)))) for most in (3000, *[limit] * hidden)]
    widths.append(int(np.exp(rng.uniform(0, np.log(200)))))
    network: PolynomialNetwork = random_polynomial_network(rng, tuple(widths))
    x = rng.random((64, widths[0]))
    plan = plan_network(network, Ranges.seen(network, x))
    clear = run_in_clear(plan, network, x[:2])
    expected = network.logits(x[:2])
    assert np.abs(clear - expected).max() <= 1e-9 * max(1.0, np.abs(expected).max())
    session = Session(plan, network, tmp_path)
    assert len(session.keys.evaluation) == plan.expected.key_bytes
    assert (np.abs(session.logits(x[:2]) - expected) <= plan.bound).all()
