"""``keygen``: a client's keys, from what a service or an archive says of its parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from deploy.cli.remote import (
    ArchiveFile,
    Authorities,
    ModelName,
    NewKeys,
    PassphraseFile,
    Token,
    Url,
    Version,
    open_archive,
    open_client,
    read_archive_argument,
    read_passphrase,
)
from deploy.errors import UsageError
from deploy.progress import Progress
from deploy.target import Command, Json

__all__ = ["command"]


def run(
    output: NewKeys,
    progress: Progress,
    url: Url = None,
    model: ModelName = None,
    model_version: Version = None,
    archive: ArchiveFile = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="T", help="Which target of a bundle; needed where there are several."),
    ] = None,
    token: Token = None,
    passphrase_file: PassphraseFile = None,
    tls_authorities: Authorities = None,
) -> Json:
    """Make keys and write them to a new folder."""
    from deploy.client import KeyFiles, write_key_files
    from deploy.client.session import open_role
    from deploy.writing import check_absent

    if (url is None) == (archive is None):
        raise UsageError("keys are made for one model", remedy="give --url or --archive, one of them")
    check_absent(Path(output), force=False)
    if url is not None:
        with open_client(
            url, model=model, version=model_version, token=token, authorities=tls_authorities
        ) as client:
            content = client.archive()
    else:
        assert archive is not None
        content = read_archive_argument(archive, target)
    role, _ = open_role(open_archive(content))
    with progress.stage("make keys", None):
        pair = role.generate_keys()
    if pair is None:
        raise UsageError("this model takes no keys", remedy="call predict --url right away")
    keys = KeyFiles.of(pair)
    write_key_files(output, keys, passphrase=read_passphrase(passphrase_file), archive=content)
    return {
        "keys": str(output),
        "key_id": keys.key_id,
        "secret_key_bytes": len(keys.secret),
        "evaluation_key_bytes": len(keys.evaluation),
    }


def text(document: Json) -> str:
    """Where they are, and which is which."""
    from deploy.text import bytes_text

    found: dict[str, Any] = dict(document)  # type: ignore[arg-type]
    return (
        f"{found['keys']}: secret.key stays with you; evaluation.key ({bytes_text(found['evaluation_key_bytes'])}) "
        f"is what a service gets, under the id {found['key_id']}"
    )


command = Command(help="Make the keys of a client; they are never overwritten.", run=run, text=text)
