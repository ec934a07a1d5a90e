"""Agreement, intervals, comparisons."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from deploy.dataset import row_hashes
from deploy.errors import DataError
from deploy.fidelity import accuracy, agreement_interval, compare_paired, divergence, measure_fidelity
from deploy.model import Decision
from deploy.row_certificate import certify_rows


@given(st.integers(1, 400), st.data())
def test_the_interval_is_clopper_and_pearsons(rows: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, rows))
    ours = agreement_interval(successes, rows)
    theirs = stats.binomtest(successes, rows).proportion_ci(0.95, method="exact")
    assert ours == pytest.approx((theirs.low, theirs.high), abs=1e-9)  # scipy bisects to 1e-12 of its own


@given(st.integers(0, 2**32 - 1))
def test_the_paired_test_is_the_exact_binomial(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = rng.random((2, 60)) < 0.7
    found = compare_paired(first, second)
    assert found.better == (first & ~second).sum()
    assert found.worse == (second & ~first).sum()
    assert found.difference == pytest.approx(first.mean() - second.mean())
    discordant = found.better + found.worse
    expected = 1.0 if not discordant else stats.binomtest(found.better, discordant, 0.5).pvalue
    assert found.p_value == pytest.approx(expected, abs=1e-9)
    assert found.standard_error == pytest.approx(np.std(first.astype(float) - second, ddof=0) / np.sqrt(60))


def test_divergence_by_hand() -> None:
    p, q = np.array([[0.0, np.log(3.0)]]), np.array([[0.0, 0.0]])
    expected = 0.25 * np.log(0.25 / 0.5) + 0.75 * np.log(0.75 / 0.5)
    assert divergence(Decision("argmax"), p, q) == pytest.approx([expected])
    assert divergence(Decision("argmin"), -p, -q) == pytest.approx([expected])
    assert divergence(Decision("argmax"), q, p) == pytest.approx([0.5 * np.log(2) + 0.5 * np.log(0.5 / 0.75)])
    one, two = np.array([[np.log(3.0)]]), np.array([[0.0]])
    assert divergence(Decision("sign"), one, two) == pytest.approx([expected])
    assert divergence(Decision("value"), p, q) is None
    three, flat = np.array([[0.0, 1.0, 3.0]]), np.zeros((1, 3))
    assert divergence(Decision("argmin"), three, flat) == pytest.approx(
        divergence(Decision("argmax"), -three, flat)
    )
    assert divergence(Decision("argmin"), three, flat) != pytest.approx(divergence(Decision("argmax"), three, flat))
    huge = np.array([[1e4, -1e4]])
    assert np.isfinite(divergence(Decision("argmax"), huge, -huge)).all()


def test_accuracy_takes_names_numbers_and_indices() -> None:
    logits = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    rule = Decision("argmax")
    assert accuracy(rule, None, logits, np.array([1, 0, 0])) == pytest.approx(2 / 3)
    assert accuracy(rule, None, logits, np.array([1.0, 0.0, 0.0])) == pytest.approx(2 / 3)
    assert accuracy(rule, ("cat", "dog"), logits, np.array(["dog", "cat", "dog"])) == 1.0
    assert accuracy(rule, (7, 9), logits, np.array([9, 7, 7])) == pytest.approx(2 / 3)
    assert accuracy(Decision("sign"), None, np.array([[1.0], [-1.0]]), np.array([1, 1])) == 0.5
    assert accuracy(rule, None, logits, None) is None
    with pytest.raises(DataError, match="1 labels are no class of the model, for instance 'bird'"):
        accuracy(rule, ("cat", "dog"), logits, np.array(["dog", "bird", "dog"]))


def test_fidelity_counts_and_names_the_worst_rows() -> None:
    original = np.array([[4.0, 0.0], [0.0, 2.0], [1.0, 0.0], [3.0, 0.0]])
    deployed = original + np.array([[0.5, 0.0], [0.0, -2.5], [-0.25, 0.25], [0.0, 0.0]])
    x = np.arange(8.0).reshape(4, 2)
    found = measure_fidelity(
        Decision("argmax"),
        original,
        deployed,
        x,
        numbers=np.array([100, 101, 105, 106]),
        bound=np.full((4, 2), 0.6),
        worst=2,
    )
    assert found.agrees.tolist() == [True, False, True, True]
    assert found.agreement == 0.75
    assert found.worst_logit_error == 2.5
    assert [w.row for w in found.worst] == [101, 105]
    assert found.worst[0].sha256 == row_hashes(x)[1].hex()
    assert (found.worst[0].margin, found.worst[0].error, found.worst[0].agrees) == (2.0, 2.5, False)
    assert found.certified == 0.75  # margins / 2 = 2, 1, .5, 1.5 against .6
    assert found.margin_quantiles["0%"] == 1.0
    assert found.rmse == pytest.approx(np.sqrt((0.25 + 6.25 + 2 * 0.0625) / 8))
    assert found.document()["agreement_interval"] == list(agreement_interval(3, 4))


@given(st.integers(0, 2**32 - 1), st.sampled_from(["argmax", "argmin", "sign", "value"]))
def test_a_certified_row_never_flips_and_an_uncertified_one_can(seed: int, rule: str) -> None:
    rng = np.random.default_rng(seed)
    n_out = 1 if rule == "sign" else 4
    decision = Decision(rule, 0.8)
    original = rng.normal(size=(1, n_out))
    bound = rng.exponential(0.4, size=(1, n_out))
    # the worst error: the chosen output down (up for argmin, towards 0 for sign), every other the opposite way
    if rule == "value":
        worst = original + bound
    elif rule == "sign":
        worst = original - np.sign(original) * bound
    else:
        way = 1.0 if rule == "argmax" else -1.0
        push = np.full(n_out, way)
        push[decision.decide(original)[0]] = -way
        worst = original + push * bound
    assert certify_rows(decision, original, bound)[0] == decision.agree(original, worst)[0]
