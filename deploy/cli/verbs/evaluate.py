"""``evaluate``: how a bundle's targets decide on rows that no conversion has looked at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.arguments import (
    BundlePath,
    DataFile,
    DivideBy,
    FailUnder,
    LabelColumn,
    Labels,
    Targets,
    split_names,
)
from deploy.cli.verb import DoneBut
from deploy.errors import DeployError, GateError
from deploy.progress import Progress
from deploy.target import Command, Json
from deploy.text import number, share, table

if TYPE_CHECKING:
    from deploy.dataset import HeldOut

__all__ = ["command", "fidelity_table"]


def run(
    bundle: BundlePath,
    data: DataFile,
    progress: Progress,
    target: Targets = None,
    labels: Labels = None,
    label_column: LabelColumn = None,
    divide_by: DivideBy = 1.0,
    real: Annotated[int, typer.Option("--real", metavar="N", min=0, help="Run the real thing on N rows.")] = 0,
    engine: Annotated[
        str | None, typer.Option("--engine", help="Which real run; the first of each target by default.")
    ] = None,
    fail_under: FailUnder = None,
    drop_overlap: Annotated[
        bool, typer.Option("--drop-overlap", help="Leave out rows that were calibrated on instead of refusing.")
    ] = False,
    keep_rows: Annotated[
        Path | None, typer.Option("--keep-rows", metavar="DIR", help="Write the worst rows there, a .npz a target.")
    ] = None,
) -> Json:
    """Judge, keep the report in the bundle, and give it."""
    from deploy.bundle import Bundle
    from deploy.dataset import HeldOut
    from deploy.evaluation import evaluate, store_report

    opened = Bundle.read(bundle)
    rows = HeldOut.read(data, labels=labels, label_column=label_column, divide_by=divide_by)
    found = evaluate(
        opened,
        rows,
        targets=split_names(target) or None,
        real=real,
        engine=engine,
        drop_overlap=drop_overlap,
        progress=progress,
    )
    document = _without_panels(found)
    try:
        document["replaced"] = store_report(opened, found)
        if keep_rows is not None:
            _keep_rows(keep_rows, document, rows)
    except DeployError as error:
        raise DoneBut(document, error) from error
    _check_gate(document, fail_under)
    return document


def _without_panels(found: dict[str, Any]) -> dict[str, Any]:
    """The figures of the report stay in the bundle: they are long."""
    entries = {
        name: {key: value for key, value in entry.items() if key != "panels"}
        for name, entry in found["targets"].items()
    }
    return {**found, "targets": entries}


def _keep_rows(folder: Path, document: dict[str, Any], rows: HeldOut) -> None:
    import io

    import numpy as np

    from deploy.writing import storage_errors, write_file

    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, entry in document["targets"].items():
        index = np.array([worst["row"] for worst in entry["worst_rows"]], dtype=np.int64)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, x=rows.x[index - rows.first_row], row=index)
        write_file(folder / f"{name}.npz", buffer.getvalue(), force=True, mode=0o600)


def _check_gate(document: dict[str, Any], fail_under: float | None) -> None:
    if fail_under is None:
        return
    for name, entry in document["targets"].items():
        reached = {"the reference": entry["agreement"]}
        reached.update({f"engine {run['engine']}": run["agreement"] for run in entry["real"]})
        for what, agreement in reached.items():
            if agreement < fail_under:
                error = GateError(
                    f"{what} agrees on {agreement:.4f} of the rows, {fail_under} was demanded",
                    place=f"target {name}",
                )
                raise DoneBut(document, error)


def fidelity_table(targets: dict[str, Any]) -> str:
    """A line for each target of an ``evaluate`` document, and one for each real run."""
    columns = ["target", "agrees with the original", "accuracy", "original's", "KL nats", "worst logit error"]
    lines = []
    for name, entry in targets.items():
        agreement = share(entry["agreement"], entry["agreement_interval"])
        accuracy, original = share(entry["accuracy"]), share(entry["original_accuracy"])
        lines.append([name, agreement, accuracy, original, number(entry["kl"]), number(entry["worst_logit_error"])])
    text = table(columns, lines)
    runs = [
        [
            name,
            run["engine"],
            run["rows"],
            share(run["agreement"]),
            number(run["max_abs_error"]),
            number(run["seconds_per_row"].get("client"), 3),
            number(run["seconds_per_row"].get("server"), 3),
            len(run["failures"]),
        ]
        for name, entry in targets.items()
        for run in entry["real"]
    ]
    if runs:
        columns = ["target", "engine", "rows", "agrees with its reference", "worst error"]
        text += "\n\n" + table([*columns, "client s/row", "server s/row", "failures"], runs)
    return text


def text(document: Json) -> str:
    """Draw the fidelity of each target."""
    assert isinstance(document, dict)
    lines = [f"{document['rows']} rows of {document['source']}"]
    if document.get("dropped_overlap"):
        lines[0] += f", {document['dropped_overlap']} left out that were calibrated on"
    if document["rows_outside_input_guard"]:
        lines.append(f"{document['rows_outside_input_guard']} rows leave the input box")
    if document["rows_outside_activation_guard"]:
        lines.append(
            f"{document['rows_outside_activation_guard']} rows leave the pre-activations seen in calibration"
        )
    lines.append(fidelity_table(document["targets"]))
    lines += [_replaced_line(name, old) for name, old in document.get("replaced", {}).items()]
    return "\n".join(lines)


def _replaced_line(name: str, old: dict[str, Any]) -> str:
    """What of the bundle's report is no longer there."""
    runs = "".join(f", and the real run by {run['engine']} on {run['rows']} rows" for run in old["real"])
    source = f" of {old['source']}" if old["source"] else ""
    return f"{name}: replaces {share(old['agreement'])} on {number(old['rows'])} rows{source}{runs}"


command = Command(help="Judge a bundle on held-out rows, by reference and by real runs.", run=run, text=text)
