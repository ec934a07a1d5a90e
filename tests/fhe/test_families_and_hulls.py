"""Shared and head families, reduced hulls and their nu-form, the linear soft margin."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.errors import UsageError
from deploy.model import Affine, Decision, Mlp
from fhe.options import CkksOptions
from fhe.separation import LastLayer, separate
from fhe.separation.families import HeadFamily, SharedFamily
from fhe.separation.hull_fit import fit_hulls
from fhe.separation.hulls import reduced_hulls, soft_margin
from fhe.separation.problem import Problem
from fhe.separation.targets import Targets


def make_mlp(rng, widths=(4, 12, 3), rule="argmax") -> Mlp:
    affines = tuple(
        Affine(rng.normal(size=(n, m)) / np.sqrt(m), rng.normal(size=n) / 3) for m, n in pairwise(widths)
    )
    return Mlp(affines, ("relu",) * (len(widths) - 2), Decision(rule))


@pytest.mark.parametrize("degree", [2, 4])
def test_shared_is_the_papers_formula_and_embeds_in_per_unit(rng, degree):
    model = make_mlp(rng)
    x = rng.normal(size=(80, 4))
    family = SharedFamily.of(model, x, degree=degree)
    theta = family.anchor + rng.normal(size=family.lift.size) * 0.1
    network = family.network(theta)
    scores = family.lift.at(theta).scores
    np.testing.assert_allclose(network.logits(x), scores, rtol=1e-9, atol=1e-9)
    # the same polynomial in every unit
    table = network.coefficients[0]
    np.testing.assert_allclose(table, np.broadcast_to(table[0], table.shape), rtol=1e-6, atol=1e-9)
    # and the per-unit lift at the expanded parameters says the same
    np.testing.assert_allclose(
        family.last.lift.at(family.lift.expand(theta)).scores, scores, rtol=1e-12, atol=1e-12
    )


def test_shared_anchor_is_one_least_squares_polynomial(rng):
    model = make_mlp(rng)
    x = rng.normal(size=(80, 4))
    z = model.affines[0](x)
    wanted = np.polyfit(z.ravel(), np.maximum(z, 0).ravel(), 2)[::-1]
    family = SharedFamily.of(model, x, degree=2)
    network = family.network(family.anchor)
    np.testing.assert_allclose(network.coefficients[0][:, 1:], np.tile(wanted[1:], (12, 1)), rtol=1e-6)
    bias = model.affines[1].bias + model.affines[1].weight.sum(axis=1) * wanted[0]
    np.testing.assert_allclose(network.affines[1].bias, bias, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("rule,n_out", [("argmax", 3), ("argmin", 3), ("sign", 1)])
def test_head_network_equals_its_lift(rng, rule, n_out):
    model = make_mlp(rng, (4, 8, n_out), rule)
    x = rng.normal(size=(60, 4))
    family = HeadFamily.of(model, x, degree=2)
    theta = family.anchor + rng.normal(size=family.lift.size) * 0.1
    scores = family.lift.at(theta).scores
    logits = family.network(theta).logits(x)
    wanted = {"argmax": scores, "argmin": -scores}.get(rule, scores[:, 1:] - scores[:, :1])
    np.testing.assert_allclose(logits, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("family", ["shared", "head"])
@pytest.mark.parametrize("rule,n_out", [("argmax", 3), ("sign", 1)])
def test_families_convert(rng, family, rule, n_out):
    model = make_mlp(rng, (4, 8, n_out), rule)
    x = rng.normal(size=(120, 4))
    found = separate(model, x, CkksOptions(family=family), rng=np.random.default_rng(0))
    least = separate(model, x, CkksOptions(family=family, fit="least-squares"), rng=np.random.default_rng(0))
    agree = [model.decision.agree(model.logits(x), f.network.logits(x)).mean() for f in (found, least)]
    assert agree[0] >= agree[1]


@given(st.integers(0, 500), st.sampled_from([1.0, 0.5, 0.1, 0.03]), st.sampled_from([1, 2]))
@settings(max_examples=25, deadline=None)
def test_the_dual_gap_closes_and_the_nu_property_holds(seed, cap, n_groups):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(120, 4)) + rng.normal(size=4)
    groups = rng.integers(0, n_groups, size=len(rows))
    hulls = reduced_hulls(rows, groups, np.full(n_groups, cap))
    assert abs(hulls.gap) <= 1e-7
    for group in range(n_groups):
        mine = hulls.multipliers[groups == group]
        assert mine.sum() == pytest.approx(1, abs=1e-9)
        assert mine.min() >= 0 and mine.max() <= cap * (1 + 1e-12)
        if hulls.apart > 1e-3:
            assert hulls.errors[group] <= 1 / cap + 1e-9
        assert 1 / cap <= hulls.supports[group] + 1e-9
    np.testing.assert_allclose(hulls.theta, rows.T @ hulls.multipliers, atol=1e-9)


def test_a_cap_of_one_is_the_hull_problem(rng):
    """Two separated discs: the normal joins their closest points; scipy finds them independently."""
    from scipy.optimize import minimize

    plus, minus = rng.normal(size=(30, 2)) + 4, rng.normal(size=(30, 2)) - 4
    hulls = reduced_hulls(np.vstack([plus, -minus]), np.repeat([0, 1], 30), np.ones(2))

    def distance(w):
        a, b = np.abs(w[:30]), np.abs(w[30:])
        apart = plus.T @ (a / a.sum()) - minus.T @ (b / b.sum())
        return float(apart @ apart)

    best = min(minimize(distance, rng.uniform(0, 1, 60), tol=1e-14).fun for _ in range(3))
    # the other solver is a local method on a non-smooth parametrisation: it comes from above
    assert float(hulls.theta @ hulls.theta) <= best * (1 + 1e-6)
    assert (plus @ hulls.theta).min() > (minus @ hulls.theta).max()


def test_a_cap_that_cannot_sum_to_one_is_refused(rng):
    with pytest.raises(UsageError, match="cannot sum to 1"):
        reduced_hulls(rng.normal(size=(5, 2)), np.zeros(5, dtype=int), np.array([0.1]))


@pytest.mark.parametrize(
    "n_out,rule,two", [(3, "argmax", False), (2, "argmax", True), (1, "sign", True), (2, "argmax", False)]
)
@pytest.mark.parametrize("shared", [False, True])
def test_working_sets_reach_the_optimum_over_all_rows(rng, n_out, rule, two, shared, monkeypatch):
    model = make_mlp(rng, (4, 6, n_out), rule)
    x = rng.normal(size=(150, 4))
    last = LastLayer.behind(model, x, degree=2)
    targets = Targets.of(model.decision, model.logits(x))
    family = SharedFamily.of(model, x, degree=2) if shared else None
    whole, report = fit_hulls(last, targets, cap=0.05, shared=family, two_hulls=two)
    assert report["apart"] > 1e-3
    assert abs(report["gap"]) <= 1e-6
    monkeypatch.setattr("fhe.separation.hull_fit._FIRST_ROWS", 40)
    part, few = fit_hulls(last, targets, cap=0.05, shared=family, two_hulls=two)
    assert few["working_set"] < report["working_set"]
    # both solve to a relative gap of 1e-11; the direction follows as its root
    np.testing.assert_allclose(part, whole, atol=5e-3 * np.abs(whole).max())


def test_the_threshold_lies_midway_between_the_hulls(rng):
    model = make_mlp(rng, (4, 30, 2))
    x = rng.normal(size=(30, 4))
    last = LastLayer.behind(model, x, degree=2)
    targets = Targets.of(model.decision, model.logits(x))
    parameters, report = fit_hulls(last, targets, cap=1.0, two_hulls=True)
    assert report["apart"] > 1e-3
    assert max(report["caps"]) == 1.0
    margins = targets.margins(last.lift.at(parameters).scores).min(axis=1)
    least = [margins[targets.chosen == k].min() for k in (0, 1)]
    assert min(least) > 0
    # the nearest points are found to a relative gap of 1e-11; margins follow as its root
    assert least[0] == pytest.approx(least[1], rel=1e-3)


def test_soft_margin_matches_the_whole_program(rng):
    cvxpy = pytest.importorskip("cvxpy")
    model = make_mlp(rng, (4, 5, 3))
    x = rng.normal(size=(60, 4))
    last = LastLayer.behind(model, x, degree=2)
    targets = Targets.of(model.decision, model.logits(x))
    ours = soft_margin(last.lift, targets, last.anchor, gamma=0.3, strength=2.0)
    row, other = np.nonzero(targets.counts)
    point = last.lift.at(last.anchor)
    matrix = point.rows(row, targets.chosen[row], other)
    start = point.scores[row, targets.chosen[row]] - point.scores[row, other]
    step, slack = cvxpy.Variable(last.lift.size), cvxpy.Variable(60, nonneg=True)
    objective = 0.5 * cvxpy.sum_squares(step) + 2.0 * cvxpy.sum(slack)
    cvxpy.Problem(cvxpy.Minimize(objective), [matrix @ step + slack[row] >= 0.3 - start]).solve(
        solver=cvxpy.CLARABEL
    )
    # two interior-point runs to a relative gap of 1e-8
    np.testing.assert_allclose(ours - last.anchor, step.value, atol=1e-4 * np.abs(step.value).max())


@pytest.mark.parametrize("fit", ["soft", "rch", "nu"])
def test_the_other_fits_convert(rng, fit):
    model = make_mlp(rng, (4, 10, 3))
    x = rng.normal(size=(100, 4))
    found = separate(model, x, CkksOptions(fit=fit, cap=0.2), rng=np.random.default_rng(0))
    assert found.fit.startswith(fit)
    assert model.decision.agree(model.logits(x), found.network.logits(x)).mean() > 0.8


@given(st.integers(0, 200))
@settings(max_examples=10, deadline=None)
def test_decisions_of_a_fit_do_not_depend_on_the_order_of_rows_or_classes(seed):
    rng = np.random.default_rng(seed)
    model = make_mlp(rng)
    x = rng.normal(size=(60, 4))
    options = CkksOptions(fit="anchored", strength=1.0)
    base = separate(model, x, options, rng=np.random.default_rng(0)).network.logits(x)
    order = rng.permutation(60)
    rows = separate(model, x[order], options, rng=np.random.default_rng(0)).network.logits(x)
    # the Newton iteration stops at a relative gradient of 1e-6
    np.testing.assert_allclose(rows, base, atol=1e-4 * np.abs(base).max())
    classes = rng.permutation(3)
    last = model.affines[1]
    turned = Mlp((model.affines[0], Affine(last.weight[classes], last.bias[classes])), ("relu",), model.decision)
    again = separate(turned, x, options, rng=np.random.default_rng(0)).network.logits(x)
    np.testing.assert_allclose(again, base[:, classes], atol=1e-4 * np.abs(base).max())


def test_scaling_the_inputs_changes_nothing(rng):
    """Bases are orthonormal over the rows, so the units of the pre-activations cannot matter."""
    model = make_mlp(rng)
    x = rng.normal(size=(60, 4))
    first = model.affines[0]
    scaled = Mlp((Affine(first.weight / 1024, first.bias), model.affines[1]), ("relu",), model.decision)
    options = CkksOptions(fit="anchored", strength=1.0)
    ours = separate(model, x, options, rng=np.random.default_rng(0)).network.logits(x)
    theirs = separate(scaled, x * 1024, options, rng=np.random.default_rng(0)).network.logits(x * 1024)
    np.testing.assert_allclose(theirs, ours, rtol=1e-9, atol=1e-9)


def test_duplicated_rows_change_nothing_at_half_the_strength(rng):
    model = make_mlp(rng)
    x = rng.normal(size=(60, 4))
    once = separate(model, x, CkksOptions(fit="anchored", strength=1.0), rng=np.random.default_rng(0))
    twice = separate(
        model, np.vstack([x, x]), CkksOptions(fit="anchored", strength=0.5), rng=np.random.default_rng(0)
    )
    np.testing.assert_allclose(twice.network.logits(x), once.network.logits(x), atol=1e-4)


@pytest.mark.parametrize("widths", [(4, 6, 3), (4, 5, 6, 3)])
def test_other_rows_are_lifted_into_the_same_parameters(rng, widths):
    model = make_mlp(rng, widths)
    x, others = rng.normal(size=(80, 4)), rng.normal(size=(30, 4))
    targets = Targets.of(model.decision, model.logits(x))
    families = [Problem.prepare(model, x, targets, degree=2)]
    if len(widths) == 3:
        families += [SharedFamily.of(model, x, degree=2), HeadFamily.of(model, x, degree=2)]
    for family in families:
        at = family.anchor + 0.1 * rng.normal(size=len(family.anchor))
        for rows in (x, others):
            scores = family.lift_of(rows).at(at).scores
            np.testing.assert_allclose(scores, family.network(at).logits(rows), rtol=1e-9, atol=1e-9)
        assert np.array_equal(family.lift_of(x).at(at).scores, family.lift.at(at).scores)
