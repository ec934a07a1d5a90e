"""What a client knows of its model and its keys, and every piece of work with the server, sans transport.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from deploy.arrays import Array
from deploy.bundle import Archive, read_archive
from deploy.client.exchange import (
    Call,
    Flow,
    Response,
    build_infer,
    expect,
    read_infer,
    read_json,
    retrying,
)
from deploy.client.keyfile import KeyFiles
from deploy.client.received import check_listing, check_metadata, plain_text
from deploy.envelope import KEYLESS, open_envelope, scope_hash, seal
from deploy.errors import DataError, InputError, UsageError, WireError
from deploy.interface import Interface
from deploy.target import ClientRole

__all__ = [
    "InputGuardWarning",
    "Prediction",
    "Session",
    "check_features",
    "check_rows",
    "decide",
    "elements_per_body",
    "open_role",
]

_BODY_BYTES = 32 << 20
_MAX_ELEMENTS = 64
_ARCHIVE_BYTES = 64 << 20


def elements_per_body(element_bytes: int) -> int:
    """Elements of this size that one request may have: half of what a service with default settings takes.

    >>> elements_per_body(100), elements_per_body(10 << 20)
    (64, 3)
    """
    return max(1, min(_MAX_ELEMENTS, _BODY_BYTES // element_bytes))


class InputGuardWarning(UserWarning):
    """Rows leave the box that the model was calibrated or declared on; answers on them are not vouched for."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Decisions on rows.

    Parameters
    ----------
    labels : one per row: class label, or class index without labels; for a value model the outputs themselves.
    logits : (batch, n_out). Keep those of an encrypted model to yourself: decrypted numbers handed back to the
        server can betray the secret key (Li and Micciancio, EUROCRYPT 2021), a label does not.
    outside : (batch,) of bool: rows that leave the input guard.
    """

    labels: tuple[Any, ...]
    logits: Array
    outside: Array


@dataclass(frozen=True, slots=True)
class _Model:
    """A served model as its metadata and client archive describe it."""

    path: str
    metadata: Mapping[str, Any]
    archive: Archive
    role: ClientRole
    interface: Interface
    etag: str
    content: bytes = field(repr=False)

    @property
    def parameters(self) -> Mapping[str, Any]:
        return dict(self.metadata["parameters"])

    @property
    def is_keyed(self) -> bool:
        return int(self.parameters["key_bytes"]) > 0

    @property
    def scope(self) -> bytes:
        return scope_hash(str(self.parameters["key_scope"]))


class Session:
    """Flows of one client; see :class:`deploy.client.EncryptedClient` for the parameters."""

    def __init__(
        self,
        *,
        model: str | None,
        version: str | None,
        token: str | None,
        keys: KeyFiles | None,
        archive_sha256: str | None,
        features: Sequence[str] | None,
        units: Sequence[str] | None,
        retries: int,
        timeout_ms: int | None,
    ) -> None:
        self._name, self._version = model, version
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._pinned = archive_sha256
        self._features, self._units = features, units
        self._retries = retries
        self._timeout_ms = timeout_ms
        self._model: _Model | None = None
        self._uploaded = False
        self.keys = keys

    def open(self) -> Flow[_Model]:
        """Learn the model: metadata, client archive, features."""
        if self._model is None:
            self._model = yield from self._fetch_model()
        return self._model

    def upload_keys(self) -> Flow[None]:
        """Make keys where there are none, and upload them unless the server has them."""
        model = yield from self.open()
        if not model.is_keyed or self._uploaded:
            return
        if self.keys is None:
            pair = model.role.generate_keys()
            if pair is None:
                raise InputError("this client archive makes no keys, but its server wants some")
            self.keys = KeyFiles.of(pair)
        if self.keys.scope != model.scope:
            raise InputError(
                "these keys were made for other parameters than this model's",
                remedy="make keys from this model's client archive, with keygen",
            )
        there = yield from self._send("HEAD", self._key_path())
        if there.status != 200:
            expect(there, 404)
            path = f"{self._key_path()}?scope={quote(str(model.parameters['key_scope']), safe='')}"
            expect((yield from self._send("PUT", path, self.keys.evaluation)), 200, 201)
        self._uploaded = True

    def rotate_keys(self) -> Flow[KeyFiles]:
        """Make new keys, upload them, and delete the old ones from the server."""
        model = yield from self.open()
        pair = model.role.generate_keys() if model.is_keyed else None
        if pair is None:
            raise InputError("this model has no keys")
        old = self.keys
        self.keys, self._uploaded = KeyFiles.of(pair), False
        yield from self.upload_keys()
        if old is not None:
            expect((yield from self._send("DELETE", f"/v2/keys/{old.key_id}")), 204)
        return self.keys

    def delete_keys(self) -> Flow[None]:
        """Delete this client's evaluation keys from the server."""
        if self.keys is not None:
            expect((yield from self._send("DELETE", self._key_path())), 204)
            self._uploaded = False

    def predict(self, rows: npt.ArrayLike) -> Flow[Prediction]:
        """Encrypt, send, decrypt, decide."""
        model = yield from self.open()
        x = check_rows(rows, model.interface)
        outside = self._warn_outside(model, x)
        yield from self.upload_keys()
        try:
            logits = yield from self._infer(model, x)
        except WireError as error:
            if error.code == "archive_changed":
                self._model = None
                renewed = yield from self.open()
                _check_same_inputs(model.interface, renewed.interface)
                self._uploaded = False
                model = renewed
            elif error.code == "key_not_found":
                self._uploaded = False
            else:
                raise
            yield from self.upload_keys()
            logits = yield from self._infer(model, x)
        return decide(model.interface, logits, outside)

    def _infer(self, model: _Model, x: Array) -> Flow[Array]:
        per_element = int(model.parameters["rows_per_request"])
        tensor, output = model.metadata["inputs"][0], model.metadata["outputs"][0]["name"]
        is_bytes = tensor["datatype"] == "BYTES"
        element_bytes = int(model.parameters["request_bytes"]) + 1024
        per_call = per_element * (elements_per_body(element_bytes) if is_bytes else 1)
        parts = []
        for begin in range(0, len(x), per_call):
            rows = x[begin : begin + per_call]
            chunks = [rows[i : i + per_element] for i in range(0, len(rows), per_element)]
            elements = [self.encrypt(model, chunk) for chunk in chunks]
            call = build_infer(
                f"{model.path}/infer",
                elements,
                tensor=tensor,
                rows=len(rows),
                output=output,
                parameters=self._parameters(model),
            )
            response = expect((yield from retrying(self._signed(call), retries=self._retries)), 200)
            answers = read_infer(response, is_bytes=is_bytes)
            if len(answers) != len(elements):
                raise WireError(f"{len(answers)} answers to {len(elements)} questions", code="bad_answer")
            for answer, element, chunk in zip(answers, elements, chunks, strict=True):
                logits = self.decrypt(model, answer, request=element)
                if logits.shape[1:] != (model.interface.n_out,) or len(logits) < len(chunk):
                    raise WireError(f"logits of shape {logits.shape} for {len(chunk)} rows", code="bad_answer")
                parts.append(logits[: len(chunk)])  # an element may have room for more rows than were sent
        return np.concatenate(parts)

    def encrypt(self, model: _Model, rows: Array) -> bytes:
        """One element from rows (batch, n_in)."""
        secret = self.keys.secret if self.keys is not None and model.is_keyed else None
        payload = model.role.encrypt(rows, secret)
        if model.metadata["inputs"][0]["datatype"] != "BYTES":
            return payload
        return seal(payload, kind="request", scope=model.scope, key_id=self._key_bytes(model))

    def decrypt(self, model: _Model, answer: bytes, *, request: bytes | None = None) -> Array:
        """Logits (batch, n_out) of one element; `request` is what it must answer."""
        secret = self.keys.secret if self.keys is not None and model.is_keyed else None
        if model.metadata["inputs"][0]["datatype"] == "BYTES":
            envelope = open_envelope(answer, kind="answer", scope=model.scope, key_id=self._key_bytes(model))
            if request is not None and envelope.subject != open_envelope(request, kind="request").digest:
                raise WireError("this answers another request", code="bad_answer", hint="send the request again")
            answer = envelope.payload
        return model.role.decrypt(answer, secret)

    def _fetch_model(self) -> Flow[_Model]:
        name = self._name
        if name is None:
            names = check_listing(read_json((yield from self._send("GET", "/v2/models"))))
            if len(names) != 1:
                shown = plain_text(", ".join(names))
                raise UsageError(f"the server has {len(names)} models", remedy=f"name one: {shown}")
            name = self._name = names[0]
        path = f"/v2/models/{quote(name, safe='')}"
        if self._version is not None:
            path += f"/versions/{quote(self._version, safe='')}"
        metadata = check_metadata(read_json((yield from self._send("GET", path))))
        response = expect((yield from self._send("GET", f"{path}/client", max_bytes=_ARCHIVE_BYTES)), 200)
        return self._open_archive(path, metadata, response)

    def _open_archive(self, path: str, metadata: Mapping[str, Any], response: Response) -> _Model:
        etag = hashlib.sha256(response.content).hexdigest()
        expected = self._pinned or metadata["parameters"]["client_archive_sha256"]
        if etag != expected:
            whose = "that you pinned" if self._pinned else "in the metadata"
            raise WireError(
                f"the client archive hashes to {etag[:12]}…, the sha256 {whose} is {str(expected)[:12]}…",
                code="archive_hash",
                hint="the model was changed, or the archive on the way; ask the owner for the sha256",
            )
        archive = read_archive(response.content, role="client")
        role, interface = open_role(archive)
        if self.keys is not None and not metadata["parameters"]["key_bytes"]:
            raise InputError(
                "there are keys, but the server says that its model takes none: it would see the rows",
                remedy="leave out the keys if that is what you want",
            )
        check_features(interface, self._features, self._units)
        return _Model(path, metadata, archive, role, interface, etag, response.content)

    def _warn_outside(self, model: _Model, x: Array) -> Array:
        leaving = model.interface.guard.outside(x)
        outside = np.asarray(leaving.any(axis=1))
        if outside.any():
            features = np.flatnonzero(leaving.any(axis=0))
            shown = ", ".join(model.interface.guard.features[i].name for i in features[:5])
            more = f" and {len(features) - 5} more" if len(features) > 5 else ""
            warnings.warn(
                f"{int(outside.sum())} of {len(x)} rows leave the input guard "
                f"({model.interface.guard.source}) in {shown}{more}",
                InputGuardWarning,
                stacklevel=5,
            )
        return outside

    def _parameters(self, model: _Model) -> dict[str, str | int]:
        parameters: dict[str, str | int] = {"archive": model.etag}
        if self.keys is not None and model.is_keyed:
            parameters["key_id"] = self.keys.key_id
        if self._timeout_ms is not None:
            parameters["timeout_ms"] = self._timeout_ms
        return parameters

    def _key_bytes(self, model: _Model) -> bytes:
        return bytes.fromhex(self.keys.key_id) if self.keys is not None and model.is_keyed else KEYLESS

    def _key_path(self) -> str:
        assert self.keys is not None
        return f"/v2/keys/{self.keys.key_id}"

    def _signed(self, call: Call) -> Call:
        return replace(call, headers={**call.headers, **self._headers})

    def _send(
        self, method: str, path: str, content: bytes | None = None, *, max_bytes: int = 1 << 20
    ) -> Flow[Response]:
        headers = {} if content is None else {"Content-Type": "application/octet-stream"}
        call = Call(method, path, content, headers, max_bytes)
        return (yield from retrying(self._signed(call), retries=self._retries))


