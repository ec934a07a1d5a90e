"""``simulate``: the studies that a bundle's targets offer, as tables."""

from __future__ import annotations

import hashlib
import math
import textwrap
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.arguments import BundlePath, DivideBy, Force, LabelColumn
from deploy.errors import UsageError
from deploy.progress import Progress
from deploy.target import Command, Json
from deploy.text import table

if TYPE_CHECKING:
    from deploy.bundle import Bundle
    from deploy.dataset import HeldOut
    from deploy.study import Case, Study

__all__ = ["command"]

SHOWN_ROWS = 20


def run(
    bundle: BundlePath,
    progress: Progress,
    study: Annotated[
        str | None, typer.Argument(metavar="STUDY", help="Which study; without one, they are listed.")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="FILE[a:b]", help="Rows: .npz, .npy, .csv or IDX, in part.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="T", help="Whose study, where several have it.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="OPTION=VALUE", help="An option of the study.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="What random numbers come from.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="TABLE", help=".csv or .parquet; stdout by default.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", help="Worker processes; -1, one a core, by default.")] = -1,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="ADDRESS", help='A Ray cluster: its address, "auto" or "local".'),
    ] = None,
    divide_by: DivideBy = 1.0,
    label_column: LabelColumn = None,
    force: Force = False,
) -> Json:
    """List the studies, or run one; an interrupted one goes on where it stopped."""
    from deploy.bundle import Bundle
    from deploy.dataset import HeldOut

    opened = Bundle.read(bundle)
    studies = _studies(opened, target)
    if study is None:
        return {"bundle": str(bundle), "studies": [_describe(*entry) for entry in studies]}
    if data is None:
        raise UsageError("a study needs rows", remedy="give --data FILE")
    if jobs == 0:
        raise UsageError("--jobs 0", remedy="give a number of processes, or -1 for one a core")
    owner, name, chosen = _choose(studies, study)
    rows = HeldOut.read(data, divide_by=divide_by, label_column=label_column)
    task = _Task(opened, owner, name, chosen, rows, output, force)
    return _run(task, set_ or [], seed=seed, jobs=jobs, cluster=cluster, progress=progress)


@dataclass(frozen=True, slots=True)
class _Task:
    """Which study of which bundle, on which rows, and where its table goes."""

    bundle: Bundle
    target: str
    name: str
    study: Study
    rows: HeldOut
    output: Path | None
    force: bool

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides a row of the table but the case."""
        from deploy.dataset import row_hashes

        return {
            "bundle": self.bundle.identity,
            "target": self.target,
            "study": self.name,
            "rows": hashlib.sha256(b"".join(row_hashes(self.rows.x))).hexdigest(),
        }


def _run(
    task: _Task, sets: list[str], *, seed: int, jobs: int, cluster: str | None, progress: Progress
) -> dict[str, Any]:
    import numpy as np

    from deploy.options import parse_settings

    options = parse_settings(task.study.options, sets, what="study", name=task.name)
    cases = list(task.study.cases(options, np.random.default_rng(seed)))
    found = _compute(task, cases, jobs=jobs, cluster=cluster, progress=progress)
    return {
        "bundle": str(task.bundle.path),
        "target": task.target,
        "study": task.name,
        "options": options.model_dump(mode="json"),
        "seed": seed,
        "cases": len(cases),
        "columns": _columns(task.study),
        "output": None if task.output is None else str(task.output),
        "rows": [{name: _json(value) for name, value in row.items()} for row in found],
    }


def _compute(
    task: _Task, cases: list[Case], *, jobs: int, cluster: str | None, progress: Progress
) -> list[dict[str, Any]]:
    """Run the cases; with an output, keep each row as it comes and write the table at the end."""
    from deploy.conversion import check_width
    from deploy.simulation import run_study, write_table
    from deploy.simulation.journal import Journal, journal_path
    from deploy.simulation.table import CASE_COLUMN, check_format
    from deploy.writing import check_absent

    x = check_width(task.bundle.model, task.rows)
    run_cases = partial(run_study, task.study, cases, x, jobs=jobs, cluster=cluster, progress=progress)
    if task.output is None:
        return run_cases()
    check_format(task.output)
    check_absent(task.output, force=task.force)
    with Journal(journal_path(task.output), task.fingerprint(), discard=task.force) as journal:
        found = run_cases(journal=journal)
        write_table(task.output, [CASE_COLUMN, *task.study.columns], found, force=task.force)
        journal.remove()
    return found


def _json(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _studies(bundle: Bundle, target: str | None) -> list[tuple[str, str, Study]]:
    names = [target] if target else bundle.targets
    return [(name, study, value) for name in names for study, value in bundle.deployment(name).studies().items()]


def _choose(studies: list[tuple[str, str, Study]], name: str) -> tuple[str, str, Study]:
    from deploy.registry import nearest

    found = [entry for entry in studies if entry[1] == name]
    if not found:
        raise UsageError(f"no study {name!r}", remedy=nearest(name, [entry[1] for entry in studies]))
    if len(found) > 1:
        owners = ", ".join(entry[0] for entry in found)
        raise UsageError(f"several targets have a study {name!r}", remedy=f"give --target: {owners}")
    return found[0]


def _describe(target: str, name: str, study: Study) -> dict[str, Any]:
    from deploy.options import describe_options

    return {
        "target": target,
        "study": name,
        "summary": study.summary,
        "options": describe_options(study.options),
        "columns": _columns(study),
    }


def _columns(study: Study) -> list[dict[str, str]]:
    return [{"name": column.name, "unit": column.unit, "meaning": column.meaning} for column in study.columns]


def text(document: Json) -> str:
    """Draw the list of studies, or the table's first rows and where it is."""
    assert isinstance(document, dict)
    if "studies" in document:
        return _list_text(document["studies"])
    from deploy.simulation.table import csv_text

    names = ["case", *(column["name"] for column in document["columns"])]
    if document["output"] is None:
        return csv_text(names, document["rows"])
    shown = document["rows"][:SHOWN_ROWS]
    lines = [table(names, [[row[name] for name in names] for row in shown])]
    if len(document["rows"]) > len(shown):
        lines.append(f"… and {len(document['rows']) - len(shown)} more")
    return "\n".join([*lines, f"{document['cases']} cases, written: {document['output']}"])


def _list_text(studies: list[dict[str, Any]]) -> str:
    if not studies:
        return "no target of this bundle offers a study"
    from deploy.options import options_text

    blocks = []
    for entry in studies:
        head = f"{entry['study']} ({entry['target']}): {entry['summary']}"
        options = textwrap.indent(options_text(entry["options"], prefix="--set ", width=98), "  ")
        blocks.append("\n".join(filter(None, [textwrap.fill(head, 100, subsequent_indent="  "), options])))
    return "\n\n".join(blocks)


command = Command(help="List or run the studies of a bundle's targets.", run=run, text=text)
