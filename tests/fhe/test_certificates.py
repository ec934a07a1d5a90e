"""Certificates: what they claim is checked by a module that shares no code with the solver, and by brute force."""

from __future__ import annotations

import ast
import hashlib
import json
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fhe.certificate_checker
from deploy.errors import CertificateRejected
from deploy.model import Affine, Decision, Mlp
from deploy.progress import SILENT
from fhe.certificate_checker import check_certificate
from fhe.certificate_checker.enclosure import Enclosed
from fhe.certificate_checker.integers import Exact
from fhe.options import CkksOptions
from fhe.separation import LastLayer, separate
from fhe.separation.exact import closest_separating, decide_separability
from fhe.separation.targets import Targets


def make_mlp(rng, widths, rule="argmax") -> Mlp:
    affines = tuple(
        Affine(np.float32(rng.normal(size=(n, m)) / np.sqrt(m)), np.float32(rng.normal(size=n) / 3))
        for m, n in pairwise(widths)
    )
    return Mlp(affines, ("relu",) * (len(widths) - 2), Decision(rule))


def run(model, x, **options):
    return separate(model, x, CkksOptions(fit="exact", **options), rng=np.random.default_rng(0))


def reseal(document) -> bytes:
    document.pop("sha256", None)
    digest = hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return json.dumps({**document, "sha256": digest}).encode()


@pytest.mark.parametrize("widths", [(4, 30, 3), (4, 12, 10, 3)])
@pytest.mark.parametrize("rule", ["argmax", "argmin"])
def test_a_separable_network_keeps_every_decision_with_the_margin_asked(rng, widths, rule):
    model = make_mlp(rng, widths, rule)
    x = rng.normal(size=(25, 4))
    found = run(model, x, gamma=0.05)
    assert found.report["separable"] is True
    assert found.report["min_margin"] >= 0.05
    assert (model.decide(x) == model.decision.decide(found.network.logits(x))).all()
    checked = check_certificate(found.certificates["feasible.json"], model, x)
    assert checked.kind == "feasible"
    assert found.report["certificates"][0]["verified"]


def infeasible_case():
    """An XOR-like network that no quadratic in its single hidden unit's line can follow."""
    first = Affine([[1.0], [1.0], [1.0], [1.0]], [0.0, -1.0, -2.0, -3.0])
    last = Affine([[1.0, -2.0, 2.0, -2.0], [0.0, 0.0, 0.0, 0.0]], [-0.4, 0.0])
    return Mlp((first, last), ("relu",), Decision("argmax")), np.linspace(-1.03, 4.51, 40)[:, None]


def test_an_inseparable_network_is_proved_so():
    model, x = infeasible_case()
    found = run(model, x)
    assert found.report["separable"] is False
    checked = check_certificate(found.certificates["infeasible.json"], model, x)
    assert checked.kind == "infeasible"
    assert any("proved" in warning for warning in found.report["warnings"])


def test_a_changed_digit_is_rejected_even_under_a_right_hash():
    model, x = infeasible_case()
    document = json.loads(run(model, x).certificates["infeasible.json"])
    multiplier = document["multipliers"][0]
    document["multipliers"][0] = ("2" if multiplier[0] == "1" else "1") + multiplier[1:]
    with pytest.raises(CertificateRejected, match="own hash"):
        check_certificate(json.dumps(document).encode(), model, x)
    with pytest.raises(CertificateRejected, match="not zero"):
        check_certificate(reseal(document), model, x)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(multipliers=["0"] * len(d["multipliers"])),
        lambda d: d.update(multipliers=["-" + m for m in d["multipliers"]]),
        lambda d: d.update(row=d["row"][:-1]),
        lambda d: d["row"].__setitem__(0, 10_000),
        lambda d: d.update(other=[1 - k for k in d["other"]]),
        lambda d: d.update(degree=0),
        lambda d: d.update(degree=4),
        lambda d: d.update(model="0" * 64),
        lambda d: d.update(rows="0" * 64),
        lambda d: d.update(surplus=1),
        lambda d: d.update(version=2),
    ],
)
def test_false_infeasibility_claims_are_rejected(change):
    model, x = infeasible_case()
    document = json.loads(run(model, x).certificates["infeasible.json"])
    change(document)
    with pytest.raises(CertificateRejected):
        check_certificate(reseal(document), model, x)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(margin=d["margin"] * 1.01),
        lambda d: d.update(margin=-1.0),
        lambda d: d.update(tie=1.0),
        lambda d: d["biases"][-1].__setitem__(0, d["biases"][-1][0] + 10.0),
        lambda d: d.update(coefficients=[]),
        lambda d: d["coefficients"][0].__setitem__(0, [0.0, 5.0, -3.0]),
    ],
)
def test_false_feasibility_claims_are_rejected(rng, change):
    model = make_mlp(rng, (4, 30, 3))
    x = rng.normal(size=(25, 4))
    document = json.loads(run(model, x).certificates["feasible.json"])
    check_certificate(reseal(document), model, x)
    change(document)
    with pytest.raises((CertificateRejected, ValueError)):
        check_certificate(reseal(document), model, x)


def test_the_field_that_a_certificate_lacks_is_named(rng):
    with pytest.raises(CertificateRejected, match="version: Field required"):
        check_certificate(b'{"kind": "infeasible"}', make_mlp(rng, (2, 3, 2)), rng.normal(size=(4, 2)))


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff\xfe", b'{"kind": "infeasible"}'])
def test_what_is_no_certificate_is_rejected(data):
    model, x = infeasible_case()
    with pytest.raises(CertificateRejected):
        check_certificate(data, model, x)