def open_role(archive: Archive) -> tuple[ClientRole, Interface]:
    """The client's side of an archive; raises :class:`UsageError` where its target has none."""
    from deploy.registry import target

    role = target(archive.target).client(archive.files)
    if role is None:
        raise UsageError(f"target {archive.target} is not served")
    return role, archive.interface


def check_features(interface: Interface, names: Sequence[str] | None, units: Sequence[str] | None) -> None:
    """Raise :class:`DataError` unless the caller's features are the model's, in its order and units.

    A model whose features were never named (x0, x1, …) takes any names.
    """
    wanted = [feature.name for feature in interface.guard.features]
    is_named = wanted != [f"x{index}" for index in range(len(wanted))]
    if names is not None and is_named and list(names) != wanted:
        missing = [name for name in wanted if name not in set(names)]
        unknown = [name for name in names if name not in set(wanted)]
        if missing or unknown:
            cause = f"missing: {', '.join(missing[:5]) or 'none'}; unknown: {', '.join(unknown[:5]) or 'none'}"
        else:
            cause = "the features are the model's, in another order"
        raise DataError(cause, place="features", remedy=f"the model takes {_shorten(wanted)}")
    expected = [feature.unit for feature in interface.guard.features]
    if units is not None and list(units) != expected:
        index = next((i for i, (a, b) in enumerate(zip(units, expected, strict=False)) if a != b), None)
        where = f"feature {wanted[index]}" if index is not None else "units"
        cause = (
            f"in {units[index]!r}, the model takes {expected[index]!r}"
            if index is not None
            else f"{len(units)} units"
        )
        raise DataError(cause, place=where, remedy="convert the column first")


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f", … ({len(names)} in all)" if len(names) > 8 else "")


