"""Hostile bodies: always a 4xx with code and hint, never a dead worker, never a growing process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import numpy as np
import psutil
import pytest
from asking import SCOPE, Caller
from standing import N_IN, Running, running, served

from deploy.envelope import scope_hash, seal

GROWTH = 0.05
"""Largest growth of memory, after a warm-up of a quarter of the cases."""

Random = np.random.Generator


@pytest.fixture(scope="module")
def server(standin, tmp_path_factory) -> Iterator[Running]:
    models = [served(), served("standin-keyless")]
    with running(models, tmp_path_factory.mktemp("server"), workers=1, tenant_keys=1000) as run:
        yield run


def damage(rng: Random, data: bytes) -> bytes:
    """Change bytes: flip, cut, extend, repeat, zero, or replace them all."""
    at = int(rng.integers(len(data) + 1))
    size = int(rng.integers(1, 64))
    kind = int(rng.integers(7))
    if kind == 0 and data:
        at %= len(data)
        return data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + rng.bytes(size) + data[at:]
    if kind == 3:
        return data[:at] + data[max(0, at - size) :]
    if kind == 4:
        return data[:at] + bytes(size) + data[at + size :]
    if kind == 5:
        return data[:at] + b"\xff" * 8 + data[at + 8 :]
    return rng.bytes(int(rng.integers(600)))


def odd_value(rng: Random) -> Any:
    """A JSON value where another is expected."""
    values: list[Any] = [
        None, True, -1, 0, 2**31, 2**63, 2**64, 1e308, -0.5, "", "request", "\ud7ff\0", "x" * 1000,
        [], [1], [[1]], {}, {"a": 1}, [None] * 50, "9" * 400, "NaN",
    ]  # fmt: skip
    return values[int(rng.integers(len(values)))]


def odd_document(rng: Random, document: dict[str, Any]) -> dict[str, Any]:
    """A document with one value somewhere replaced, dropped or added."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    place: Any = copy
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = keys[int(rng.integers(len(keys)))]
        if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.7:
            place = place[key]
            continue
        if isinstance(place, dict) and rng.random() < 0.2:
            del place[key]
        else:
            place[key] = odd_value(rng)
        break
    return copy


class Fuzzer:
    """Sends hostile requests to every route that takes a body; `payload` makes a right payload."""

    def __init__(self, caller: Caller, rng: Random) -> None:
        self.caller, self.rng = caller, rng
        self._cases: list[Callable[[], httpx2.Response]] = [
            self.body, self.head, self.envelope, self.payload, self.numbers, self.key, self.length, self.path,
        ]  # fmt: skip

    def send(self) -> httpx2.Response:
        """One hostile request."""
        return self._cases[int(self.rng.integers(len(self._cases)))]()

    def _post(self, content: bytes, headers: dict[str, str], model: str | None = None) -> httpx2.Response:
        return self.caller.http.post(
            f"/v2/models/{model or self.caller.model}/infer", content=content, headers=headers
        )

    def body(self) -> httpx2.Response:
        content, headers = self.caller.body(self.caller.envelope())
        return self._post(damage(self.rng, content), headers)

    def head(self) -> httpx2.Response:
        content, headers = self.caller.body(self.caller.envelope())
        length = int(headers["Inference-Header-Content-Length"])
        head = json.dumps(odd_document(self.rng, json.loads(content[:length]))).encode()
        return self._post(head + content[length:], {"Inference-Header-Content-Length": str(len(head))})

    def envelope(self) -> httpx2.Response:
        return self.caller.infer(damage(self.rng, self.caller.envelope()))

    def payload(self) -> httpx2.Response:
        right = self.caller.role.encrypt(self.rng.random((1, N_IN)), self.caller.pair.secret)
        damaged = damage(self.rng, right)
        scope, key_id = scope_hash(SCOPE), bytes.fromhex(self.caller.key_id)
        return self.caller.infer(seal(damaged, kind="request", scope=scope, key_id=key_id))

    def numbers(self) -> httpx2.Response:
        rows = self.rng.random((2, N_IN)).tolist()
        document = {
            "inputs": [{"name": "x", "datatype": "FP64", "shape": [2, N_IN], "data": rows}],
            "outputs": [{"name": "logits", "parameters": {"binary_data": True}}],
        }
        content = json.dumps(odd_document(self.rng, document)).encode()
        return self._post(
            damage(self.rng, content) if self.rng.random() < 0.3 else content, {}, "toy-standin-keyless"
        )

    def key(self) -> httpx2.Response:
        data = damage(self.rng, self.caller.pair.evaluation)
        key_id = hashlib.sha256(data).hexdigest() if self.rng.random() < 0.8 else self.rng.bytes(32).hex()
        return self.caller.http.put(f"/v2/keys/{key_id}?scope={SCOPE}", content=data)

    def length(self) -> httpx2.Response:
        content, headers = self.caller.body(self.caller.envelope())
        headers["Inference-Header-Content-Length"] = (
            str(odd_value(self.rng)).encode("ascii", "ignore").decode()[:300]
        )
        headers["Inference-Header-Content-Length"] = headers["Inference-Header-Content-Length"].replace("\0", "")
        return self._post(content, headers)

    def path(self) -> httpx2.Response:
        from urllib.parse import quote

        name = quote(damage(self.rng, b"toy-standin").replace(b"\0", b""), safe="")
        return self.caller.http.post(f"/v2/models/{name or 'x'}/infer", content=self.rng.bytes(20))


def resident(server: Running) -> int:
    """Memory of server and workers, in bytes."""
    pids = [server.process.pid, *server.workers()]
    return sum(psutil.Process(pid).memory_info().rss for pid in pids)


@pytest.mark.parametrize("cases", [2_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_hostile_bodies_are_refused_without_harm(server, rng, cases) -> None:
    codes: dict[str, int] = {}
    with Caller(server.url) as caller:
        assert caller.upload().status_code == 201
        fuzzer = Fuzzer(caller, rng)
        workers = server.workers()
        for case in range(cases):
            if case == cases // 4:
                before = resident(server)
            response = fuzzer.send()
            assert response.status_code < 500, (case, response.text)
            if response.status_code >= 400:
                body = response.json()
                assert body["error"] and body["code"] and body["hint"], (case, body)
                codes[body["code"]] = codes.get(body["code"], 0) + 1
        assert server.workers() == workers
        assert resident(server) < (1 + GROWTH) * before
        assert caller.infer().status_code == 200
    assert len(codes) >= 12, codes  # the cases reach many refusals, not one
