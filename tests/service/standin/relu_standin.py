"""Two test doubles of a target: one with keys, one without. NOT cryptography: rows are hidden by XOR with a hash.

Their model is the identity on the first `n_out` inputs, which XOR lets a server cut out without knowing them.
``settings.json`` in an archive makes a server slow or fragile on purpose: ``seconds`` and ``busy_seconds`` that an
inference takes, ``load_seconds`` of a key, ``open_seconds`` of an archive, ``fragile`` (payloads that begin with DIE kill the worker; with DIEONCE
only the first time, marked in ``folder``), ``defect`` (an unexpected exception that quotes the payload).
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from pathlib import Path

import numpy as np

from deploy.errors import WireError
from deploy.interface import INTERFACE_FILE, Interface
from deploy.target import KeyPair, Limits, Signature, Tensor

N_IN, N_OUT = 16, 10
KEY_BYTES = 4096
_NONCE = 16


def _stream(secret: bytes, nonce: bytes, size: int) -> bytes:
    return hashlib.shake_256(secret + nonce).digest(size)


def _xor(first: bytes, second: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(first, second, strict=True))


class _Server:
    def __init__(self, files) -> None:
        self._settings = json.loads(files.get("settings.json", b"{}"))
        time.sleep(self._settings.get("open_seconds", 0))
        scope = self._settings.get("scope", "standin-1")
        self.limits = Limits(_NONCE + 8 * N_IN, _NONCE + 8 * N_OUT, key_bytes=KEY_BYTES, key_scope=scope)
        self.signature = Signature(Tensor("request", "BYTES", (-1,)), Tensor("answer", "BYTES", (-1,)))

    def check_key(self, path: Path) -> None:
        data = path.read_bytes()
        if data.startswith(b"SECRET"):
            raise WireError("holds a secret key", code="secret_key", hint="upload the evaluation keys only")
        if len(data) != KEY_BYTES or not data.startswith(b"STANDKEY" + self._scope()):
            raise WireError(f"{len(data)} bytes", code="key_format", hint="make keys from the client archive")

    def _scope(self) -> bytes:
        return hashlib.sha256(self.limits.key_scope.encode()).digest()

    def load_key(self, path: Path) -> object:
        time.sleep(self._settings.get("load_seconds", 0))
        return path.read_bytes()

    def infer(self, request: bytes, key: object) -> bytes:
        if self._settings.get("fragile") and request.startswith(b"DIE"):
            once = request[3:7] == b"ONCE"
            marker = Path(self._settings["folder"]) / "died"
            if not (once and marker.exists()):
                marker.touch()
                os._exit(9)
        if len(request) != _NONCE + 8 * N_IN:
            raise WireError(f"{len(request)} bytes", code="ciphertext_size", hint="encrypt again")
        end = time.perf_counter() + self._settings.get("busy_seconds", 0)
        while time.perf_counter() < end:
            pass
        time.sleep(self._settings.get("seconds", 0))
        if self._settings.get("defect"):
            raise ZeroDivisionError(request.hex())
        return request[: _NONCE + 8 * N_OUT]


class _Client:
    def __init__(self, files) -> None:
        interface = Interface.from_bytes(files[INTERFACE_FILE])
        self.guard, self.decision, self.features = interface.guard, interface.decision, interface.guard.features
        self._scope = json.loads(files.get("settings.json", b"{}")).get("scope", "standin-1")

    def generate_keys(self) -> KeyPair:
        head = b"STANDKEY" + hashlib.sha256(self._scope.encode()).digest()
        return KeyPair(secrets.token_bytes(32), head + secrets.token_bytes(KEY_BYTES - len(head)), self._scope)

    def encrypt(self, x, secret) -> bytes:
        assert x.shape == (1, N_IN) and secret is not None
        nonce = secrets.token_bytes(_NONCE)
        data = np.ascontiguousarray(x, "<f8").tobytes()
        return nonce + _xor(data, _stream(secret, nonce, len(data)))

    def decrypt(self, answer, secret):
        if len(answer) != _NONCE + 8 * N_OUT:
            raise WireError("answer size", code="answer_size", hint="ask again")
        data = answer[_NONCE:]
        return np.frombuffer(_xor(data, _stream(secret, answer[:_NONCE], len(data))), "<f8").reshape(1, N_OUT)


class _KeylessServer:
    def __init__(self, files) -> None:
        self.limits = Limits(8 * N_IN * 32, 8 * N_OUT * 32, rows_per_request=32)
        self.signature = Signature(Tensor("x", "FP64", (-1, N_IN)), Tensor("logits", "FP64", (-1, N_OUT)))

    def check_key(self, path: Path) -> None:
        raise WireError("keyless", code="key_refused", hint="send rows alone")

    def load_key(self, path: Path) -> object:
        self.check_key(path)
        return None

    def infer(self, request: bytes, key: object) -> bytes:
        if not request or len(request) % (8 * N_IN):
            raise WireError("no whole rows", code="bad_tensor", http_status=400, hint="send whole rows")
        return np.frombuffer(request, "<f8").reshape(-1, N_IN)[:, :N_OUT].tobytes()


class _KeylessClient(_Client):
    def generate_keys(self):
        return None

    def encrypt(self, x, secret) -> bytes:
        return np.ascontiguousarray(x, "<f8").tobytes()

    def decrypt(self, answer, secret):
        return np.frombuffer(answer, "<f8").reshape(-1, N_OUT)


class _Target:
    guarantee = non_guarantee = "a test double"

    def __init__(self, name, server, client) -> None:
        self.name, self._server, self._client = name, server, client

    def server(self, files):
        return self._server(files)

    def client(self, files):
        return self._client(files)

    def commands(self):
        return {}


keyed = _Target("standin", _Server, _Client)
keyless = _Target("standin-keyless", _KeylessServer, _KeylessClient)
