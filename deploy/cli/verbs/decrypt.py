"""``decrypt``: an answer file into decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.arguments import Force
from deploy.cli.remote import ArchiveFile, PassphraseFile, open_archive, read_archive_argument, read_passphrase
from deploy.cli.verbs.predict import decisions_document, text, write_predictions
from deploy.target import Command, Json

__all__ = ["command"]

MAX_EXCHANGE = 1 << 30
"""Largest request or answer file, in bytes."""


def run(
    answer: Annotated[Path, typer.Argument(metavar="ANSWER", help="Contents of the answer tensor.")],
    keys: Annotated[Path, typer.Option("--keys", metavar="DIR", help="Keys that keygen wrote.")],
    request: Annotated[
        Path | None, typer.Option("--request", metavar="FILE", help="The request file that it must answer.")
    ] = None,
    archive: ArchiveFile = None,
    target: Annotated[str | None, typer.Option("--target", metavar="T", help="Which target of a bundle.")] = None,
    passphrase_file: PassphraseFile = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.csv", help="Where to; stdout by default.")
    ] = None,
    force: Force = False,
) -> Json:
    """Decrypt an answer and decide each row."""
    from deploy.client import read_key_files
    from deploy.client.keyfile import ARCHIVE_FILE
    from deploy.client.offline import decrypt_answer
    from deploy.reading import read_bounded

    opened = open_archive(read_archive_argument(archive or keys / ARCHIVE_FILE, target))
    found = read_key_files(keys, passphrase=read_passphrase(passphrase_file))
    asked = None if request is None else read_bounded(request, limit=MAX_EXCHANGE)
    logits = decrypt_answer(opened, found, read_bounded(answer, limit=MAX_EXCHANGE), request=asked)
    document = decisions_document(opened.interface, logits, first_row=0, target=opened.target)
    return write_predictions(document, output, force=force)


command = Command(help="Decrypt an answer file and decide its rows.", run=run, text=text)
