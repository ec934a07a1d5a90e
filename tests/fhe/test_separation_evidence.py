"""Baselines, rounding, distillation, augmentation, selection and the search for an agreement."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.model import Affine, Decision, Mlp
from deploy.progress import SILENT
from fhe.options import CkksOptions
from fhe.separation import separate
from fhe.separation.baselines import BASELINES, chebyshev, least_squares, minimax, replace_layerwise
from fhe.separation.candidates import AUTO, Candidate
from fhe.separation.distill import distill
from fhe.separation.problem import LastLayer
from fhe.separation.remez import minimax_relu
from fhe.separation.rounding import certify_rounding, coefficient_reach, round_coefficients, round_weights
from fhe.separation.selection import _pick, _training_rows, make_folds
from fhe.separation.targets import Targets, orient_logits


def make_mlp(rng, widths=(4, 10, 3), rule="argmax") -> Mlp:
    affines = tuple(
        Affine(rng.normal(size=(n, m)) / np.sqrt(m), rng.normal(size=n) / 3) for m, n in pairwise(widths)
    )
    return Mlp(affines, ("relu",) * (len(widths) - 2), Decision(rule))


def run(model, x, **options):
    return separate(model, x, CkksOptions(**options), rng=np.random.default_rng(0))


# Baselines


def test_minimax_equioscillates():
    """On [-1, 1] the best quadratic is (1 + 8 t + 8 t²) / 16, with error 1/16 at -1, -1/2, 0, 1/2 and 1."""
    table = minimax(2, per_unit=False)(np.array([[-1.0], [1.0]]))[0]
    np.testing.assert_allclose(table, [1 / 16, 1 / 2, 1 / 2], atol=1e-6)


@given(
    st.floats(-4, 2),
    st.floats(-4, 2),
    st.sampled_from([2, 3, 5, 7]),
)
@settings(max_examples=60, deadline=None)
def test_the_exchange_levels_the_worst_error(low, high, degree):
    """Alternation theorem: degree + 2 points of the largest error, signs alternating, prove the minimum."""
    low, high = -(10.0**low), 10.0**high
    found = minimax_relu(low, high, degree)
    near = min(-low, high)
    v = np.union1d(np.linspace(low, high, 20001), np.linspace(-near, near, 2001))
    error = found(v) - np.maximum(v, 0)
    # between grid points the error passes its largest value here by the square of their distance
    signs = np.sign(error[np.abs(error) > (1 - 1e-5) * np.abs(error).max()])
    assert 1 + np.count_nonzero(np.diff(signs)) >= degree + 2


@pytest.mark.parametrize("degree", [2, 3, 5, 7])
def test_the_exchange_agrees_with_a_linear_program(degree):
    from scipy.optimize import linprog

    low, high = -3.0, 7.0
    v = np.union1d(np.linspace(low, high, 2001), [0.0])
    basis = np.polynomial.chebyshev.chebvander((v - 2) / 5, degree)
    ones = np.ones((len(v), 1))
    program = linprog(
        np.append(np.zeros(degree + 1), 1.0),
        A_ub=np.vstack([np.hstack([basis, -ones]), np.hstack([-basis, -ones])]),
        b_ub=np.concatenate([np.maximum(v, 0), -np.maximum(v, 0)]),
        bounds=[(None, None)] * (degree + 2),
    )
    worst = np.abs(minimax_relu(low, high, degree)(v) - np.maximum(v, 0)).max()
    # the program sees a grid of step 1/200: it may undercut the true minimum by the square of that
    assert worst == pytest.approx(program.fun, rel=1e-3)


def test_chebyshev_interpolates_at_its_points():
    table = chebyshev(3, per_unit=False)(np.array([[-2.0], [3.0]]))[0]
    points = 0.5 + 2.5 * np.cos((np.arange(4) + 0.5) * np.pi / 4)
    np.testing.assert_allclose(np.polyval(table[::-1], points), np.maximum(points, 0), atol=1e-12)


def test_per_unit_least_squares_is_the_anchor_of_the_separation(rng):
    model = make_mlp(rng)
    x = rng.normal(size=(200, 4))
    theirs = replace_layerwise(model, x, least_squares(2, per_unit=True)).logits(x)
    np.testing.assert_allclose(theirs, run(model, x, fit="least-squares").network.logits(x), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", list(BASELINES))
def test_every_baseline_takes_any_layer(rng, name):
    model = make_mlp(rng, (4, 6, 5, 3))
    first = model.affines[0]
    bias = first.bias.copy()
    bias[:2] = -50.0, 50.0
    model = Mlp((Affine(first.weight, bias), *model.affines[1:]), model.activations, model.decision)
    x = rng.normal(size=(60, 4))
    network = replace_layerwise(model, x, BASELINES[name])
    assert np.isfinite(network.logits(x)).all()


def test_a_bundle_compares_baselines_on_the_rows_it_is_judged_on(rng):
    from fhe.deployment import CkksDeployment, convert_model

    model = make_mlp(rng)
    x = rng.normal(size=(60, 4))
    options = CkksOptions(baselines=True, fit="least-squares")
    deployment = convert_model(model, x, options, rng=np.random.default_rng(0))
    again = CkksDeployment.from_files(deployment.files(), model)
    assert again.files() == deployment.files()
    held = rng.normal(size=(50, 4))
    panel = next(p for p in again.panels(held) if p.title.startswith("Usual"))
    rows = {row[0]: dict(zip(panel.data["columns"], row, strict=True)) for row in panel.data["rows"]}
    assert set(rows) == set(BASELINES)
    # least squares, unit by unit, is what was kept here
    assert rows["least squares 2, unit"]["lead"] == 0.0
    assert rows["square"]["low"] <= rows["square"]["agreement"] <= rows["square"]["high"]


def test_rows_outside_the_calibrated_box_are_counted(rng):
    from fhe.deployment import convert_model

    model = make_mlp(rng)
    x = rng.normal(size=(60, 4))
    options = CkksOptions(fit="least-squares", domain=(-8.0, 8.0))
    deployment = convert_model(model, x, options, rng=np.random.default_rng(0))
    panel = next(p for p in deployment.panels(np.vstack([x[:3], 100 * x[:1]])) if "outside" in p.title)
    assert panel.caption.startswith("1 of 4 rows")
    proved = deployment.report["proved_guard"][0]
    z = deployment.network.preactivations(rng.uniform(-8, 8, size=(200, 4)))[0]
    assert (z >= proved["low"]).all() and (z <= proved["high"]).all()


# Rounding


def kept_network(rng):
    model = make_mlp(rng, (4, 30, 3))
    x = rng.normal(size=(25, 4))
    found = run(model, x, fit="exact", gamma=0.05)
    return model, x, found.network, Targets.of(model.decision, model.logits(x))


def test_logits_may_move_by_what_is_said_and_no_further(rng):
    _, x, network, targets = kept_network(rng)
    rounding = certify_rounding(network, x, targets, coefficient_move=None)
    scores = orient_logits(network.decision, network.logits(x))
    margins = targets.margins(scores)
    row, other = np.unravel_index(np.argmin(margins), margins.shape)
    for factor, survives in ((0.999, True), (1.001, False)):
        moved = scores.copy()
        moved[row, targets.chosen[row]] -= factor * rounding.logit_move
        moved[row, other] += factor * rounding.logit_move
        assert targets.agrees(moved)[row] == survives


def test_coefficients_may_move_by_what_is_said(rng):
    model, x, network, targets = kept_network(rng)
    last = LastLayer.behind(model, x, degree=2, before=network)
    reach = coefficient_reach(last.lift, last.anchor, targets)
    assert reach > 0
    for _ in range(20):
        signs = rng.choice([-1.0, 1.0], size=last.lift.size)
        assert targets.agrees(last.lift.at(last.anchor + 0.999 * reach * signs).scores).all()
    margins = targets.margins(last.lift.at(last.anchor).scores)
    row, other = np.nonzero(targets.counts)
    rows = last.lift.at(last.anchor).rows(row, targets.chosen[row], other)
    worst = np.argmin(margins[row, other] / np.abs(rows).sum(axis=1))
    broken = last.anchor - 1.001 * reach * np.sign(rows[worst])
    assert not targets.agrees(last.lift.at(broken).scores)[row[worst]]


def test_rounding_keeps_decisions_at_the_bits_said_and_loses_one_below(rng):
    model, x, network, targets = kept_network(rng)
    rounding = certify_rounding(network, x, targets, coefficient_move=None)

    seen = network.preactivations(x)[:-1]

    def keeps(rounded):
        return bool((targets.margins(orient_logits(model.decision, rounded.logits(x))) > 0).all())

    assert keeps(round_coefficients(network, seen, rounding.coefficient_bits))
    assert keeps(round_weights(network, rounding.weight_bits))
    assert (
        not keeps(round_coefficients(network, seen, rounding.coefficient_bits - 1))
        or rounding.coefficient_bits == 0
    )
    assert not keeps(round_weights(network, rounding.weight_bits - 1)) or rounding.weight_bits == 0


def test_the_least_margin_is_the_budget_of_the_encryption_noise(rng):
    from fhe.deployment import convert_model, plan_separated

    model = make_mlp(rng, (4, 30, 3))
    x = rng.normal(size=(25, 4))

    def budget(gamma):
        options = CkksOptions(fit="exact", gamma=gamma)
        deployment = convert_model(model, x, options, rng=np.random.default_rng(0))
        usual = max(plan_separated(deployment.network, x, options).bound)
        found = deployment.report["noise_budget"]
        assert found["logit_error"] == max(deployment.plan.bound)
        assert found["within"] == (found["logit_error"] <= found["logit_move"])
        warned = any("encryption may move" in warning for warning in deployment.report["warnings"])
        assert warned == (not found["within"])
        return found, usual

    wide, usual = budget(0.05)
    assert wide["within"] and wide["logit_error"] == usual
    narrow, usual = budget(usual)  # half of which is less than the usual plan's error
    assert narrow["within"] and narrow["logit_error"] < narrow["logit_move"] < usual
    # and this one is beyond the ring: the usual plan, and a warning
    hopeless, usual = budget(1e-8)
    assert not hopeless["within"] and hopeless["logit_error"] == usual


def test_rows_that_are_lost_already_have_no_noise_budget(rng):
    from fhe.deployment import convert_model

    model = make_mlp(rng)
    x = rng.normal(size=(300, 4))
    deployment = convert_model(model, x, CkksOptions(fit="least-squares"), rng=np.random.default_rng(0))
    assert deployment.report["min_margin"] < 0
    assert deployment.report["noise_budget"] is None


# Selection


def test_the_rule_takes_the_closest_to_least_squares_among_the_admissible():
    near, far, least = Candidate("hinge", 0.1, 1.0), Candidate("hinge", 1.0, 1.0), Candidate("least-squares")
    right = np.ones(1000, dtype=bool)
    votes = {least: right.copy(), near: right.copy(), far: right.copy()}
    votes[least][:100] = False  # far behind
    votes[near][:1] = False  # one row behind: within a standard error
    picked, table = _pick(votes, {least: 0.0, near: 1.0, far: 2.0})
    assert picked == near
    assert [row.admissible for row in table] == [False, True, True]
    votes[least] = right.copy()
    assert _pick(votes, {least: 0.0, near: 1.0, far: 2.0})[0] == least


@pytest.mark.parametrize("lead,kept", [(5, True), (6, False)])
def test_least_squares_stays_until_a_lead_over_it_is_significant(lead, kept):
    """Five rows to none happen by chance in 2 · 2⁻⁵ > 5 % of all cases, six to none in 2 · 2⁻⁶ < 5 %."""
    least, other = Candidate("least-squares"), Candidate("hinge", 1.0, 1.0)
    votes = {least: np.ones(800, dtype=bool), other: np.ones(800, dtype=bool)}
    votes[least][:lead] = False
    assert (_pick(votes, {least: 0.0, other: 1.0})[0] == least) == kept
    # the benefit of the doubt is for least squares alone
    near, far = Candidate("hinge", 0.1, 1.0), Candidate("hinge", 1.0, 1.0)
    votes = {near: votes[least], far: votes[other]}
    assert _pick(votes, {near: 0.5, far: 1.0})[0] == far


@pytest.mark.parametrize("kind,enough", [("hinge", 2), ("least-squares", 6)])
def test_fits_on_perturbed_rows_are_taken_only_where_they_lead(kind, enough):
    """By two rows, 1.4 standard errors, or six for least squares (2 · 2⁻⁶ < 5 %); nearness to it is no merit then."""
    plain, perturbed = Candidate(kind, 0.1, 1.0), Candidate("hinge", 0.1, 1.0, perturbed=True)
    for lead in range(8):
        votes = {plain: np.ones(1000, dtype=bool), perturbed: np.ones(1000, dtype=bool)}
        votes[plain][:lead] = False
        picked, table = _pick(votes, {plain: 2.0, perturbed: 1.0})
        assert picked == (perturbed if lead >= enough else plain)
        assert len(table) == 2


def test_folds_judge_every_allowed_row_once_and_never_one_they_fit(rng):
    folds = make_folds(103, rng, folds=5)
    assert sorted(np.concatenate([judged for _, judged in folds.pairs]).tolist()) == list(range(103))
    some = make_folds(103, rng, judged=np.arange(50, 60))
    assert sorted(np.concatenate([judged for _, judged in some.pairs]).tolist()) == list(range(50, 60))
    for fitted, judged in (*folds.pairs, *some.pairs):
        assert not set(fitted) & set(judged)
        assert _training_rows(fitted, 103, 309, perturbed=False).tolist() == fitted.tolist()
        copies = _training_rows(fitted, 103, 309, perturbed=True)
        assert len(set(copies)) == 3 * len(fitted) and set(copies % 103) == set(fitted)
    many = make_folds(50_000, rng)
    assert len(many.pairs) == 1
    assert len(many.pairs[0][0]) == 20_000


def test_candidates_hold_least_squares():
    assert Candidate("least-squares") in AUTO


def test_few_rows_are_warned_of(rng):
    model = make_mlp(rng)
    assert any("say" in w for w in run(model, rng.normal(size=(30, 4))).report["warnings"])
    assert not run(make_mlp(rng, (4, 3, 3)), rng.normal(size=(400, 4))).report["warnings"]


@pytest.mark.parametrize("rows", ["100:200", ":50", "150:"])
def test_selection_can_be_scored_on_named_rows(rng, rows):
    model = make_mlp(rng)
    low, high = rows.split(":")
    found = run(model, rng.normal(size=(200, 4)), selection_rows=rows)
    assert found.report["selection"]["judgements"] == int(high or 200) - int(low or 0)


@pytest.mark.parametrize(
    "widths,family", [((4, 6, 3), "per-unit"), ((4, 6, 3), "shared"), ((4, 5, 5, 3), "per-unit")]
)
def test_augmentation_competes_in_the_cross_validation(rng, widths, family):
    model = make_mlp(rng, widths)
    x = rng.normal(size=(150, 4))
    first, second = (run(model, x, augment=True, family=family) for _ in range(2))
    assert first.network.to_bytes() == second.network.to_bytes()
    assert first.report["rows"] == first.report["selection"]["judgements"] == 150
    without = run(model, x, family=family)
    scored = {row["fit"]: row for row in first.report["selection"]["candidates"]}
    assert len(scored) == 2 * len(AUTO) - 1
    # the same folds and the same least squares: what is fitted without the copies scores as it does without them
    plain = [row["fit"] for row in without.report["selection"]["candidates"]]
    for name, row in zip(plain, without.report["selection"]["candidates"], strict=True):
        assert scored[name]["agreement"] == row["agreement"] and scored[name]["distance"] == row["distance"]
    # and the copies do change the fits
    assert any(
        scored[f"{name} on perturbed rows too"]["distance"] != scored[name]["distance"] for name in plain[1:]
    )
    taken = first.report["selection"]["picked"].endswith("on perturbed rows too")
    assert taken or first.network.to_bytes() == without.network.to_bytes()


@pytest.mark.parametrize("fit", ["least-squares", "kl", "anchored", "soft"])
def test_a_named_fit_sees_the_perturbed_rows_where_they_are_asked_for(rng, fit):
    model = make_mlp(rng)
    x = rng.normal(size=(60, 4))
    same = run(model, x, fit=fit).network.to_bytes() == run(model, x, fit=fit, augment=True).network.to_bytes()
    assert same == (fit == "least-squares")


# Distillation and the search


@pytest.mark.parametrize("widths,rule", [((4, 10, 3), "argmax"), ((4, 8, 6, 1), "sign"), ((4, 8, 3), "argmin")])
def test_distillation_never_ends_below_its_start_on_the_rows_aside(rng, widths, rule):
    pytest.importorskip("torch")
    model = make_mlp(rng, widths, rule)
    x = rng.normal(size=(300, 4))
    targets = Targets.of(model.decision, model.logits(x))
    start = run(model, x, fit="least-squares").network
    found = distill(start, x, targets, rng=np.random.default_rng(0), progress=SILENT, epochs=2)
    again = distill(start, x, targets, rng=np.random.default_rng(0), progress=SILENT, epochs=2)
    assert found.agreement_after >= found.agreement_before
    assert found.network.to_bytes() == again.network.to_bytes()


def test_distillation_is_called_retraining(rng):
    pytest.importorskip("torch")
    model = make_mlp(rng)
    found = run(model, rng.normal(size=(300, 4)), refine="distill")
    assert "retrained" in found.fit
    assert found.report["refine"] == "distill"


def test_the_search_stops_at_the_cheapest_that_is_enough(rng):
    model = make_mlp(rng)
    x = rng.normal(size=(300, 4))
    easy = run(model, x, agreement=0.5)
    assert easy.report["degree"] == 2
    assert len(easy.report["agreement_search"]["tried"]) == 1
    hard = run(model, x, agreement=1.0)
    reached = [row["agreement"] for row in hard.report["agreement_search"]["tried"]]
    assert hard.report["agreement_search"]["reached"] == max(reached)
    if max(reached) < 1.0:
        assert any("not reached" in warning for warning in hard.report["warnings"])


# Options


@pytest.mark.parametrize(
    "text,field,value",
    [
        ("ckks.degree=4", "degree", 4),
        ("ckks.domain=0:1", "domain", (0.0, 1.0)),
        ("ckks.domain=[0,1]", "domain", (0.0, 1.0)),
        ("ckks.selection_rows=6000:8000", "selection_rows", "6000:8000"),
        ("ckks.agreement=0.99", "agreement", 0.99),
        ("ckks.baselines=true", "baselines", True),
        ("ckks.fit=exact", "fit", "exact"),
    ],
)
def test_options_are_read_from_the_command(text, field, value):
    import fhe
    from deploy.options import parse_options

    assert getattr(parse_options({"ckks": fhe.target}, sets=[text])["ckks"], field) == value


@pytest.mark.parametrize(
    "text", ["ckks.degree=5", "ckks.degree=two", "ckks.domain=1", "ckks.agreement=2", "ckks.fit=exakt"]
)
def test_options_out_of_range_are_refused(text):
    import fhe
    from deploy.errors import UsageError
    from deploy.options import parse_options

    with pytest.raises(UsageError):
        parse_options({"ckks": fhe.target}, sets=[text])
