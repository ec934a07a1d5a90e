"""``convert``: a model, or the model of a bundle, to deployments in a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.arguments import (
    Classes,
    DecisionRule,
    DivideBy,
    FailUnder,
    Force,
    InputBox,
    InputShape,
    LabelColumn,
    Layers,
    ModelOrBundle,
    OptionsFile,
    Seed,
    Sets,
    Targets,
    Tolerance,
    choose_options,
    load_model,
    read_input_box,
    split_names,
)
from deploy.cli.verb import DoneBut
from deploy.errors import GateError, ModelRefused, OutputExists, UsageError
from deploy.progress import Progress
from deploy.target import Command, Json
from deploy.text import cost_lines, share, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

    from deploy.bundle import Bundle
    from deploy.conversion import Conversion
    from deploy.dataset import Calibration
    from deploy.model import Model

__all__ = ["check_refusals", "command", "foretell"]


def run(
    model: ModelOrBundle,
    calibration: Annotated[
        str, typer.Option("--calibration", metavar="FILE[a:b]", help="Rows that the conversion may look at.")
    ],
    progress: Progress,
    target: Targets = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="BUNDLE", help="Folder or .zip; a bundle is extended in place."),
    ] = None,
    held_out: Annotated[
        str | None, typer.Option("--held-out", metavar="FILE[a:b]", help="Rows to judge on, not to look at.")
    ] = None,
    divide_by: DivideBy = 1.0,
    label_column: LabelColumn = None,
    set_: Sets = None,
    options: OptionsFile = None,
    seed: Seed = None,
    decision: DecisionRule = None,
    tolerance: Tolerance = None,
    layers: Layers = None,
    input_shape: InputShape = None,
    classes: Classes = None,
    input_box: InputBox = None,
    fail_under: FailUnder = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Foretell the cost and stop.")] = False,
    force: Force = False,
) -> Json:
    """Convert, write the bundle whole or not at all, and say how each target did."""
    from deploy.bundle import Bundle, is_bundle
    from deploy.conversion import check_inputs, convert, extend
    from deploy.dataset import Calibration, HeldOut

    bundle = Bundle.read(model) if is_bundle(model) else None
    destination = _destination(bundle, output, force=force, dry_run=dry_run)
    if bundle is not None:
        _check_addition(bundle, split_names(target), decision=decision or input_box, force=force)
    chosen = choose_options(split_names(target), sets=set_, file=options)
    if bundle is not None:
        network = bundle.model
    else:
        network = load_model(
            model, rule=decision, tolerance=tolerance, layers=layers, classes=classes, input_shape=input_shape
        )
        for note in network.notes:
            progress.say(f"note: {note}")
    rows = Calibration.read(calibration, divide_by=divide_by, label_column=label_column)
    guard = read_input_box(input_box, network) if input_box else None
    judged = HeldOut.read(held_out, divide_by=divide_by, label_column=label_column) if held_out else None
    guard = read_input_box(input_box, network) if input_box else None
    seen = bundle.calibration_hashes if bundle is not None else frozenset()
    check_inputs(network, rows, held_out=judged, guard=guard, seen=seen)
    plan = foretell(network, rows, chosen, progress)
    if dry_run:
        return {"bundle": None, "model": dict(network.summary()), "targets": plan, "dry_run": True}
    if bundle is not None:
        conversion = extend(bundle, rows, chosen, seed=seed, held_out=judged, progress=progress)
    else:
        conversion = convert(network, rows, chosen, seed=seed or 0, held_out=judged, guard=guard, progress=progress)
    assert destination is not None
    if conversion.converted:
        conversion.write(destination, force=force or bundle is not None)
    document = conversion.document(str(destination) if conversion.converted else None)
    check_refusals(document, conversion)
    _check_gate(document, fail_under)
    return document


def _destination(bundle: Bundle | None, output: Path | None, *, force: bool, dry_run: bool) -> Path | None:
    """Where the bundle goes; refused before the work rather than after it."""
    from deploy.bundle import TOP_NAMES
    from deploy.writing import check_absent

    if dry_run:
        return output
    if output is None:
        if bundle is None:
            raise UsageError("no output was named", remedy="give -o BUNDLE")
        return bundle.path
    check_absent(output, force=force, replaces=() if output.suffix == ".zip" else TOP_NAMES)
    return output


def _check_addition(bundle: Bundle, names: tuple[str, ...], *, decision: str | None, force: bool) -> None:
    if not names:
        raise UsageError("which target is to be added?", remedy="give --target")
    if decision is not None:
        raise UsageError(
            "a bundle keeps its decision rule and input box", remedy="convert the model file to change them"
        )
    again = [name for name in names if name in bundle.targets]
    if again and not force:
        raise OutputExists(
            f"target {again[0]} is there already", place=str(bundle.path), remedy="give --force to convert it again"
        )


def foretell(
    model: Model, calibration: Calibration | None, chosen: Mapping[str, BaseModel], progress: Progress
) -> dict[str, Any]:
    """Ask each target whether it takes the model and what it would cost; say it to people before the work."""
    from deploy.registry import target

    plan: dict[str, Any] = {}
    for name, options in chosen.items():
        found = target(name)
        refusal = found.accepts(model, options)
        if refusal is not None:
            plan[name] = {"refused": {"cause": refusal.cause, "remedy": refusal.remedy}, "cost": []}
            progress.say(f"{name}: cannot take this model: {refusal.cause}")
            continue
        cost = [quantity.document() for quantity in found.predict_cost(model, options, calibration=calibration)]
        plan[name] = {"refused": None, "cost": cost, "options": options.model_dump(mode="json")}
        progress.say("\n  ".join([f"{name}, before the work:", *(cost_lines(cost) or ["no cost to foretell"])]))
    return plan


def check_refusals(document: dict[str, Any], conversion: Conversion) -> None:
    """Fail with exit code 4 where a target refused; the others are written and said."""
    if conversion.refused:
        name, refusal = next(iter(conversion.refused.items()))
        raise DoneBut(document, ModelRefused(refusal.cause, remedy=refusal.remedy, place=f"target {name}"))


def _check_gate(document: dict[str, Any], fail_under: float | None) -> None:
    if fail_under is None:
        return
    for name, entry in document["targets"].items():
        held_out = entry["held_out_agreement"]
        agreement = entry["calibration_agreement"] if held_out is None else held_out
        if agreement < fail_under:
            which = "calibration" if held_out is None else "held-out"
            error = GateError(
                f"agrees on {agreement:.4f} of the {which} rows, {fail_under} was demanded", place=f"target {name}"
            )
            raise DoneBut(document, error)


def text(document: Json) -> str:
    """Draw what was converted."""
    assert isinstance(document, dict)
    model = document["model"]
    widths = "-".join(str(width) for width in model["widths"])
    lines = [f"{model['kind']} {widths}, {model['parameters']} parameters, decides by {model['decision']}"]
    if document.get("dry_run"):
        for name, entry in document["targets"].items():
            refused = entry["refused"]
            lines.append(f"{name}: {'refuses: ' + refused['cause'] if refused else ''}".rstrip())
            lines += [f"  {line}" for line in cost_lines(entry["cost"])]
        return "\n".join(lines)
    rows = [
        [
            name,
            share(entry["calibration_agreement"]),
            share(entry["held_out_agreement"], entry["held_out_interval"]),
            entry["kl"],
            entry["seconds"],
        ]
        for name, entry in document["targets"].items()
    ]
    if rows:
        lines.append(table(["target", "agrees (calibration)", "agrees (held out)", "KL nats", "seconds"], rows))
    for name, entry in document["targets"].items():
        lines.append("\n  ".join([f"{name} costs:", *(cost_lines(entry["cost"]) or ["nothing stated"])]))
    lines += [f"{name} refuses: {entry['cause']}" for name, entry in document["refused"].items()]
    if document["bundle"]:
        lines.append(f"written: {document['bundle']}")
    return "\n".join(lines)


command = Command(help="Convert a model for targets and write a bundle.", run=run, text=text)
