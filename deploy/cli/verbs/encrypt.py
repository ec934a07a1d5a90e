"""``encrypt``: rows into a request file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.arguments import DataFile, DivideBy, Force, LabelColumn
from deploy.cli.remote import ArchiveFile, PassphraseFile, open_archive, read_archive_argument, read_passphrase
from deploy.progress import Progress
from deploy.target import Command, Json

__all__ = ["command"]


def run(
    data: DataFile,
    keys: Annotated[Path, typer.Option("--keys", metavar="DIR", help="Keys that keygen wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The request file.")],
    progress: Progress,
    archive: ArchiveFile = None,
    target: Annotated[str | None, typer.Option("--target", metavar="T", help="Which target of a bundle.")] = None,
    divide_by: DivideBy = 1.0,
    label_column: LabelColumn = None,
    passphrase_file: PassphraseFile = None,
    force: Force = False,
) -> Json:
    """Encrypt rows, one envelope a row."""
    from deploy.client import read_key_files
    from deploy.client.keyfile import ARCHIVE_FILE
    from deploy.client.offline import encrypt_rows
    from deploy.client.session import check_features, elements_per_body
    from deploy.dataset import HeldOut
    from deploy.writing import check_absent, write_file

    check_absent(output, force=force)
    rows = HeldOut.read(data, divide_by=divide_by, label_column=label_column)
    opened = open_archive(read_archive_argument(archive or keys / ARCHIVE_FILE, target))
    check_features(opened.interface, rows.features, None)
    outside = (
        int(opened.interface.guard.outside(rows.x).any(axis=1).sum())
        if rows.x.shape[1] == opened.interface.n_in
        else 0
    )
    if outside:
        progress.say(
            f"warning: {outside} of {len(rows)} rows leave the input guard ({opened.interface.guard.source})"
        )
    found = read_key_files(keys, passphrase=read_passphrase(passphrase_file))
    request = encrypt_rows(opened, found, rows.x)
    write_file(output, request, force=force)
    part = elements_per_body(len(request) // len(rows))
    if len(rows) > part:
        progress.say(
            f"warning: {len(rows)} rows make {len(request) / 1e6:.1f} MB; one call of a service with default settings "
            f"takes {part} rows: encrypt ranges of the data, FILE[a:b]"
        )
    return {"output": str(output), "rows": len(rows), "bytes": len(request), "key_id": found.key_id}


def text(document: Json) -> str:
    """Where it is."""
    assert isinstance(document, dict)
    return f"{document['output']}: {document['rows']} rows under key {document['key_id']}"


command = Command(help="Encrypt rows into a request file.", run=run, text=text)