def test_tight_margins_are_settled_in_exact_integers():
    """z = x, polynomial z, margin exactly the one claimed: floating point alone can never prove equality."""
    model = Mlp((Affine([[1.0]], [0.0]), Affine([[1.0], [0.0]], [0.0, 0.0])), ("relu",), Decision("argmax"))
    x = np.array([[0.1], [0.3]])
    document = {
        "version": 1,
        "kind": "feasible",
        "model": model.sha256,
        "rows": hashlib.sha256(x.tobytes()).hexdigest(),
        "tie": 1e-9,
        "margin": 0.1,
        "biases": [[0.0], [0.0, 0.0]],
        "weights": [None, None],
        "coefficients": [[[0.0, 1.0, 0.0]]],
    }
    assert check_certificate(reseal(document), model, x).exact_rows == 1
    document["margin"] = float(np.nextafter(0.1, 1))
    with pytest.raises(CertificateRejected):
        check_certificate(reseal(document), model, x)


@given(st.integers(0, 2000))
@settings(max_examples=25, deadline=None)
def test_enclosures_hold_against_rationals(seed):
    rng = np.random.default_rng(seed)
    weight, bias = rng.normal(size=(3, 4)) * 10.0 ** rng.integers(-3, 4), rng.normal(size=3)
    table, x = rng.normal(size=(3, 5)), rng.normal(size=(2, 4))
    enclosed = Enclosed.of(x).affine(weight, bias).polynomial(table)
    exact = Exact.of(x).affine(weight, bias).polynomial(table)
    for index in np.ndindex(2, 3):
        z = sum(Fraction(float(w)) * Fraction(float(v)) for w, v in zip(weight[index[1]], x[index[0]], strict=True))
        z += Fraction(float(bias[index[1]]))
        true = sum(Fraction(float(c)) * z**k for k, c in enumerate(table[index[1]]))
        assert Fraction(int(exact.whole[index])) / 2**exact.shift == true
        assert abs(Fraction(float(enclosed.value[index])) - true) <= Fraction(float(enclosed.error[index]))


@given(st.integers(0, 300))
@settings(max_examples=10, deadline=None)
def test_the_working_set_reaches_the_optimum_of_the_full_program(seed):
    cvxpy = pytest.importorskip("cvxpy")
    rng = np.random.default_rng(seed)
    model = make_mlp(rng, (4, 20, 3))
    x = rng.normal(size=(30, 4))
    targets = Targets.of(model.decision, model.logits(x))
    last = LastLayer.behind(model, x, degree=2)
    verdict = decide_separability(last.lift, targets, last.anchor, gamma=0.1)
    if verdict.answer != "separable":
        return
    ours = closest_separating(last.lift, targets, last.anchor, verdict.parameters, gamma=0.1, progress=SILENT)
    row, other = np.nonzero(targets.counts)
    point = last.lift.at(last.anchor)
    matrix = point.rows(row, targets.chosen[row], other)
    start = point.scores[row, targets.chosen[row]] - point.scores[row, other]
    step = cvxpy.Variable(last.lift.size)
    program = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(step)), [matrix @ step >= 0.1 - start])
    program.solve(solver=cvxpy.CLARABEL)
    # the solver stops at a relative gap of 1e-8; the distance is the root of the objective
    assert ours.distance == pytest.approx(float(np.linalg.norm(step.value)), rel=1e-5, abs=1e-6)


def test_the_working_set_grows_to_what_is_needed_from_an_empty_one(rng):
    model = make_mlp(rng, (4, 30, 3))
    x = rng.normal(size=(25, 4))
    targets = Targets.of(model.decision, model.logits(x))
    last = LastLayer.behind(model, x, degree=2)
    verdict = decide_separability(last.lift, targets, last.anchor, gamma=0.1)
    assert verdict.answer == "separable"
    near = closest_separating(last.lift, targets, last.anchor, verdict.parameters, gamma=0.1, progress=SILENT)
    wide = last.anchor + 100 * (verdict.parameters - last.anchor)
    wide[-3:] = 0.0
    start = wide if targets.margins(last.lift.at(wide).scores).min() > 0.2 else 50 * near.parameters
    far = closest_separating(last.lift, targets, last.anchor, start, gamma=0.1, progress=SILENT)
    assert far.rounds > 1 or far.tight == near.tight
    assert far.least_margin >= 0.1
    # both end at the one optimum; the program is polished to 1e-10
    assert far.distance == pytest.approx(near.distance, rel=1e-6)


def test_the_checker_imports_nothing_of_the_solver():
    folder = Path(fhe.certificate_checker.__file__).parent
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert not name.startswith("fhe") or name.startswith("fhe.certificate_checker"), (file.name, name)


def test_verify_answers_on_the_command_line(rng, tmp_path, capsys):
    from deploy.bundle import Bundle
    from deploy.cli.main import run as command
    from deploy.conversion import convert
    from deploy.dataset import Calibration

    model = make_mlp(rng, (4, 30, 3))
    x = rng.normal(size=(25, 4))
    np.savez(tmp_path / "rows.npz", x=x)
    conversion = convert(model, Calibration(x), {"ckks": CkksOptions(fit="exact")})
    conversion.write(tmp_path / "bundle")
    certificate = Bundle.read(tmp_path / "bundle").path / "targets/ckks/certificates/feasible.json"
    call = [
        "verify",
        str(certificate),
        "--model",
        str(tmp_path / "bundle"),
        "--calibration",
        str(tmp_path / "rows.npz"),
    ]
    assert command([*call, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified"] is True
    damaged = tmp_path / "damaged.json"
    damaged.write_bytes(certificate.read_bytes().replace(b'"margin": 0.1', b'"margin": 0.2'))
    assert command([call[0], str(damaged), *call[2:]]) == 3
