"""``compare``: two bundles side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.arguments import Force
from deploy.target import Command, Json
from deploy.text import number, share, table

__all__ = ["command"]


def run(
    first: Annotated[Path, typer.Argument(metavar="A", help="A bundle.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.html", help="Write a page as well.")
    ] = None,
    force: Force = False,
) -> Json:
    """Compare what both manifests and fidelity reports say."""
    from deploy.bundle import Bundle
    from deploy.report.comparison import compare_bundles
    from deploy.writing import check_absent, write_file

    if output is not None:
        check_absent(output, force=force)
    document = compare_bundles(Bundle.read(first), Bundle.read(second))
    if output is not None:
        from deploy.report.page import render_comparison

        write_file(output, render_comparison(document).encode(), force=force)
    return {**document, "output": None if output is None else str(output)}


def text(document: Json) -> str:
    """Draw a table with one line for each target and side."""
    assert isinstance(document, dict)
    names = [side["bundle"] for side in document["bundles"]]
    if names[0] == names[1]:
        names = [f"{name} ({which})" for name, which in zip(names, ("first", "second"), strict=True)]
    lines = ["the same float model" if document["same_model"] else "two different float models"]
    rows = [
        [name, bundle, share(side["agreement"], side["agreement_interval"]), share(side["accuracy"]), side["kl"]]
        for name, entry in document["targets"].items()
        for bundle, side in zip(names, entry["sides"], strict=True)
        if side is not None
    ]
    lines.append(table(["target", "bundle", "agrees with the original", "accuracy", "KL nats"], rows))
    for name, entry in document["targets"].items():
        paired = entry["paired"]
        if paired is not None:
            lines.append(
                f"{name}: on the same {paired['rows']} rows, only {names[0]} agrees on {paired['only_first_agrees']}, "
                f"only {names[1]} on {paired['only_second_agrees']}, p = {number(paired['p_value'])}"
            )
    if document["output"]:
        lines.append(f"written: {document['output']}")
    return "\n".join(lines)


command = Command(help="Put two bundles side by side.", run=run, text=text)
