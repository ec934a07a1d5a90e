"""Conversion and evaluation, with the least target there is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import copying_target
import numpy as np
import pytest
from networks import random_mlp

from deploy.bundle import Bundle
from deploy.conversion import convert, extend, stated_guard
from deploy.dataset import Calibration, HeldOut
from deploy.errors import BundleError, DataError, ModelRefused, OverlapError, RequirementMissing, UsageError
from deploy.evaluation import evaluate, merge_report, replaced_figures, store_report
from deploy.fidelity import agreement_interval
from deploy.requirement import Requirement

pytestmark = pytest.mark.usefixtures("copy_target")


@pytest.fixture
def rows(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(60, 4))


@pytest.fixture
def bundle(tmp_path: Path, rng: np.random.Generator, rows: np.ndarray) -> Bundle:
    options = {"copy": copying_target.Options(shift=0.5)}
    return convert(random_mlp(rng, (4, 6, 3)), Calibration(rows[:30]), options).write(tmp_path / "b")


def test_the_document_says_what_was_done(rng: np.random.Generator, rows: np.ndarray) -> None:
    model = random_mlp(rng, (4, 6, 3))
    options = {"copy": copying_target.Options(shift=0.5)}
    found = convert(model, Calibration(rows[:30]), options, held_out=HeldOut(rows[30:])).document("b")
    json.dumps(found, allow_nan=False)
    agrees = model.decide(rows) == np.argmax(model.logits(rows) + [0.5, 0, 0], axis=1)
    entry = found["targets"]["copy"]
    assert entry["calibration_agreement"] == pytest.approx(agrees[:30].mean())
    assert entry["held_out_agreement"] == pytest.approx(agrees[30:].mean())
    assert entry["held_out_interval"] == list(agreement_interval(int(agrees[30:].sum()), 30))
    assert entry["kl"] > 0
    assert entry["reference"] == "the float network, shifted"
    assert found["model"] == {"kind": "mlp", "widths": [4, 6, 3], "parameters": 51, "decision": "argmax"}
    assert found["refused"] == {}
    alone = convert(model, Calibration(rows[:30]), options).document()
    assert alone["bundle"] is None
    assert alone["targets"]["copy"]["held_out_agreement"] is None


@pytest.mark.parametrize(
    ("options", "cause", "remedy"),
    [
        (copying_target.Options(refuse=True), "layer 1: too good to copy", "keep it"),
        (copying_target.Options(fail=True), "layer 2: needs 5 levels, 3 are left", "use fewer layers"),
    ],
)
def test_a_refusal_is_said_and_nothing_is_written(
    tmp_path: Path,
    rng: np.random.Generator,
    rows: np.ndarray,
    options: copying_target.Options,
    cause: str,
    remedy: str,
) -> None:
    conversion = convert(random_mlp(rng, (4, 3)), Calibration(rows), {"copy": options})
    assert conversion.document()["refused"]["copy"] == {"cause": cause, "remedy": remedy}
    with pytest.raises(ModelRefused, match=cause):
        conversion.write(tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_rows_of_the_wrong_width_name_their_file(
    rng: np.random.Generator, rows: np.ndarray, bundle: Bundle
) -> None:
    options = {"copy": copying_target.Options()}
    with pytest.raises(DataError, match=r"rows.npz: rows of shape \(60, 4\), the model takes 5 values"):
        convert(random_mlp(rng, (5, 3)), Calibration(rows, source="rows.npz"), options)
    with pytest.raises(DataError, match=r"held.npz: rows of shape"):
        convert(
            random_mlp(rng, (4, 3)), Calibration(rows), options, held_out=HeldOut(rows[:, :3], source="held.npz")
        )
    with pytest.raises(DataError, match=r"held.npz: rows of shape"):
        evaluate(bundle, HeldOut(rows[:, :3], source="held.npz"))


def test_overlap_is_refused_with_its_count(rng: np.random.Generator, rows: np.ndarray, bundle: Bundle) -> None:
    with pytest.raises(OverlapError, match="10 of 20 rows were calibrated on, the first is row 20"):
        evaluate(bundle, HeldOut(rows[20:40], first_row=20))
    with pytest.raises(OverlapError, match="1 of 31 rows"):
        convert(
            random_mlp(rng, (4, 3)),
            Calibration(rows[:30]),
            {"copy": copying_target.Options()},
            held_out=HeldOut(rows[29:]),
        )
    found = evaluate(bundle, HeldOut(rows[20:40]), drop_overlap=True)
    assert (found["rows"], found["dropped_overlap"]) == (10, 10)


def test_evaluation_compares_reference_and_real_run(bundle: Bundle, rows: np.ndarray) -> None:
    y = bundle.model.decide(rows[30:])
    found = evaluate(bundle, HeldOut(rows[30:], y), real=5)
    json.dumps(found, allow_nan=False)
    entry = found["targets"]["copy"]
    assert entry["worst_logit_error"] == pytest.approx(0.5)
    assert entry["original_accuracy"] == 1.0
    assert entry["accuracy"] == pytest.approx(entry["agreement"])
    room = bundle.model.decision.margins(bundle.model.logits(rows[30:])) / 2
    assert entry["certified"] == pytest.approx(np.mean(room > 0.5 + 1e-9))
    assert entry["bound_kind"] == "proved"
    [real] = entry["real"]
    assert real["engine"] == "copy"
    assert real["rows"] == 5
    assert real["max_abs_error"] == pytest.approx(1e-3)
    assert real["failures"] == [{"row": 2, "cause": "out of luck"}, {"row": 3, "cause": "the answer is not finite"}]
    assert real["agreement"] == pytest.approx(3 / 5)
    assert real["seconds_per_row"] == {"client": 0.0, "server": pytest.approx(2e-4)}
    assert evaluate(bundle, HeldOut(rows[30:]), real=1000)["targets"]["copy"]["real"][0]["rows"] == 30


def test_wrong_requests_are_named(bundle: Bundle, rows: np.ndarray) -> None:
    with pytest.raises(UsageError, match=r"target copy: no engine 'copi'; did you mean copy\?"):
        evaluate(bundle, HeldOut(rows[30:]), real=2, engine="copi")
    with pytest.raises(UsageError, match="no target 'other' in this bundle"):
        evaluate(bundle, HeldOut(rows[30:]), targets=["other"])
    with pytest.raises(UsageError, match="--real -1"):
        evaluate(bundle, HeldOut(rows[30:]), real=-1)
    with pytest.raises(UsageError, match="no target was chosen"):
        convert(bundle.model, Calibration(rows), {})
    with pytest.raises(DataError, match="the stated input box has 2 features, the model 4"):
        convert(
            bundle.model,
            Calibration(rows),
            {"copy": copying_target.Options()},
            guard=stated_guard(np.zeros(2), np.ones(2)),
        )


@pytest.mark.parametrize(
    ("low", "high"),
    [([0.0], [np.inf]), ([1.0], [0.0]), ([0.0, 0.0], [1.0])],
    ids=["infinite", "inverted", "uneven"],
)
def test_a_stated_box_is_checked(low: list[float], high: list[float]) -> None:
    with pytest.raises(DataError):
        stated_guard(np.array(low), np.array(high))


def test_a_missing_requirement_stops_the_real_run_with_the_line_to_install(
    bundle: Bundle, rows: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = Requirement("nosuch", "apt-get install nosuch", program="no-such-program")
    monkeypatch.setattr(copying_target.CopyEngine, "requires", needed)
    with pytest.raises(RequirementMissing, match="nosuch is not installed; run: apt-get install nosuch"):
        evaluate(bundle, HeldOut(rows[30:]), real=1)


def test_a_report_replaces_only_what_was_evaluated() -> None:
    before = {"targets": {"a": {"rows": 1}, "b": {"rows": 1}}}
    after = merge_report(before, {"rows": 9, "targets": {"b": {"agreement": 1.0}}})
    assert after["targets"]["a"] == {"rows": 1}
    assert after["targets"]["b"] == {"agreement": 1.0, "evaluation": {"rows": 9}}


def test_what_a_report_replaces_is_said_and_real_runs_on_the_same_rows_are_kept() -> None:
    def judged(rows: str, *engines: str) -> dict[str, Any]:
        runs = [{"engine": engine, "rows": 5, "agreement": 1.0} for engine in engines]
        return {
            "rows": 9,
            "source": "x.npz",
            "rows_sha256": rows,
            "targets": {"a": {"agreement": 0.5, "real": runs}},
        }

    first = merge_report({"targets": {}}, judged("r", "slow", "fast"))
    assert replaced_figures({"targets": {}}, judged("r")) == {}
    again = judged("r", "fast")
    assert [run["engine"] for run in merge_report(first, again)["targets"]["a"]["real"]] == ["slow", "fast"]
    assert replaced_figures(first, again) == {
        "a": {
            "rows": 9,
            "source": "x.npz",
            "agreement": 0.5,
            "real": [{"engine": "fast", "rows": 5, "agreement": 1.0}],
        }
    }
    other = judged("s")
    assert merge_report(first, other)["targets"]["a"]["real"] == []
    assert [run["engine"] for run in replaced_figures(first, other)["a"]["real"]] == ["slow", "fast"]


def test_figures_are_not_stored_in_a_bundle_that_took_the_place_of_the_judged_one(
    bundle: Bundle, rows: np.ndarray
) -> None:
    found = evaluate(bundle, HeldOut(rows[30:]))
    assert store_report(bundle, found) == {}
    (bundle.path / "reports/.fidelity.json.tmp").write_bytes(b"{")  # another one is just being written
    assert store_report(bundle, found)["copy"]["rows"] == len(rows) - 30
    options = {"copy": copying_target.Options(shift=9.0)}
    extension = extend(bundle, Calibration(rows[:5]), options)
    convert(bundle.model, Calibration(rows[:9]), options).write(bundle.path, force=True)
    for act in (lambda: store_report(bundle, found), lambda: extension.write(bundle.path, force=True)):
        with pytest.raises(BundleError, match="was replaced by another bundle in the meantime; run this again"):
            act()
    assert Bundle.read(bundle.path).report() == {"targets": {}}
