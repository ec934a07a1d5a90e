"""Options and steps that the client's verbs share."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.errors import InputError, UsageError
from deploy.progress import Progress
from deploy.reading import read_bounded, read_text

if TYPE_CHECKING:
    from deploy.arrays import Array
    from deploy.bundle import Archive
    from deploy.client import EncryptedClient

__all__ = [
    "ArchiveFile",
    "Authorities",
    "Keys",
    "ModelName",
    "NewKeys",
    "PassphraseFile",
    "Token",
    "Url",
    "Version",
    "open_client",
    "predict_remotely",
    "read_archive_argument",
    "read_passphrase",
]

MAX_ARCHIVE = 1 << 30
"""Largest client archive, in bytes."""

Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="Address of the service.")]
ModelName = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Which model; needed where the service has several.")
]
Version = Annotated[str | None, typer.Option("--model-version", help="Which version; the latest by default.")]
Keys = Annotated[Path | None, typer.Option("--keys", metavar="DIR", help="Keys that keygen wrote.")]
NewKeys = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="A new folder for the keys.")]
Token = Annotated[
    str | None,
    typer.Option("--token", help="Bearer token; better in RELU_DEPLOY_TOKEN, which no process list shows."),
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file", metavar="FILE", help="Its first line seals the secret key; or RELU_DEPLOY_PASSPHRASE."
    ),
]
Authorities = Annotated[
    Path | None, typer.Option("--tls-authorities", metavar="FILE", help="Certificates to trust, PEM.")
]
ArchiveFile = Annotated[
    Path | None, typer.Option("--archive", metavar="FILE", help="The client archive, or a bundle to take it from.")
]


def read_passphrase(file: Path | None) -> str | None:
    """The passphrase from a file or the environment; None where there is none."""
    if file is None:
        return os.environ.get("RELU_DEPLOY_PASSPHRASE") or None
    first = read_text(file).split("\n", 1)[0].rstrip("\r")
    if not first:
        raise InputError("the first line is empty", place=str(file), remedy="write the passphrase there")
    return first


def read_archive_argument(path: Path, target: str | None) -> bytes:
    """A client archive from its file, or from a bundle."""
    from deploy.bundle import Bundle, is_bundle
    from deploy.errors import BundleError

    if not is_bundle(path):
        return read_bounded(path, limit=MAX_ARCHIVE, error=BundleError)
    bundle = Bundle.read(path)
    names = [target] if target else [name for name in bundle.targets if bundle.deployment(name).archives()]
    if len(names) != 1:
        raise UsageError(f"{len(names)} targets are served", remedy=f"give --target: {', '.join(names)}")
    return bundle.client_archive(names[0])


def open_archive(data: bytes) -> Archive:
    """A client archive, checked."""
    from deploy.bundle import read_archive

    return read_archive(data, role="client")


def open_client(
    url: str,
    *,
    model: str | None,
    version: str | None = None,
    keys: Path | None = None,
    token: str | None = None,
    passphrase_file: Path | None = None,
    authorities: Path | None = None,
    features: tuple[str, ...] | None = None,
) -> EncryptedClient:
    """A client from a verb's options."""
    from deploy.client import EncryptedClient

    return EncryptedClient(
        url,
        model=model,
        version=version,
        keys=keys,
        passphrase=read_passphrase(passphrase_file) if keys is not None else None,
        token=token,
        features=features,
        verify=True if authorities is None else str(authorities),
    )


def predict_remotely(client: EncryptedClient, x: Array, *, progress: Progress) -> tuple[Any, Array]:
    """Interface and logits (batch, n_out) by the service; what leaves the input guard is said."""
    with client, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        interface = client.interface()
        with progress.stage("predict by the service", None):
            found = client.predict(x)
    for warning in caught:
        progress.say(f"warning: {warning.message}")
    return interface, found.logits
