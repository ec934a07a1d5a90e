"""Whatever is kept is never worse on the calibration rows than any weight-only rule."""

import numpy as np
import pytest
from networks import random_mlp

from deploy.model import Affine, Decision, Mlp
from quantization.distillation import _Problem, distill
from quantization.evidence import Evidence, decision_loss
from quantization.layerwise import quantize_network
from quantization.network import QuantizedMlp
from quantization.recipe import Recipe
from quantization.selection import BASELINES, select

RULES = ["argmax", "argmin", "value", "sign"]


def assert_never_worse(seed):
    rng = np.random.default_rng(seed)
    rule = RULES[seed % 4]
    n_out = 1 if rule == "sign" else int(rng.integers(2, 5))
    hidden = rng.integers(1, 9, size=rng.integers(0, 3))
    model = random_mlp(rng, (int(rng.integers(1, 9)), *(int(n) for n in hidden), n_out), rule=rule)
    evidence = Evidence(model, rng.normal(size=(int(rng.integers(4, 60)), model.n_in)) * rng.uniform(0.1, 3))
    kept = select(evidence, rng=np.random.default_rng(seed), beam=4).best.network
    ours = decision_loss(model.decision, evidence.logits, kept.logits(evidence.x))
    for recipe in BASELINES:
        for bias in ("keep", "repair"):
            layers = quantize_network(evidence, [recipe] * len(model.affines), bias=bias)
            theirs = QuantizedMlp.of(layers).logits(evidence.x)
            assert ours <= decision_loss(model.decision, evidence.logits, theirs)


@pytest.mark.parametrize("seed", range(20))
def test_the_kept_network_is_never_worse_than_any_baseline(seed):
    assert_never_worse(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20, 220))
def test_the_kept_network_is_never_worse_than_any_baseline_on_200_more(seed):
    assert_never_worse(seed)


def test_raw_features_of_unequal_size_are_met(rng):
    """Standard deviations folded into the weights: a single scale a row cannot hold them, column factors can."""
    plain = random_mlp(rng, (6, 16, 3))
    spread = 10.0 ** np.linspace(-3, 3, 6)
    first = Affine(plain.affines[0].weight / spread, plain.affines[0].bias)
    model = plain.with_(affines=(first, *plain.affines[1:]))
    evidence = Evidence(model, rng.normal(size=(300, 6)) * spread)
    even, folded = (
        evidence.loss(quantize_network(evidence, [Recipe(balance=balance)] * 2)) for balance in (1.0, 0.0)
    )
    assert even < folded / 3


def test_column_factors_inside_a_network_cost_nothing(rng):
    model = random_mlp(rng, (5, 8, 8, 3))
    evidence = Evidence(model, rng.normal(size=(100, 5)))
    layers = quantize_network(evidence, [Recipe(balance=1.0)] * 3)
    folded = QuantizedMlp.of(layers)
    h = evidence.x
    for index, layer in enumerate(layers):
        h = layer(h) if index == 2 else np.maximum(layer(h), 0)
    assert [layer.columns is None for layer in folded.layers] == [False, True, True]
    assert np.allclose(folded.logits(evidence.x), h, rtol=1e-5, atol=1e-5)  # scales rounded to float32 once more


@pytest.mark.parametrize("rule", RULES)
def test_the_gradient_of_distillation_is_the_slope_of_its_loss(rng, rule):
    """Oracle: central differences; the forward pass is float32, hence the tolerance."""
    model = random_mlp(rng, (4, 6, 1 if rule == "sign" else 3), rule=rule)
    evidence = Evidence(model, rng.normal(size=(50, 4)))
    problem = _Problem.of(evidence, quantize_network(evidence, [Recipe("exact")] * 2), 1e-3)
    point = problem.origin() + 0.1 * rng.normal(size=problem.origin().size)
    _, slope = problem.value_and_gradient(point)
    direction = rng.normal(size=point.size)
    h = 1e-3
    ends = [problem.value_and_gradient(point + sign * h * direction)[0] for sign in (1, -1)]
    assert (ends[0] - ends[1]) / (2 * h) == pytest.approx(slope @ direction, rel=0.05, abs=1e-3)


def test_distillation_never_raises_the_loss_and_keeps_the_codes(rng):
    model = random_mlp(rng, (8, 12, 4))
    evidence = Evidence(model, rng.normal(size=(200, 8)))
    layers = quantize_network(evidence, [Recipe("exact")] * 2)
    found = distill(evidence, layers, rng=rng)
    assert evidence.loss(found) < evidence.loss(layers)
    for before, after in zip(layers, found, strict=True):
        assert np.array_equal(np.abs(before.planes[0].codes), np.abs(after.planes[0].codes))


def test_bias_repair_is_taken_only_where_it_helps(rng):
    model = random_mlp(rng, (8, 12, 4))
    evidence = Evidence(model, rng.normal(size=(200, 8)))
    kept, repaired, better = (
        evidence.loss(quantize_network(evidence, [Recipe("exact")], bias=rule))
        for rule in ("keep", "repair", "better")
    )
    assert better == min(kept, repaired)


@pytest.mark.parametrize("rule, n_out", [("argmax", 3), ("argmin", 3), ("sign", 1), ("value", 2)])
def test_one_row_is_enough_to_convert(rng, rule, n_out):
    model = random_mlp(rng, (3, 4, n_out), rule=rule)
    evidence = Evidence(model, rng.normal(size=(1, 3)))
    assert np.isfinite(select(evidence, rng=rng).best.loss)


def test_weights_that_are_all_zero_give_a_network_of_biases(rng):
    model = Mlp(
        (Affine(np.zeros((3, 2)), np.ones(3)), Affine(np.zeros((2, 3)), np.array([1.0, 2.0]))),
        ("relu",),
        Decision("argmax"),
    )
    evidence = Evidence(model, rng.normal(size=(20, 2)))
    assert np.array_equal(select(evidence, rng=rng).best.network.logits(evidence.x), evidence.logits)
