"""A bundle: one float model, its deployments, and a manifest that vouches for every byte."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from deploy.bundle.archive import Archive, Role, check_hashes, read_archive, write_archive
from deploy.bundle.judged import read_guard, read_report
from deploy.bundle.manifest import MANIFEST_FILE, SCHEMA, Manifest, TargetRecord, read_manifest, write_manifest
from deploy.bundle.tree import read_folder, read_zip, write_zip
from deploy.bundle.weights import MODEL_FILE, describe_model, read_model, write_model
from deploy.errors import BundleError, DeployError, UsageError
from deploy.interface import INTERFACE_FILE, Interface
from deploy.reading import describe_kind
from deploy.writing import storage_errors, write_file, write_tree

if TYPE_CHECKING:
    from deploy.model import Model
    from deploy.target import Deployment

__all__ = [
    "FIDELITY_FILE",
    "HASHES_FILE",
    "TOP_NAMES",
    "Bundle",
    "TargetEntry",
    "bundle_files",
    "is_bundle",
    "write_bundle",
]

FIDELITY_FILE = "reports/fidelity.json"
HASHES_FILE = "owner/calibration_rows.sha256"
GUARD_FILE = "owner/activation_guard.json"
TOP_NAMES = frozenset({MANIFEST_FILE, MODEL_FILE, INTERFACE_FILE, "owner", "targets", "reports"})
"""What stands at the top of a bundle; a folder with anything else in it is somebody's, and never replaced."""
_TOOLS = ("relu-deploy", "numpy", "scipy")


@dataclass(frozen=True, slots=True)
class TargetEntry:
    """One target's part of a bundle that is about to be written."""

    deployment: Deployment
    options: BaseModel
    calibration: Mapping[str, Any]
    guarantee: str = ""
    non_guarantee: str = ""


def bundle_files(
    model: Model,
    entries: Mapping[str, TargetEntry],
    *,
    interface: Interface,
    calibration_hashes: tuple[bytes, ...],
    activation_guard: Mapping[str, Any],
    seed: int,
    kept: Bundle | None = None,
) -> dict[str, bytes]:
    """Every file of a bundle, manifest included; the same arguments give the same bytes.

    Parameters
    ----------
    entries : the targets to put in, by name.
    calibration_hashes : see :func:`deploy.dataset.row_hashes`.
    activation_guard : pre-activation boxes, for the owner only.
    kept : a bundle of the same model whose other targets, hashes and reports are taken over.
    """
    hashes = set(calibration_hashes) | (kept.calibration_hashes if kept else set())
    files = {
        MODEL_FILE: write_model(model),
        INTERFACE_FILE: interface.to_bytes(),
        HASHES_FILE: b"".join(digest.hex().encode() + b"\n" for digest in sorted(hashes)),
        GUARD_FILE: json.dumps(activation_guard, sort_keys=True, indent=1, allow_nan=False).encode() + b"\n",
    }
    records: dict[str, TargetRecord] = {}
    reports: dict[str, bytes] = {}
    if kept is not None:
        records = {name: record for name, record in kept.manifest.targets.items() if name not in entries}
        for name in records:
            files.update({f"targets/{name}/{path}": data for path, data in kept.target_files(name).items()})
        reports = _reports_of(kept, records)
    for name, entry in entries.items():
        files.update({f"targets/{name}/{path}": data for path, data in entry.deployment.files().items()})
        records[name] = TargetRecord(
            guarantee=entry.guarantee,
            non_guarantee=entry.non_guarantee,
            options=entry.options.model_dump(mode="json"),
            summary=json.loads(json.dumps(dict(entry.deployment.summary()), allow_nan=False)),
            calibration=dict(entry.calibration),
            cost=[quantity.document() for quantity in entry.deployment.cost()],
        )
    manifest = Manifest(
        schema_version=SCHEMA,
        model=describe_model(model),
        seed=seed,
        calibration_rows=len(hashes),
        targets=dict(sorted(records.items())),
        tools={name: _version(name) for name in _TOOLS},
        files={name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())},
    )
    return {MANIFEST_FILE: write_manifest(manifest), **files, **reports}


