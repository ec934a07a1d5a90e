"""``report``: one self-contained page about a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.arguments import BundlePath, Force
from deploy.target import Command, Json

__all__ = ["command"]


def run(
    bundle: BundlePath,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.html", help="Where to.")],
    force: Force = False,
) -> Json:
    """Draw the page from the manifest and from what ``evaluate`` found."""
    from deploy.bundle import Bundle
    from deploy.report import render_report
    from deploy.writing import check_absent, write_file

    check_absent(output, force=force)
    opened = Bundle.read(bundle)
    page = render_report(opened).encode()
    write_file(output, page, force=force)
    evaluated = [name for name in opened.targets if name in opened.report()["targets"]]
    return {"bundle": str(bundle), "output": str(output), "bytes": len(page), "evaluated": evaluated}


def text(document: Json) -> str:
    """Say where it is."""
    assert isinstance(document, dict)
    missing = "" if document["evaluated"] else " (nothing was evaluated yet)"
    return f"written: {document['output']}{missing}"


command = Command(help="Draw one self-contained page about a bundle.", run=run, text=text)
