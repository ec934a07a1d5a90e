"""``demo``: the shipped digits model through every target, real runs included. Downloads nothing."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.arguments import Force
from deploy.cli.verb import DoneBut
from deploy.cli.verbs.evaluate import fidelity_table
from deploy.errors import RequirementMissing
from deploy.progress import Progress
from deploy.target import Command, Json
from deploy.text import cost_lines

if TYPE_CHECKING:
    from deploy.bundle import Bundle

__all__ = ["command"]


def run(
    progress: Progress,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the bundle and the report go.")
    ] = Path("relu-deploy-demo"),
    real: Annotated[int, typer.Option("--real", metavar="N", min=1, help="Rows of each real run.")] = 20,
    also: Annotated[
        list[str] | None,
        typer.Option("--also", metavar="T.OPTION=VALUE", help="Convert once more with this option; repeatable."),
    ] = None,
    force: Force = False,
) -> Json:
    """Convert, evaluate with real runs, and draw the report."""
    from deploy.bundle import TOP_NAMES, Bundle
    from deploy.evaluation import store_report
    from deploy.writing import check_absent, storage_errors

    bundle_path, page_path = output / "digits.bundle", output / "report.html"
    for path in (bundle_path, page_path):
        check_absent(path, force=force, replaces=TOP_NAMES)
    with storage_errors(output):
        output.mkdir(parents=True, exist_ok=True)
    missing: list[RequirementMissing] = []
    converted = _convert(bundle_path, force=force, missing=missing, progress=progress)
    bundle = Bundle.read(bundle_path)
    evaluated: dict[str, Any] = {"targets": {}}
    for name in bundle.targets:
        found = _evaluate(bundle, name, real=real, missing=missing, progress=progress)
        store_report(bundle, found)
        evaluated["targets"].update(found["targets"])
    for setting in also or []:
        name = setting.partition(".")[0]
        path = output / f"digits-{re.sub('[^a-z0-9]+', '-', setting.lower())}.bundle"
        label = f"{name} ({setting.removeprefix(f'{name}.')})"
        converted[label] = _convert(path, force=force, missing=missing, progress=progress, setting=setting)[name]
        found = _evaluate(Bundle.read(path), name, real=real, missing=missing, progress=progress)
        evaluated["targets"][label] = found["targets"][name]
    document = {
        "bundle": str(bundle_path),
        "report": _draw(bundle_path, page_path, missing=missing),
        "convert": converted,
        "evaluate": {name: _brief(entry) for name, entry in evaluated["targets"].items()},
        "served": _serve(bundle_path, real=real, missing=missing, progress=progress),
        "missing": [str(error) for error in missing],
    }
    if missing:
        raise DoneBut(document, missing[0])
    return document


def _convert(
    path: Path,
    *,
    force: bool,
    missing: list[RequirementMissing],
    progress: Progress,
    setting: str | None = None,
) -> dict[str, Any]:
    """Convert for one target after the other, so that one that lacks something does not stop the others.

    With a `setting` ("target.option=value"), for that target alone.
    """
    from deploy.conversion import convert, extend
    from deploy.dataset import Calibration, HeldOut
    from deploy.demo import CALIBRATION, HELD_OUT, MODEL
    from deploy.loaders import load
    from deploy.options import parse_options
    from deploy.registry import target, targets

    chosen = targets()
    if setting is not None:
        name = setting.partition(".")[0]
        chosen = {name: target(name)}
    options_by_name = parse_options(chosen, sets=[] if setting is None else [setting])
    model, rows, held_out = load(MODEL), Calibration.read(CALIBRATION), HeldOut.read(HELD_OUT)
    documents: dict[str, Any] = {}
    bundle: Bundle | None = None
    for name, options in options_by_name.items():
        how = "" if setting is None else f" with {setting}"
        progress.say(f"{name}: converting the digits model, {'-'.join(map(str, model.widths))}{how}")
        try:
            if bundle is None:
                conversion = convert(model, rows, {name: options}, held_out=held_out, progress=progress)
            else:
                conversion = extend(bundle, rows, {name: options}, held_out=held_out, progress=progress)
        except RequirementMissing as error:
            progress.say(f"{name}: {error}")
            missing.append(error)
            continue
        bundle = conversion.write(path, force=force or bundle is not None)
        documents[name] = conversion.document()["targets"][name]
        progress.say("\n  ".join([f"{name} costs:", *cost_lines(documents[name]["cost"])]))
    if bundle is None:
        raise (
            missing[0]
            if missing
            else RequirementMissing("no target is registered", remedy="see relu-deploy doctor")
        )
    return documents


def _evaluate(
    bundle: Bundle, name: str, *, real: int, missing: list[RequirementMissing], progress: Progress
) -> dict[str, Any]:
    """Judge one target, with its real run where what it needs is installed."""
    from deploy.dataset import HeldOut
    from deploy.demo import HELD_OUT
    from deploy.evaluation import evaluate

    rows = HeldOut.read(HELD_OUT)
    judge = partial(evaluate, bundle, rows, targets=[name], progress=progress)
    if bundle.deployment(name).engines():
        progress.say(f"{name}: the real thing on {real} rows")
        try:
            return judge(real=real)
        except RequirementMissing as error:
            progress.say(str(error))
            missing.append(error)
    return judge()


def _draw(bundle_path: Path, page: Path, *, missing: list[RequirementMissing]) -> str | None:
    from deploy.bundle import Bundle
    from deploy.report import render_report
    from deploy.writing import write_file

    try:
        text = render_report(Bundle.read(bundle_path))
    except RequirementMissing as error:
        missing.append(error)
        return None
    write_file(page, text.encode(), force=True)
    return str(page)


def _serve(
    path: Path, *, real: int, missing: list[RequirementMissing], progress: Progress
) -> dict[str, dict[str, Any]]:
    """Serve the bundle, ask as a client does, and compare with each target's reference."""
    from deploy.bundle import Bundle
    from deploy.dataset import HeldOut
    from deploy.demo import HELD_OUT
    from deploy.service.trial import predict_served

    bundle = Bundle.read(path)
    served = [name for name in bundle.targets if bundle.deployment(name).archives() is not None]
    if not served:
        return {}
    progress.say(f"serving {', '.join(served)} on 127.0.0.1, {real} rows by a client")
    rows = HeldOut.read(HELD_OUT).x[:real]
    try:
        answers = predict_served(path, rows)
    except RequirementMissing as error:
        progress.say(str(error))
        missing.append(error)
        return {}
    decision = bundle.interface.decision
    return {
        name: {
            "target": answer["target"],
            "rows": len(rows),
            "agreement": float(
                decision.agree(bundle.deployment(answer["target"]).logits(rows), answer["logits"]).mean()
            ),
            "first_label": answer["labels"][0],
            "seconds_per_row": answer["seconds"] / len(rows),
            "key_bytes": answer["key_bytes"],
        }
        for name, answer in answers.items()
    }


def _brief(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in ("panels", "worst_rows", "disagreeing_rows")}


def text(document: Json) -> str:
    """Draw the fidelity of each target, and say where to look."""
    assert isinstance(document, dict)
    lines = [fidelity_table(document["evaluate"]), ""]
    for name, served in document["served"].items():
        how = "encrypted, " if served["key_bytes"] else ""
        agreement = f"{100 * served['agreement']:.0f} % as its reference decides"
        lines.append(
            f"served {name}: {how}row 0 is a {served['first_label']}; {served['rows']} rows, {agreement}, "
            f"{1000 * served['seconds_per_row']:.0f} ms a row"
        )
    lines.append(f"bundle: {document['bundle']}")
    if document["report"]:
        lines.append(f"report: {document['report']} (open it in a browser)")
    lines += [f"missing: {line}" for line in document["missing"]]
    return "\n".join(lines)


command = Command(help="Take the shipped digits model through every target.", run=run, text=text)
