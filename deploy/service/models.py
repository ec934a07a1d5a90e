"""What is served: bundles by name and version, one model per target that has a server's side."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.errors import UsageError, WireError
from deploy.target import Limits, Signature, Tensor

__all__ = ["Catalogue", "ModelSource", "ServedModel", "open_sources", "parse_source"]

_SOURCE = re.compile(
    r"(?:(?P<name>[A-Za-z0-9][A-Za-z0-9_.-]*)(?::(?P<version>[A-Za-z0-9][A-Za-z0-9_.-]*))?=)?(?P<path>.+)"
)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A bundle to serve, under a name and a version."""

    name: str
    version: str
    path: Path


def parse_source(text: str) -> ModelSource:
    """Read ``[NAME[:VERSION]=]BUNDLE``; the name is the bundle's own, the version 1, unless given.

    >>> parse_source("digits:2=out/new.bundle").version
    '2'
    >>> parse_source("out/digits.bundle").name
    'digits'
    """
    match = _SOURCE.fullmatch(text)
    if match is None or Path(text).exists():
        path, name, version = Path(text), None, None
    else:
        path, name, version = Path(match["path"]), match["name"], match["version"]
    own = path.resolve().name
    for suffix in (".zip", ".bundle"):
        own = own.removesuffix(suffix)
    name = name or re.sub(r"[^A-Za-z0-9_.-]", "-", own).lstrip("-._") or "model"
    return ModelSource(name, version or "1", path)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One version of one model.

    Parameters
    ----------
    client_archive : what ``GET …/client`` answers; `etag` is its sha256.
    """

    name: str
    version: str
    target: str
    client_archive: bytes
    server_archive: bytes
    etag: str

    @property
    def id(self) -> str:
        """What workers call it."""
        return f"{self.name}:{self.version}"


def open_sources(sources: Iterable[ModelSource], *, targets: Sequence[str] = ()) -> list[ServedModel]:
    """Read bundles and derive both archives of each of their targets that is served.

    Parameters
    ----------
    targets : serve only these, all of them where empty.

    Raises
    ------
    BundleError : a bundle cannot be read.
    UsageError : nothing to serve, or two models of one name and version.
    """
    from deploy.bundle import Bundle

    found: dict[tuple[str, str], ServedModel] = {}
    for source in sources:
        bundle = Bundle.read(source.path)
        names = [name for name in bundle.targets if not targets or name in targets]
        served = [name for name in names if bundle.deployment(name).archives() is not None]
        if not served:
            have = ", ".join(bundle.targets) or "none"
            raise UsageError(
                f"nothing to serve, its targets are: {have}",
                place=str(source.path),
                remedy="convert it with --target ckks or ternary",
            )
        for target in served:
            client = bundle.client_archive(target)
            model = ServedModel(
                name=f"{source.name}-{target}",
                version=source.version,
                target=target,
                client_archive=client,
                server_archive=bundle.server_archive(target),
                etag=hashlib.sha256(client).hexdigest(),
            )
            if (model.name, model.version) in found:
                raise UsageError(
                    f"model {model.name}, version {model.version} is given twice",
                    place=str(source.path),
                    remedy="name them apart: NAME:VERSION=BUNDLE",
                )
            found[model.name, model.version] = model
    return list(found.values())


class Catalogue:
    """The models of a server, and what their workers said of them."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._versions: dict[str, dict[str, ServedModel]] = {}
        for model in models:
            self._versions.setdefault(model.name, {})[model.version] = model
        self._roles: dict[str, tuple[Limits, Signature]] = {}

    @property
    def models(self) -> list[ServedModel]:
        """All of them, in the order they were given."""
        return [model for versions in self._versions.values() for model in versions.values()]

    def describe(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        """Take in what a worker said when it opened each archive."""
        for model_id, answer in answers.items():
            sides = {
                side: Tensor(tensor["name"], tensor["datatype"], tuple(tensor["shape"]))
                for side, tensor in answer["signature"].items()
            }
            self._roles[model_id] = (Limits(**answer["limits"]), Signature(sides["input"], sides["output"]))

    def limits(self, model: ServedModel) -> Limits:
        """Byte caps and scope."""
        return self._roles[model.id][0]

    def signature(self, model: ServedModel) -> Signature:
        """Its tensors."""
        return self._roles[model.id][1]

    def versions(self, name: str) -> list[str]:
        """Versions of a model, the latest last."""
        return list(self._named(name))

    def find(self, name: str, version: str | None = None) -> ServedModel:
        """A model by name; its latest version where none is given; raises :class:`WireError` (404)."""
        versions = self._named(name)
        if version is None:
            return list(versions.values())[-1]
        if version not in versions:
            raise WireError(
                f"model has no such version, it has {', '.join(versions)}",
                code="version_unknown",
                http_status=404,
                hint="read GET /v2/models",
            )
        return versions[version]

    def by_scope(self, scope: str | None) -> list[ServedModel]:
        """One model for each key scope that is served, or for the given one alone."""
        found: dict[str, ServedModel] = {}
        for model in self.models:
            limits = self.limits(model)
            if limits.key_bytes and scope in (None, limits.key_scope):
                found.setdefault(limits.key_scope, model)
        return list(found.values())

    @property
    def request_bytes(self) -> int:
        """The largest request that any model takes, in bytes of tensor."""
        return max(self.limits(model).request_bytes for model in self.models)

    @property
    def key_bytes(self) -> int:
        """The largest keys that any model takes; 0 where none takes any."""
        return max(self.limits(model).key_bytes for model in self.models)

    def _named(self, name: str) -> dict[str, ServedModel]:
        if name not in self._versions:
            raise WireError("no such model", code="model_unknown", http_status=404, hint="read GET /v2/models")
        return self._versions[name]
