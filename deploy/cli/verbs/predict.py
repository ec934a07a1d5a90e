"""``predict``: decisions on rows, by one target of a bundle, or by a service."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.arguments import DataFile, DivideBy, Force, LabelColumn, split_names
from deploy.cli.remote import Authorities, Keys, ModelName, PassphraseFile, Token, Url, Version
from deploy.errors import UsageError
from deploy.progress import Progress
from deploy.target import Command, Json

if TYPE_CHECKING:
    from deploy.arrays import Array
    from deploy.bundle import Bundle
    from deploy.dataset import HeldOut
    from deploy.interface import Interface
    from deploy.target import Deployment

__all__ = ["command", "decisions_document", "predictions_csv", "write_predictions"]


def run(
    data: DataFile,
    progress: Progress,
    bundle: Annotated[
        Path | None, typer.Argument(metavar="BUNDLE", help="A bundle, folder or .zip; none with --url.")
    ] = None,
    url: Url = None,
    model: ModelName = None,
    model_version: Version = None,
    keys: Keys = None,
    token: Token = None,
    passphrase_file: PassphraseFile = None,
    tls_authorities: Authorities = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="T", help="Which target; needed where there are several.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="Decide by a real run instead of the reference.")
    ] = None,
    divide_by: DivideBy = 1.0,
    label_column: LabelColumn = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.csv", help="Where to; stdout by default.")
    ] = None,
    force: Force = False,
) -> Json:
    """Decide each row."""
    from deploy.cli.remote import open_client, predict_remotely
    from deploy.dataset import HeldOut
    from deploy.writing import check_absent

    if (bundle is None) == (url is None):
        raise UsageError("one bundle or one service decides", remedy="give BUNDLE or --url, one of them")
    if output is not None:
        check_absent(output, force=force)
    rows = HeldOut.read(data, divide_by=divide_by, label_column=label_column)
    if bundle is not None:
        document = _predict_locally(bundle, target, engine, rows, progress)
    else:
        assert url is not None
        client = open_client(
            url,
            model=model,
            version=model_version,
            keys=keys,
            token=token,
            passphrase_file=passphrase_file,
            authorities=tls_authorities,
            features=rows.features,
        )
        interface, logits = predict_remotely(client, rows.x, progress=progress)
        document = decisions_document(interface, logits, first_row=rows.first_row, target=url)
    return write_predictions(document, output, force=force)


def _predict_locally(
    bundle: Path, target: str | None, engine: str | None, rows: HeldOut, progress: Progress
) -> dict[str, Any]:
    from deploy.bundle import Bundle
    from deploy.conversion import check_width

    opened = Bundle.read(bundle)
    name = _choose_target(opened, target)
    x = check_width(opened.model, rows)
    _warn_outside(opened.interface, x, progress)
    deployment = opened.deployment(name)
    logits = deployment.logits(x) if engine is None else _run_engine(deployment, engine, rows, progress)
    return decisions_document(opened.interface, logits, first_row=rows.first_row, target=name)


def _choose_target(bundle: Bundle, given: str | None) -> str:
    names = split_names([given] if given else None) or bundle.targets
    if len(names) != 1:
        raise UsageError(
            f"one target decides, there are {len(names)}", remedy=f"give --target: {', '.join(bundle.targets)}"
        )
    return names[0]


def _warn_outside(interface: Interface, x: Array, progress: Progress) -> None:
    outside = int(interface.guard.outside(x).any(axis=1).sum())
    if outside:
        progress.say(f"warning: {outside} of {len(x)} rows leave the input box ({interface.guard.source})")


def _run_engine(deployment: Deployment, name: str, rows: HeldOut, progress: Progress) -> Array:
    from deploy.registry import nearest

    engines = deployment.engines()
    if name not in engines:
        raise UsageError(f"no engine {name!r}", remedy=nearest(name, engines))
    engine = engines[name]
    if engine.requires is not None:
        engine.requires.check()
    with progress.stage(f"{name}: real run", len(rows)), engine:
        found = engine.run(rows.x)
    for row, cause in found.failures.items():
        progress.say(f"warning: row {rows.numbers[row]} failed: {cause}")
    return found.logits


def decisions_document(interface: Interface, logits: Array, *, first_row: int, target: str) -> dict[str, Any]:
    """What was decided, for ``--json``: label (or class index) and logits of each row; a failed row has null."""
    import numpy as np

    good = [bool(np.isfinite(row).all()) for row in logits]
    values = [row.tolist() if ok else None for row, ok in zip(logits, good, strict=True)]
    decisions: list[Any] = values
    if interface.decision.rule != "value":
        index = [int(i) for i in interface.decision.decide(np.nan_to_num(logits))]
        names = interface.classes
        labels = index if names is None else [names[i] for i in index]
        decisions = [label if ok else None for label, ok in zip(labels, good, strict=True)]
    return {
        "target": target,
        "rows": len(logits),
        "first_row": first_row,
        "decisions": decisions,
        "logits": values,
        "output": None,
    }


def write_predictions(document: dict[str, Any], output: Path | None, *, force: bool) -> dict[str, Any]:
    """Write the csv where `output` names one; give the document with the name in it."""
    from deploy.writing import write_file

    if output is None:
        return document
    write_file(output, predictions_csv(document).encode(), force=force)
    return {**document, "output": str(output)}


def predictions_csv(document: dict[str, Any]) -> str:
    """Columns row, decision and the logits; a value model has no decision beside its outputs."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    width = max((len(values) for values in document["logits"] if values), default=0)
    writer.writerow(["row", "decision", *(f"logit_{i}" for i in range(width))])
    for offset, (decision, logits) in enumerate(zip(document["decisions"], document["logits"], strict=True)):
        shown = "" if decision is None or isinstance(decision, list) else decision
        writer.writerow([document["first_row"] + offset, shown, *(logits or [""] * width)])
    return buffer.getvalue()


def text(document: Json) -> str:
    """The csv itself, or where it was written."""
    assert isinstance(document, dict)
    if document["output"] is not None:
        return f"{document['rows']} rows decided by {document['target']}, written: {document['output']}"
    return predictions_csv(document)


command = Command(help="Decide rows by one target of a bundle, or by a service.", run=run, text=text)