def _reports_of(bundle: Bundle, names: Collection[str]) -> dict[str, bytes]:
    """Reports of a bundle, with what was found about the named targets only: another deployment is another matter."""
    reports = dict(bundle.reports)
    if FIDELITY_FILE in reports:
        report = bundle.report()
        report["targets"] = {name: entry for name, entry in report["targets"].items() if name in names}
        reports[FIDELITY_FILE] = _report_bytes(report)
    return reports


def _report_bytes(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, indent=1, allow_nan=False).encode() + b"\n"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True, eq=False)
class Bundle:
    """A bundle that was read and checked.

    Parameters
    ----------
    path : folder or zip file.
    head : manifest.json as it stands there.
    manifest : the same, parsed, see :class:`deploy.bundle.manifest.Manifest`.
    files : every file that the manifest vouches for.
    reports : files below reports/, which it does not.
    """

    path: Path
    head: bytes
    manifest: Manifest
    files: Mapping[str, bytes]
    reports: Mapping[str, bytes]

    @classmethod
    def read(cls, path: str | Path) -> Bundle:
        """Read a bundle, checking every byte.

        Raises
        ------
        BundleError : missing, damaged, hostile, or of an unknown major schema.
        """
        place = Path(path)
        try:
            if place.is_dir():
                everything = read_folder(place, passing="reports/.")
            elif place.is_file():
                everything = read_zip(place)
            else:
                kind = describe_kind(place.stat().st_mode) if place.exists() else ""
                cause = f"is {kind}, not a bundle" if kind else "no such bundle"
                raise BundleError(cause, remedy="make one with relu-deploy convert")
            return cls._check(place, everything)
        except BundleError as error:
            raise error.at(str(place)) from None
        except OSError as error:
            raise BundleError(f"cannot be read: {error.strerror}", place=str(place)) from None

    def read_again(self) -> Bundle:
        """The bundle as it stands now, with reports that came since.

        Raises
        ------
        BundleError : another bundle stands there now.
        """
        now = Bundle.read(self.path)
        if now.head != self.head:
            raise BundleError(
                "was replaced by another bundle in the meantime", place=str(self.path), remedy="run this again"
            )
        return now

    @classmethod
    def _check(cls, path: Path, everything: dict[str, bytes]) -> Bundle:
        head = everything.pop(MANIFEST_FILE, None)
        if head is None:
            raise BundleError(f"has no {MANIFEST_FILE}", remedy="this is no relu-deploy bundle")
        manifest = read_manifest(head)
        reports = {name: data for name, data in everything.items() if name.startswith("reports/")}
        files = {name: data for name, data in everything.items() if name not in reports}
        check_hashes(files, manifest.files)
        for name in (MODEL_FILE, INTERFACE_FILE, HASHES_FILE):
            if name not in files:
                raise BundleError(f"has no {name}", remedy="convert again")
        return cls(path, head, manifest, files, reports)

    @property
    def identity(self) -> str:
        """Hash that names this bundle, reports apart."""
        return self.manifest.identity

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targets in it."""
        return tuple(self.manifest.targets)

    @cached_property
    def model(self) -> Model:
        """The float model."""
        return read_model(self.manifest.model, self.files[MODEL_FILE])

    @cached_property
    def interface(self) -> Interface:
        """What clients know of the model."""
        found, model = Interface.from_bytes(self.files[INTERFACE_FILE]), self.model
        for what, says, has in (
            ("inputs", found.n_in, model.n_in),
            ("outputs", found.n_out, model.n_out),
            ("input shape", found.input_shape, model.input_shape),
            ("decision rule", found.decision, model.decision),
            ("class labels", found.classes, model.classes),
        ):
            if says != has:
                cause = f"{what}: {str(says)[:80]}, the model has {str(has)[:80]}"
                raise BundleError(cause, place=INTERFACE_FILE, remedy="convert again")
        return found

    @cached_property
    def calibration_hashes(self) -> frozenset[bytes]:
        """Hash of every row that a conversion has looked at."""
        try:
            return frozenset(bytes.fromhex(line) for line in self.files[HASHES_FILE].decode().split())
        except ValueError as error:
            raise BundleError(f"is damaged: {error}", place=HASHES_FILE) from None

    @property
    def activation_guard(self) -> Mapping[str, Any]:
        """Pre-activation boxes, the owner's."""
        if GUARD_FILE not in self.files:
            return {}
        try:
            return read_guard(self.files[GUARD_FILE], self.model.widths[1:])
        except BundleError as error:
            raise error.at(GUARD_FILE) from None

    def target_files(self, name: str) -> dict[str, bytes]:
        """Files of one target, by their name below targets/<name>/."""
        self._check_target(name)
        prefix = f"targets/{name}/"
        return {path.removeprefix(prefix): data for path, data in self.files.items() if path.startswith(prefix)}

    def deployment(self, name: str) -> Deployment:
        """Read one target's deployment.

        Raises
        ------
        UsageError : the bundle has no such target, or it is not installed.
        BundleError : the target cannot make sense of its files.
        """
        from deploy.registry import target

        files = self.target_files(name)
        try:
            return target(name).load(files, model=self.model)
        except DeployError as error:
            raise error.at(f"{self.path}, target {name}") from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # The hashes fit, so whoever wrote the files wrote them wrong; no target needs to foresee each way.
            cause = f"its files make no sense: {type(error).__name__}: {error}"
            raise BundleError(cause, place=f"{self.path}, target {name}", remedy="convert again") from error

    def archive(self, name: str, role: Role) -> bytes:
        """The client's or the server's archive of one target, as a zip file.

        Raises
        ------
        UsageError : the target is not served.
        """
        archives = self.deployment(name).archives()
        if archives is None:
            raise UsageError(f"target {name} is not served", place=str(self.path))
        files = archives.client if role == "client" else archives.server
        return write_archive(files, target=name, role=role, interface=self.interface, model=self.model.sha256)

    def client_archive(self, name: str) -> bytes:
        """The client's archive: no weights."""
        return self.archive(name, "client")

    def server_archive(self, name: str) -> bytes:
        """The server's archive: no keys."""
        return self.archive(name, "server")

    def opened_archive(self, name: str, role: Role) -> Archive:
        """The same archive, read back and checked."""
        return read_archive(self.archive(name, role), role=role)

    def report(self) -> dict[str, Any]:
        """What `evaluate` found so far; an empty document where nothing was evaluated."""
        data = self.reports.get(FIDELITY_FILE)
        if data is None:
            return {"targets": {}}
        try:
            return read_report(data)
        except BundleError as error:
            raise error.at(f"{self.path}/{FIDELITY_FILE}") from None

    def write_report(self, document: Mapping[str, Any]) -> None:
        """Keep what `evaluate` found beside the bundle's files; its identity does not change.

        Raises
        ------
        StorageError : the place cannot be written.
        """
        data = _report_bytes(document)
        if self.path.is_dir():
            place = self.path / FIDELITY_FILE
            with storage_errors(place):
                place.parent.mkdir(exist_ok=True)
            write_file(place, data, force=True)
        else:
            files = {MANIFEST_FILE: self.head, **self.files, **self.reports, FIDELITY_FILE: data}
            write_file(self.path, write_zip(files), force=True, mode=0o600)

    def _check_target(self, name: str) -> None:
        if name not in self.manifest.targets:
            have = ", ".join(self.targets) or "none"
            raise UsageError(
                f"no target {name!r} in this bundle, it has: {have}",
                place=str(self.path),
                remedy=f"add it with relu-deploy convert BUNDLE --target {name}",
            )


def write_bundle(path: Path, files: Mapping[str, bytes], *, force: bool = False) -> None:
    """Write a bundle as a folder, or as a zip file where `path` ends in .zip; whole or not at all."""
    if path.suffix == ".zip":
        write_file(path, write_zip(files), force=force, mode=0o600)
    else:
        write_tree(path, files, force=force, replaces=TOP_NAMES)


def is_bundle(path: Path) -> bool:
    """Say whether a path looks like a bundle rather than a model file."""
    if path.is_dir():
        return (path / MANIFEST_FILE).is_file()
    if path.suffix != ".zip" or not path.is_file():
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return MANIFEST_FILE in archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return True  # what is wrong with it is said where it is read
