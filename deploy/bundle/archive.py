"""The archives that leave the owner's hands: the client's holds no weight, the server's no key.

An archive is a zip of the target's files, ``interface.json``, and ``archive.json`` that names the target, the role
and the hash of each file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from deploy.bundle.tree import read_zip, write_zip
from deploy.errors import BundleError
from deploy.interface import INTERFACE_FILE, Interface

__all__ = ["ARCHIVE_FILE", "Archive", "Role", "read_archive", "write_archive"]

ARCHIVE_FILE = "archive.json"
ARCHIVE_SCHEMA = "1.0"
Role = Literal["client", "server"]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")

    schema_version: str
    target: str
    role: Role
    model: str
    files: dict[str, str]


@dataclass(frozen=True)
class Archive:
    """One side's files, checked: what :meth:`deploy.target.Target.client` and ``server`` take."""

    target: str
    role: Role
    model: str
    files: Mapping[str, bytes]

    @property
    def interface(self) -> Interface:
        """What clients know of the model."""
        return Interface.from_bytes(self.files[INTERFACE_FILE])


def write_archive(
    files: Mapping[str, bytes], *, target: str, role: Role, interface: Interface, model: str
) -> bytes:
    """Zip one side's files; the same files give the same bytes.

    Parameters
    ----------
    model : hash that names the float model (:attr:`deploy.model.Mlp.sha256`).
    """
    contents = {**files, INTERFACE_FILE: interface.to_bytes()}
    document = _Document(
        schema_version=ARCHIVE_SCHEMA,
        target=target,
        role=role,
        model=model,
        files={name: hashlib.sha256(data).hexdigest() for name, data in sorted(contents.items())},
    )
    head = json.dumps(document.model_dump(), sort_keys=True, indent=1).encode() + b"\n"
    return write_zip({**contents, ARCHIVE_FILE: head})


def read_archive(data: bytes, *, role: Role, limit: int = 1 << 30) -> Archive:
    """Read an archive with suspicion.

    Parameters
    ----------
    role : which side's is expected.
    limit : largest total size in bytes after decompression.

    Raises
    ------
    BundleError : damaged, hostile, of another role or of an unknown schema.
    """
    files = read_zip(data, limit=limit)
    head = files.pop(ARCHIVE_FILE, None)
    if head is None:
        raise BundleError(f"has no {ARCHIVE_FILE}", remedy="this is no archive of relu-deploy")
    try:
        document = _Document.model_validate_json(head)
    except ValidationError as error:
        raise BundleError(error.errors()[0]["msg"], place=ARCHIVE_FILE) from None
    if document.schema_version.split(".")[0] != ARCHIVE_SCHEMA.split(".")[0]:
        raise BundleError(f"schema version {document.schema_version}, this release reads {ARCHIVE_SCHEMA}")
    if document.role != role:
        raise BundleError(f"is the {document.role}'s archive", remedy=f"give the {role}'s")
    check_hashes(files, document.files)
    if INTERFACE_FILE not in files:
        raise BundleError(f"has no {INTERFACE_FILE}")
    return Archive(document.target, document.role, document.model, files)


def check_hashes(files: Mapping[str, bytes], expected: Mapping[str, str]) -> None:
    """Raise :class:`BundleError` unless exactly the expected files are there, unchanged."""
    for name in sorted(expected.keys() - files.keys()):
        raise BundleError("is missing", place=name, remedy="get the bundle or archive again")
    for name in sorted(files.keys() - expected.keys()):
        raise BundleError("is not in the manifest", place=name, remedy="remove it")
    for name, digest in expected.items():
        found = hashlib.sha256(files[name]).hexdigest()
        if found != digest:
            raise BundleError(
                f"has been changed: sha256 {found[:12]}…, the manifest says {digest[:12]}…",
                place=name,
                remedy="get the bundle or archive again",
            )