def check_rows(rows: npt.ArrayLike, interface: Interface) -> Array:
    """Rows as (batch, n_in) float64, or :class:`DataError` where they do not fit the model."""
    try:
        x = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError("rows must be numbers, (batch, n_in)") from None
    x = x.reshape(1, -1) if x.ndim == 1 else x.reshape(len(x), -1) if x.ndim > 2 else x
    if x.ndim != 2 or x.shape[1] != interface.n_in or not len(x):
        raise DataError(f"rows of shape {np.shape(rows)}", remedy=f"the model takes (batch, {interface.n_in})")
    if not np.isfinite(x).all():
        raise DataError(f"row {int(np.argmin(np.isfinite(x).all(axis=1)))} is not finite")
    return np.ascontiguousarray(x)


def _check_same_inputs(old: Interface, new: Interface) -> None:
    before, after = ([(f.name, f.unit) for f in side.guard.features] for side in (old, new))
    if before != after:
        raise DataError(
            "the model was replaced by one with other features, order or units",
            remedy=f"make a new client; it takes {_shorten([name for name, _ in after])}",
        )


def decide(interface: Interface, logits: Array, outside: Array) -> Prediction:
    """Decisions from logits (batch, n_out)."""
    if interface.decision.rule == "value":
        return Prediction(tuple(logits.tolist()), logits, outside)
    index = interface.decision.decide(logits).tolist()
    classes = interface.classes
    return Prediction(tuple(index if classes is None else (classes[i] for i in index)), logits, outside)
