"""How a bundle's deployments do on held-out rows: by their reference, and by real runs.

Axes: ``batch``, ``n_out``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from deploy.conversion import check_width
from deploy.dataset import HeldOut, check_disjoint, row_hashes
from deploy.errors import DeployError, UsageError
from deploy.fidelity import accuracy, agreement_interval, measure_fidelity
from deploy.progress import SILENT, Progress
from deploy.registry import nearest

if TYPE_CHECKING:
    from deploy.arrays import Array
    from deploy.bundle import Bundle
    from deploy.model import Model
    from deploy.target import Deployment, Engine

__all__ = ["evaluate", "merge_report", "replaced_figures", "run_engine", "store_report"]


def evaluate(
    bundle: Bundle,
    held_out: HeldOut,
    *,
    targets: Sequence[str] | None = None,
    real: int = 0,
    engine: str | None = None,
    drop_overlap: bool = False,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Judge a bundle's targets on held-out rows: the JSON of ``evaluate``.

    Parameters
    ----------
    held_out : rows that the bundle has not calibrated on; labels add accuracies.
    targets : which, all by default.
    real : run the real thing on the first so many rows.
    engine : which engine, the first of each target by default.
    drop_overlap : leave out rows that were calibrated on instead of refusing.

    Raises
    ------
    OverlapError : with the count of rows that were calibrated on.
    UsageError : no such target or engine.
    RequirementMissing : an engine needs something that is not installed.
    """
    model = bundle.model
    x = check_width(model, held_out)
    kept = check_disjoint(held_out, bundle.calibration_hashes, drop=drop_overlap)
    dropped = len(held_out) - len(kept)
    x = model.check_rows(kept.x)
    if real < 0:
        raise UsageError(f"--real {real}", remedy="give the number of rows to run, 0 for none")
    original = model.logits(x)
    document: dict[str, Any] = {
        "rows": len(kept),
        "source": kept.source.rpartition("/")[2],
        "rows_sha256": hashlib.sha256(b"".join(row_hashes(x))).hexdigest(),
        "targets": {},
    }
    if dropped:
        document["dropped_overlap"] = dropped
    document["rows_outside_input_guard"] = int(bundle.interface.guard.outside(x).any(axis=1).sum())
    document["rows_outside_activation_guard"] = _rows_outside(bundle.activation_guard, model.preactivations(x)[:-1])
    for name in targets if targets is not None else bundle.targets:
        deployment = bundle.deployment(name)
        try:
            document["targets"][name] = _evaluate_target(
                name, model, deployment, kept, original, real=min(real, len(x)), engine=engine, progress=progress
            )
        except DeployError as error:
            raise error.at(f"target {name}") from None
    return document


def _rows_outside(guard: Mapping[str, Any], preactivations: Sequence[Array]) -> int:
    """How many rows leave the calibrated boxes of the hidden layers (batch, units) each."""
    inside = np.ones(len(preactivations[0]), dtype=bool) if preactivations else np.ones(0, dtype=bool)
    for box, values in zip(guard.get("boxes", []), preactivations, strict=False):
        inside &= ((values >= box["low"]) & (values <= box["high"])).all(axis=1)
    return int(np.count_nonzero(~inside))


def _evaluate_target(
    name: str,
    model: Model,
    deployment: Deployment,
    rows: HeldOut,
    original: Array,
    *,
    real: int,
    engine: str | None,
    progress: Progress,
) -> dict[str, Any]:
    with progress.stage(f"{name}: reference", len(rows)) as advance:
        reference = deployment.logits(rows.x)
        advance(len(rows))
    bound = deployment.bound(rows.x)
    fidelity = measure_fidelity(
        model.decision,
        original,
        reference,
        rows.x,
        numbers=rows.numbers,
        bound=None if bound is None else bound.abs_logit,
    )
    found: dict[str, Any] = {
        "reference": deployment.summary().get("reference", ""),
        **fidelity.document(),
        "accuracy": accuracy(model.decision, model.classes, reference, rows.y),
        "original_accuracy": accuracy(model.decision, model.classes, original, rows.y),
        "bound_kind": None if bound is None else bound.kind,
        "disagreeing_rows": rows.numbers[~fidelity.agrees].tolist(),
        "real": [],
        "panels": [asdict(panel) for panel in deployment.panels(rows.x)],
    }
    if real:
        engines = deployment.engines()
        if not engines:
            raise UsageError("has no real run", remedy="leave out --real")
        choice = engine or next(iter(engines))
        if choice not in engines:
            raise UsageError(f"no engine {choice!r}", remedy=nearest(choice, engines))
        found["real"].append(
            run_engine(
                choice,
                engines[choice],
                model,
                rows.x[:real],
                reference[:real],
                numbers=rows.numbers[:real],
                progress=progress,
            )
        )
    return found


