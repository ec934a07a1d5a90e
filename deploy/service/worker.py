"""A worker process: builds server roles from server archives, checks keys, runs inferences, one at a time.

Started as ``python -m deploy.service.worker FD``; FD is a socket to the server. The worker holds parsed keys within
a bound and dies with its server. It writes nothing to disk, and of an unexpected exception it tells the type and the
place but not the text, which could quote what it was given.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.envelope import KEYLESS, open_envelope, scope_hash, seal
from deploy.errors import BundleError, DeployError, WireError
from deploy.service.framing import FrameError, encode_frame, receive_frame
from deploy.service.refusals import key_not_found
from deploy.target import ServerRole

__all__ = ["KeyCache", "Session", "error_document", "main"]

_PR_SET_PDEATHSIG = 1


class KeyCache:
    """Parsed keys, least recently used out first.

    Parameters
    ----------
    bound_bytes : the bound on the sum of their files' sizes; one key is always held, however large.
    """

    def __init__(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes
        self._held: OrderedDict[tuple[str, str], tuple[object, int]] = OrderedDict()

    def get(self, scope: str, key_id: str) -> object | None:
        """A held key, now the most recently used, or None."""
        held = self._held.get((scope, key_id))
        if held is None:
            return None
        self._held.move_to_end((scope, key_id))
        return held[0]

    def put(self, scope: str, key_id: str, key: object, size: int) -> None:
        """Hold a key and let go of what no longer fits."""
        self._held[(scope, key_id)] = (key, size)
        while len(self._held) > 1 and sum(bytes_ for _, bytes_ in self._held.values()) > self.bound_bytes:
            self._held.popitem(last=False)

    def ids(self) -> list[str]:
        """Ids of the held keys."""
        return [key_id for _, key_id in self._held]


@dataclass(frozen=True, slots=True)
class _Model:
    role: ServerRole
    scope: bytes
    enveloped: bool


class Session:
    """What one worker does, apart from its socket: :meth:`handle` maps a request frame to an answer frame."""

    def __init__(self, *, key_cache_bytes: int) -> None:
        self._models: dict[str, _Model] = {}
        self._keys = KeyCache(key_cache_bytes)
        self._operations: Mapping[str, Callable[[dict[str, Any], bytearray], tuple[dict[str, Any], bytes]]] = {
            "open": self._open,
            "check_key": self._check_key,
            "infer": self._infer,
        }

    def handle(self, header: dict[str, Any], payload: bytearray) -> tuple[dict[str, Any], bytes]:
        """Do one operation; every failure is an answer."""
        began = time.perf_counter()
        try:
            answer, data = self._operations[header["op"]](header, payload)
        except DeployError as error:
            answer, data = {"error": error_document(error)}, b""
        except Exception as error:  # noqa: BLE001  the boundary of the process
            answer, data = {"error": _unexpected(error)}, b""
        answer["seconds"] = time.perf_counter() - began
        answer["keys"] = self._keys.ids()
        return answer, data

    def _open(self, header: dict[str, Any], payload: bytearray) -> tuple[dict[str, Any], bytes]:
        from deploy.bundle import read_archive
        from deploy.registry import target

        archive = read_archive(bytes(payload), role="server")
        role = target(archive.target).server(archive.files)
        if role is None:
            raise BundleError(f"target {archive.target} is not served")
        limits, signature = role.limits, role.signature
        self._models[header["model"]] = _Model(
            role, scope_hash(limits.key_scope), signature.input.datatype == "BYTES"
        )
        tensors = {
            side: {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
            for side, tensor in (("input", signature.input), ("output", signature.output))
        }
        numbers = {
            "request_bytes": limits.request_bytes,
            "answer_bytes": limits.answer_bytes,
            "key_bytes": limits.key_bytes,
            "key_scope": limits.key_scope,
            "rows_per_request": limits.rows_per_request,
        }
        return {"limits": numbers, "signature": tensors, "target": archive.target}, b""

    def _check_key(self, header: dict[str, Any], payload: bytearray) -> tuple[dict[str, Any], bytes]:
        self._models[header["model"]].role.check_key(Path(header["path"]))
        return {}, b""

    def _infer(self, header: dict[str, Any], payload: bytearray) -> tuple[dict[str, Any], bytes]:
        model = self._models[header["model"]]
        if not model.enveloped:
            return {}, model.role.infer(bytes(payload), None)
        key_id = header.get("key_id")
        key_bytes = KEYLESS if key_id is None else bytes.fromhex(key_id)
        envelope = open_envelope(memoryview(payload), kind="request", scope=model.scope, key_id=key_bytes)
        key = None if key_id is None else self._key(model.role, key_id, Path(header["key_path"]))
        answer = model.role.infer(envelope.payload, key)
        return {}, seal(answer, kind="answer", scope=model.scope, key_id=key_bytes, subject=envelope.digest)

    def _key(self, role: ServerRole, key_id: str, path: Path) -> object:
        scope = role.limits.key_scope
        key = self._keys.get(scope, key_id)
        if key is None:
            size = _check_file(path, key_id)
            key = role.load_key(path)
            self._keys.put(scope, key_id, key, size)
        return key


def _check_file(path: Path, key_id: str) -> int:
    """Size of a stored key, or WireError where it is gone or no longer what was uploaded."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
    except OSError:
        raise key_not_found("the key is gone") from None
    if digest != key_id:
        raise WireError(
            "the stored key is damaged",
            code="key_damaged",
            http_status=404,
            hint="upload the evaluation keys again",
        )
    return size


def error_document(error: DeployError) -> dict[str, Any]:
    """What crosses to the server of an error that was raised on purpose."""
    return {
        "error": f"{error.place}: {error.cause}" if error.place else error.cause,
        "code": error.code,
        "hint": error.remedy,
        "status": error.http_status,
    }


def _unexpected(error: Exception) -> dict[str, Any]:
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
    return {
        "error": "a defect in the service",
        "code": "internal",
        "hint": "report it",
        "status": 500,
        "where": where,
    }


def main() -> None:
    """Serve one socket until it closes."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _die_with_parent()
    try:
        settings, _ = receive_frame(connection)
        os.nice(settings["nice"])
        if settings["memory_bytes"]:
            resource.setrlimit(resource.RLIMIT_AS, (settings["memory_bytes"], settings["memory_bytes"]))
        session = Session(key_cache_bytes=settings["key_cache_bytes"])
        while True:
            header, payload = receive_frame(connection)
            answer, data = session.handle(header, payload)
            connection.sendall(b"".join(encode_frame(answer, data)))
            if header["op"] == "open":
                gc.freeze()  # what lives as long as the worker is not looked through again
    except (FrameError, BrokenPipeError, ConnectionResetError):
        return


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when the server dies, however it dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
