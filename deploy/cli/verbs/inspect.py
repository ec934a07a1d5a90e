"""``inspect``: what a model or a bundle is, and what each target could make of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.arguments import (
    Classes,
    DecisionRule,
    DivideBy,
    InputBox,
    InputShape,
    LabelColumn,
    Layers,
    ModelOrBundle,
    OptionsFile,
    Sets,
    Targets,
    Tolerance,
    choose_options,
    load_model,
    read_input_box,
    split_names,
)
from deploy.progress import SILENT
from deploy.target import Command, Json
from deploy.text import bytes_text, cost_lines, share, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploy.model import Model

__all__ = ["command"]


def run(
    model: ModelOrBundle,
    calibration: Annotated[
        str | None, typer.Option("--calibration", metavar="FILE[a:b]", help="Rows to take the ranges from.")
    ] = None,
    divide_by: DivideBy = 1.0,
    label_column: LabelColumn = None,
    input_box: InputBox = None,
    target: Targets = None,
    set_: Sets = None,
    options: OptionsFile = None,
    decision: DecisionRule = None,
    tolerance: Tolerance = None,
    layers: Layers = None,
    input_shape: InputShape = None,
    classes: Classes = None,
) -> Json:
    """Look without converting."""
    from deploy.bundle import is_bundle

    if is_bundle(model):
        return _bundle_document(model)
    from deploy.cli.verbs.convert import foretell
    from deploy.dataset import Calibration

    network = load_model(
        model, rule=decision, tolerance=tolerance, layers=layers, classes=classes, input_shape=input_shape
    )
    rows = Calibration.read(calibration, divide_by=divide_by, label_column=label_column) if calibration else None
    chosen = choose_options(split_names(target), sets=set_, file=options)
    return {
        "path": str(model),
        **_model_document(network),
        "ranges": _ranges(network, None if rows is None else network.check_rows(rows.x), input_box),
        "targets": foretell(network, rows, chosen, SILENT),
    }


def _model_document(model: Model) -> dict[str, Any]:
    return {
        "model": {
            **dict(model.summary()),
            "input_shape": list(model.input_shape),
            "tail": model.tail,
            "classes": None if model.classes is None else list(model.classes),
            "notes": list(model.notes),
            "sha256": model.sha256,
        },
        "layers": _layers(model),
    }


def _layers(model: Model) -> list[dict[str, Any]]:
    from deploy.model import Mlp

    if not isinstance(model, Mlp):
        n_in, n, n_out = model.widths
        return [
            {"name": "equilibrium", "n_in": n_in, "n_out": n, "activation": "relu"},
            {"name": "readout", "n_in": n, "n_out": n_out, "activation": None},
        ]
    return [
        {"name": layer.name, "n_in": layer.n_in, "n_out": layer.n_out, "activation": activation}
        for layer, activation in zip(model.affines, [*model.activations, None], strict=True)
    ]


def _ranges(model: Model, x: Any, input_box: str | None) -> list[dict[str, Any]] | None:
    """Least and greatest pre-activation of each layer: proved for a stated box, otherwise seen on rows."""
    from deploy.model import Mlp
    from deploy.ranges import calibrated_boxes, interval_boxes
    from deploy.ranges import input_box as box_of

    if input_box is not None and isinstance(model, Mlp):
        boxes: Sequence[Any] = interval_boxes(model, box_of(read_input_box(input_box, model)))
    elif x is not None:
        boxes = calibrated_boxes(model, x)
    else:
        return None
    return [{"low": float(box.low.min()), "high": float(box.high.max()), "kind": box.kind} for box in boxes]


def _bundle_document(path: Path) -> dict[str, Any]:
    from deploy.bundle import Bundle

    bundle = Bundle.read(path)
    guard = bundle.activation_guard
    evaluated = bundle.report()["targets"]
    targets = {
        name: {
            "options": record.options,
            "summary": record.summary,
            "calibration": record.calibration,
            "cost": record.cost,
            "bytes": sum(len(data) for data in bundle.target_files(name).values()),
            "held_out_agreement": evaluated.get(name, {}).get("agreement"),
        }
        for name, record in bundle.manifest.targets.items()
    }
    return {
        "bundle": str(path),
        "identity": bundle.identity,
        "schema_version": bundle.manifest.schema_version,
        "tools": bundle.manifest.tools,
        "bytes": sum(len(data) for data in bundle.files.values()),
        "files": len(bundle.files),
        "calibration_rows": bundle.manifest.calibration_rows,
        **_model_document(bundle.model),
        "ranges": [
            {"low": min(box["low"]), "high": max(box["high"]), "kind": guard["kind"]}
            for box in guard.get("boxes", [])
        ]
        or None,
        "targets": targets,
    }


def text(document: Json) -> str:
    """Draw layers, ranges and targets."""
    assert isinstance(document, dict)
    model = document["model"]
    lines = []
    if "bundle" in document:
        lines.append(
            f"bundle {document['bundle']}: {document['files']} files, {bytes_text(document['bytes'])}, every hash "
            f"checked, schema {document['schema_version']}, {document['calibration_rows']} calibration rows"
        )
    tail = "" if model["tail"] == "none" else f", {model['tail']} taken off"
    lines.append(f"{model['kind']}, {model['parameters']} parameters, decides by {model['decision']}{tail}")
    ranges = document["ranges"] or [None] * len(document["layers"])
    rows = [
        [
            index,
            layer["name"] or "-",
            layer["n_in"],
            layer["n_out"],
            layer["activation"] or "-",
            "-" if box is None else f"[{box['low']:.4g}, {box['high']:.4g}] {box['kind']}",
        ]
        for index, (layer, box) in enumerate(zip(document["layers"], ranges, strict=False))
    ]
    lines.append(table(["layer", "name", "in", "out", "activation", "pre-activations"], rows))
    lines += [f"note: {note}" for note in model["notes"]]
    for name, entry in document["targets"].items():
        lines.append(_target_line(name, entry))
        lines += [f"  {line}" for line in cost_lines(entry["cost"])]
    return "\n".join(lines)


def _target_line(name: str, entry: dict[str, Any]) -> str:
    if "summary" not in entry:
        refused = entry["refused"]
        if refused is not None:
            return f"{name}: refuses: {refused['cause']}"
        return f"{name}: takes it{'' if entry['cost'] else '; what it costs takes --calibration to say'}"
    found = entry["held_out_agreement"]
    judged = "not yet evaluated" if found is None else f"agrees on {share(found)} of held-out rows"
    return f"{name}: {bytes_text(entry['bytes'])}, {judged}"


command = Command(help="Look at a model or a bundle.", run=run, text=text)