def run_engine(
    name: str,
    engine: Engine,
    model: Model,
    x: Array,
    reference: Array,
    *,
    numbers: Array | None = None,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Run an engine on rows x (batch, n_in) and compare it with the reference logits (batch, n_out).

    Failed rows are called by their `numbers` (batch,), by default their places in `x`.
    """
    if engine.requires is not None:
        engine.requires.check()
    with progress.stage(f"{name}: real run", len(x)) as advance, engine:
        run = engine.run(x)
        advance(len(x))
    failures: Mapping[int, str] = {
        **{int(row): "the answer is not finite" for row in np.flatnonzero(~np.isfinite(run.logits).all(axis=1))},
        **run.failures,
    }
    names = np.arange(len(x)) if numbers is None else numbers
    good = np.array([row for row in range(len(x)) if row not in failures], dtype=np.int64)
    agrees = int(model.decision.agree(reference[good], run.logits[good]).sum()) if len(good) else 0
    errors = np.abs(run.logits[good] - reference[good])
    return {
        "engine": name,
        "rows": len(x),
        "agreement": agrees / len(x),
        "agreement_interval": list(agreement_interval(agrees, len(x))),
        "max_abs_error": float(errors.max()) if len(good) else None,
        "seconds_per_row": {side: seconds / len(x) for side, seconds in run.seconds.items()},
        "failures": [{"row": int(names[row]), "cause": cause} for row, cause in sorted(failures.items())],
        **run.diagnostics,
    }


def store_report(bundle: Bundle, found: Mapping[str, Any]) -> dict[str, Any]:
    """Put what :func:`evaluate` found into the bundle's report; say what that replaces.

    Returns
    -------
    For each target that was judged before, what is no longer there, see :func:`replaced_figures`.

    Raises
    ------
    BundleError : the bundle was replaced by another one since it was read; nothing is stored.
    StorageError : the place cannot be written.
    """
    there = bundle.read_again()  # targets may have been judged by others meanwhile
    before = there.report()
    there.write_report(merge_report(before, found))
    return replaced_figures(before, found)


def replaced_figures(previous: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`merge_report` leaves out of a report: rows, agreement and real runs of each target judged again.

    >>> replaced_figures({"targets": {"a": {"agreement": 0.5, "evaluation": {"rows": 2}}}}, {"targets": {"a": {}}})
    {'a': {'rows': 2, 'source': None, 'agreement': 0.5, 'real': []}}
    """
    replaced = {}
    for name, new in found["targets"].items():
        old = previous.get("targets", {}).get(name)
        if old is None:
            continue
        about = old.get("evaluation", {})
        kept = _kept_runs(old, new, found)
        replaced[name] = {
            "rows": about.get("rows"),
            "source": about.get("source"),
            "agreement": old.get("agreement"),
            "real": [
                {"engine": run.get("engine"), "rows": run.get("rows"), "agreement": run.get("agreement")}
                for run in old.get("real", [])
                if run not in kept
            ],
        }
    return replaced


def _kept_runs(old: Mapping[str, Any], new: Mapping[str, Any], found: Mapping[str, Any]) -> list[Any]:
    """Earlier real runs that still stand: on the same rows, by engines that were not run again."""
    rows = found.get("rows_sha256")
    if rows is None or old.get("evaluation", {}).get("rows_sha256") != rows:
        return []
    again = {run.get("engine") for run in new.get("real", [])}
    return [run for run in old.get("real", []) if run.get("engine") not in again]


def merge_report(previous: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Put newly evaluated targets into a bundle's report.

    A target's entry is replaced, but for real runs on the same rows by engines that were not run again.

    >>> sorted(merge_report({"targets": {"a": {}}}, {"rows": 2, "targets": {"b": {}}})["targets"])
    ['a', 'b']
    """
    about = {key: value for key, value in found.items() if key != "targets"}
    entries = {name: {**entry, "evaluation": about} for name, entry in found["targets"].items()}
    for name, entry in entries.items():
        kept = _kept_runs(previous.get("targets", {}).get(name, {}), entry, found)
        if kept:
            entry["real"] = [*kept, *entry["real"]]
    return {"targets": {**previous.get("targets", {}), **entries}}
