"""Raw requests to a server over the stand-in targets, for tests that say things no client would."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2
import numpy as np
from standing import N_IN, interface

from deploy.envelope import scope_hash, seal
from deploy.interface import INTERFACE_FILE

SCOPE = "standin-1"


def _load_standin() -> ModuleType:
    """The module of the stand-ins, without putting them on the path, where the registry would find them."""
    place = Path(__file__).parent / "service" / "standin" / "relu_standin.py"
    spec = importlib.util.spec_from_file_location("standin_for_tests", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_STANDIN = _load_standin()


class Caller:
    """A tenant with one key, which speaks HTTP by hand."""

    def __init__(self, url: str, *, token: str | None = None, model: str = "toy-standin", **options: Any) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.http = httpx2.Client(base_url=url, headers=headers, trust_env=False, timeout=60, **options)
        self.model = model
        self.role = _STANDIN.keyed.client({INTERFACE_FILE: interface().to_bytes()})
        self.pair = self.role.generate_keys()
        self.key_id = hashlib.sha256(self.pair.evaluation).hexdigest()

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *exc: object) -> None:
        self.http.close()

    def move(self, url: str) -> None:
        """Talk to another server from now on."""
        self.http.close()
        self.http = httpx2.Client(base_url=url, trust_env=False, timeout=60)

    def upload(self) -> httpx2.Response:
        """Store the key."""
        return self.http.put(f"/v2/keys/{self.key_id}", content=self.pair.evaluation)

    def envelope(self, row: np.ndarray | None = None, *, payload: bytes | None = None) -> bytes:
        """An envelope around an encrypted row, or around any payload."""
        if payload is None:
            payload = self.role.encrypt(
                np.zeros((1, N_IN)) if row is None else row.reshape(1, -1), self.pair.secret
            )
        return seal(payload, kind="request", scope=scope_hash(SCOPE), key_id=bytes.fromhex(self.key_id))

    def body(self, *elements: bytes, **parameters: Any) -> tuple[bytes, dict[str, str]]:
        """Body and headers of an inference."""
        data = b"".join(part for element in elements for part in (len(element).to_bytes(4, "little"), element))
        tensor = {
            "name": "request",
            "datatype": "BYTES",
            "shape": [len(elements)],
            "parameters": {"binary_data_size": len(data)},
        }
        head = json.dumps({"inputs": [tensor], "parameters": {"key_id": self.key_id, **parameters}}).encode()
        return head + data, {"Inference-Header-Content-Length": str(len(head))}

    def infer(self, *elements: bytes, **parameters: Any) -> httpx2.Response:
        """Send elements, one encrypted row of zeros where none is given."""
        content, headers = self.body(*(elements or (self.envelope(),)), **parameters)
        return self.http.post(f"/v2/models/{self.model}/infer", content=content, headers=headers)


def refused(response: httpx2.Response) -> tuple[int, str]:
    """Status and code of an error, which must have a text and a hint."""
    body = response.json()
    assert body["error"] and body["hint"] and set(body) == {"error", "code", "hint"}
    return response.status_code, body["code"]
