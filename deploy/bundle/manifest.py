"""The manifest: what a bundle holds, and a hash over each file and over itself.

Schema versions: 1.0 had no ``identity``; 1.1 adds it. A reader takes every minor version of its own major version.
The manifest is canonical JSON, so that any changed byte in it is seen.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from deploy.bundle.judged import Number
from deploy.bundle.tree import check_name
from deploy.errors import BundleError

__all__ = ["MANIFEST_FILE", "SCHEMA", "Manifest", "ModelEntry", "TargetRecord", "read_manifest", "write_manifest"]

SCHEMA = "1.1"
MANIFEST_FILE = "manifest.json"
_MAX_BYTES = 64 << 20
_Sha256 = Field(pattern=r"^[0-9a-f]{64}$")


class ModelEntry(BaseModel):
    """The float model but for its numbers."""

    model_config = ConfigDict(extra="allow")

    kind: Literal["mlp", "equilibrium"]
    widths: list[int]
    parameters: int
    decision: str
    tolerance: float
    activations: list[str]
    tail: str
    input_shape: list[int]
    classes: list[int | str] | None
    features: list[str] | None
    names: list[str]
    notes: list[str]
    sha256: str = _Sha256


class _Cost(BaseModel):
    name: str
    value: Number
    unit: str
    kind: str
    who_sees: str = ""


class TargetRecord(BaseModel):
    """What a target guarantees and not, its options, its summary, and how it did on the calibration rows."""

    model_config = ConfigDict(extra="allow")

    guarantee: str = ""
    non_guarantee: str = ""
    options: dict[str, Any]
    summary: dict[str, Any]
    calibration: dict[str, Any]
    cost: list[dict[str, Any]]

    @field_validator("calibration")
    @classmethod
    def _check_calibration(cls, found: dict[str, Any]) -> dict[str, Any]:
        for key in ("agreement", "kl"):
            TypeAdapter(Number | None).validate_python(found.get(key))
        return found

    @field_validator("cost")
    @classmethod
    def _check_cost(cls, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for item in found:
            _Cost.model_validate(item)
        return found


class Manifest(BaseModel):
    """All of manifest.json."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    schema_version: str
    model: ModelEntry
    seed: int
    calibration_rows: int
    targets: dict[str, TargetRecord]
    tools: dict[str, str]
    files: dict[str, str]
    identity: str = ""


def write_manifest(manifest: Manifest) -> bytes:
    """Canonical JSON with the identity filled in."""
    document = manifest.model_dump(mode="json")
    document["identity"] = _identity(document)
    return _canonical(document)


def read_manifest(data: bytes) -> Manifest:
    """Read and check a manifest: schema version, canonical form, identity, names.

    Raises
    ------
    BundleError : naming the field.
    """
    try:
        return _read(data)
    except BundleError as error:
        raise error.at(MANIFEST_FILE) from None


def _read(data: bytes) -> Manifest:
    if len(data) > _MAX_BYTES:
        raise BundleError(f"{len(data)} bytes, the limit is {_MAX_BYTES}")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"is no JSON: {error}") from None
    version = document.get("schema_version") if isinstance(document, dict) else None
    if not isinstance(version, str):
        raise BundleError("has no schema_version", remedy="this is no relu-deploy bundle")
    ours = SCHEMA.split(".")[0]
    if version.split(".")[0] != ours:
        raise BundleError(
            f"schema version {version[:20]}, this release reads {ours}.x",
            remedy="use the release that wrote the bundle, or convert again",
        )
    if _canonical(document) != data:
        raise BundleError("has been changed: it is not in its canonical form", remedy="convert again")
    if version != "1.0" and document.get("identity") != _identity(document):
        raise BundleError("has been changed: its identity does not fit its content", remedy="convert again")
    try:
        manifest = Manifest.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        raise BundleError(f"{first['msg']} at {'.'.join(map(str, first['loc']))}") from None
    for name in manifest.files:
        check_name(name)
    return manifest


def _canonical(document: Any) -> bytes:
    try:
        return json.dumps(document, sort_keys=True, indent=1, allow_nan=False, ensure_ascii=False).encode() + b"\n"
    except (ValueError, RecursionError) as error:
        raise BundleError(f"holds a value that JSON cannot: {error}") from None


def _identity(document: dict[str, Any]) -> str:
    rest = {key: value for key, value in document.items() if key != "identity"}
    return hashlib.sha256(_canonical(rest)).hexdigest()
