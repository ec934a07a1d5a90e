"""The service over real ciphertexts: right answers, no row anywhere, and every hostile stream refused."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator

import httpx2
import numpy as np
import psutil
import pytest
from asking import refused
from standing import Running, running
from tapping import disk_hits, hits, memory_hits, tapped, traces

import deploy
from deploy import EncryptedClient
from deploy.bundle import read_archive
from deploy.demo import HELD_OUT
from deploy.envelope import HEADER_BYTES as ENVELOPE_HEADER
from deploy.envelope import scope_hash, seal
from deploy.service.models import ServedModel, open_sources, parse_source
from fhe.wire.envelope import Kind, pack
from fhe.wire.sizes import ENVELOPE_BYTES
from fhe.wire.sizes import HEADER_BYTES as STREAM_HEADER

MODEL = "digits-ckks"
pytestmark = pytest.mark.filterwarnings("ignore:.*leave the input guard:UserWarning")


@pytest.fixture(scope="session")
def models(digits_bundle) -> list[ServedModel]:
    return open_sources([parse_source(str(digits_bundle))])


@pytest.fixture(scope="module")
def server(models, tmp_path_factory) -> Iterator[Running]:
    with running(models, tmp_path_factory.mktemp("server"), workers=1) as run:
        yield run


@pytest.fixture(scope="module")
def client(server) -> Iterator[EncryptedClient]:
    with EncryptedClient(server.url) as client:
        client.upload_keys()
        yield client


def test_answers_are_the_references_within_its_stated_error(client, digits_bundle) -> None:
    rows = deploy.HeldOut.read(HELD_OUT).x[:70]
    deployment = deploy.Bundle.read(digits_bundle).deployment("ckks")
    reference = deployment.logits(rows)
    (stated,) = [quantity.value for quantity in deployment.cost() if quantity.name == "logit_error"]
    found = client.predict(rows)
    assert np.abs(found.logits - reference).max() <= stated
    decided = client.interface().decision
    sure = decided.margins(reference) > 2 * stated  # below that either decision would be right
    assert sure.sum() >= 60
    assert decided.agree(found.logits, reference)[sure].all()


def test_two_encryptions_of_one_row_differ(client, models) -> None:
    role = deploy.targets()["ckks"].client(read_archive(models[0].client_archive, role="client").files)
    row = np.zeros((1, 64))
    first, second = (role.encrypt(row, client.keys.secret) for _ in range(2))
    assert first != second and len(first) == len(second)


def test_canary_row_is_nowhere_on_the_servers_side(models, tmp_path) -> None:
    row = np.frombuffer(os.urandom(64 * 8), "<u8") / 2.0**64
    needles = traces(row)
    with (
        running(models, tmp_path, workers=1) as server,
        tapped(server.url) as tap,
        EncryptedClient(tap.url) as client,
    ):
        for _ in range(3):
            client.predict(row)
        assert client.keys is not None
        assert client.keys.evaluation in tap.recorded
        secret = [client.keys.secret[offset : offset + 32] for offset in (0x200, 0x4000, 0x8000)]
        assert hits(tap.recorded, [*needles, *secret]) == 0
        for pid in [server.process.pid, *server.workers()]:
            assert memory_hits(pid, [*needles, *secret]) == 0
        assert disk_hits([tmp_path], [*needles, *secret]) == 0


def test_client_archive_holds_no_weight_and_server_archive_no_key(models, digits_bundle, client) -> None:
    (model,) = models
    there = read_archive(model.client_archive, role="client").files
    affines = deploy.Bundle.read(digits_bundle).model.affines
    weights = np.concatenate([array.ravel() for affine in affines for array in (affine.weight, affine.bias)])
    weights = weights[np.abs(weights) > 1e-6]
    contents = b"\0".join(there.values())
    for dtype in ("<f8", ">f8"):
        assert not any(value.tobytes() in contents for value in weights.astype(dtype))
    assert not any(repr(float(value))[:12].encode() in contents for value in weights)
    assert sum(map(len, there.values())) < 4 * weights.size  # too small to hold them in any form
    server_contents = b"\0".join(read_archive(model.server_archive, role="server").files.values())
    assert client.keys is not None
    for data in (client.keys.secret, client.keys.evaluation):
        samples = [data[at : at + 16] for at in range(ENVELOPE_BYTES + 200, len(data) - 16, 50_000)]
        assert sum(len(set(sample)) > 8 for sample in samples) >= 3
        assert not any(sample in server_contents for sample in samples if len(set(sample)) > 8)


def streams_of(envelope: bytes) -> list[bytes]:
    """The streams in one of the target's own envelopes: their number, then a size each, then they."""
    count = int.from_bytes(envelope[12:16], "little")
    sizes = struct.unpack_from(f"<{count}Q", envelope, ENVELOPE_BYTES)
    streams, at = [], ENVELOPE_BYTES + 8 * count
    for size in sizes:
        streams.append(envelope[at : at + size])
        at += size
    assert at == len(envelope)
    return streams


class Forger:
    """Makes requests whose every checksum is right, around streams that are not."""

    def __init__(self, server: Running, client: EncryptedClient, models: list[ServedModel]) -> None:
        assert client.keys is not None
        self.http = httpx2.Client(base_url=server.url, trust_env=False, timeout=60)
        self.keys = client.keys
        files = read_archive(models[0].client_archive, role="client").files
        role = deploy.targets()["ckks"].client(files)
        self.scope = role.limits.key_scope
        self.stream, *self.others = streams_of(role.encrypt(np.full((1, 64), 0.5), self.keys.secret))

    def send(self, *streams: bytes, payload: bytes | None = None) -> httpx2.Response:
        """Ask with forged streams, or with a forged payload."""
        if payload is None:
            payload = pack(Kind.REQUEST, self.scope, [*streams, *(self.others if streams else ())])
        key_id = bytes.fromhex(self.keys.key_id)
        element = seal(payload, kind="request", scope=scope_hash(self.scope), key_id=key_id)
        data = len(element).to_bytes(4, "little") + element
        tensor = {
            "name": "request",
            "datatype": "BYTES",
            "shape": [1],
            "parameters": {"binary_data_size": len(data)},
        }
        head = json.dumps({"inputs": [tensor], "parameters": {"key_id": self.keys.key_id}}).encode()
        length = {"Inference-Header-Content-Length": str(len(head))}
        return self.http.post(f"/v2/models/{MODEL}/infer", content=head + data, headers=length)

    def patched(self, at: int, new: bytes) -> bytes:
        """The right stream with some bytes replaced."""
        return self.stream[:at] + new + self.stream[at + len(new) :]


@pytest.fixture(scope="module")
def forger(server, client, models) -> Iterator[Forger]:
    forger = Forger(server, client, models)
    yield forger
    forger.http.close()


FORM_AT = STREAM_HEADER + 32
SCALE_AT = FORM_AT + 1 + 8 * 3


def test_forger_is_answered_where_nothing_is_forged(forger) -> None:
    assert forger.send(forger.stream).status_code == 200


@pytest.mark.parametrize(
    ("at", "new"),
    [
        *((SCALE_AT, struct.pack("<d", scale)) for scale in (float("nan"), float("inf"), -(2.0**24), 0.0, 2.0**30)),
        (FORM_AT, b"\0"),
        (FORM_AT + 1, struct.pack("<Q", 5000)),
        (FORM_AT + 1, struct.pack("<Q", 10**6)),
        (FORM_AT + 9, struct.pack("<Q", 4096)),
        (FORM_AT + 17, struct.pack("<Q", 1)),
        (STREAM_HEADER, b"\xff" * 32),
        (8, struct.pack("<Q", 2**60)),
        (5, b"\2"),
        (STREAM_HEADER + 73 + 24, b"\xff" * 8),
    ],
)
def test_hostile_stream_is_a_4xx_with_code_and_hint(forger, at, new) -> None:
    status, code = refused(forger.send(forger.patched(at, new)))
    assert status in (413, 422)
    assert code.startswith(("ciphertext_", "stream_", "envelope_"))


@pytest.mark.parametrize("change", ["empty", "cut", "longer", "none", "many", "zeros", "noise"])
def test_hostile_payload_is_a_4xx_with_code_and_hint(forger, rng, change) -> None:
    right = pack(Kind.REQUEST, forger.scope, [forger.stream, *forger.others])
    found = {
        "empty": lambda: forger.send(payload=b""),
        "cut": lambda: forger.send(payload=right[: len(right) // 2]),
        "longer": lambda: forger.send(payload=right + b"\0"),
        "none": lambda: forger.send(),
        "many": lambda: forger.send(*[forger.stream] * 200),
        "zeros": lambda: forger.send(bytes(len(forger.stream))),
        "noise": lambda: forger.send(rng.bytes(len(forger.stream))),
    }[change]()
    assert refused(found)[0] in (413, 422)


def test_secret_key_is_refused_and_erased_whatever_it_is_wrapped_in(forger, server) -> None:
    secret = forger.keys.secret
    (stream,) = streams_of(secret)
    for data in (secret, stream, pack(Kind.EVALUATION_KEYS, forger.scope, [stream])):
        path = f"/v2/keys/{hashlib.sha256(data).hexdigest()}"
        assert refused(forger.http.put(path, content=data))[0] == 422
        assert forger.http.head(path).status_code == 404
    assert refused(forger.http.put(f"/v2/keys/{hashlib.sha256(stream).hexdigest()}", content=stream)) == (
        422,
        "secret_key",
    )
    assert list((server.log.parent / "store" / "incoming").iterdir()) == []
    assert disk_hits([server.log.parent], [stream[1000:1064]]) == 0


@pytest.mark.parametrize("at", [0, 8, 20, 60, 90, 130, 200, 5000, -1])
def test_damaged_evaluation_keys_are_refused(forger, at) -> None:
    data = bytearray(forger.keys.evaluation)
    data[at] ^= 0xFF
    found = forger.http.put(f"/v2/keys/{hashlib.sha256(data).hexdigest()}", content=bytes(data))
    assert refused(found)[0] == 422


@pytest.mark.parametrize("cases", [300, pytest.param(5_000, marks=pytest.mark.long)])
def test_random_streams_with_right_checksums_harm_nothing(forger, server, rng, cases) -> None:
    workers = server.workers()
    size = len(forger.stream)
    before = 0
    for case in range(cases):
        if case == cases // 4:
            before = psutil.Process(workers[0]).memory_info().rss
        # half of the damage goes to the fields, half to the residues and the seed
        end = STREAM_HEADER + 73 + STREAM_HEADER + 8 if rng.random() < 0.5 else size
        at = int(rng.integers(end))
        found = forger.send(forger.patched(at, rng.bytes(int(rng.integers(1, min(16, size - at) + 1)))))
        # damaged residues that stay below their primes are a ciphertext like any other
        assert found.status_code in (200, 422), found.text
        if found.status_code == 422:
            assert found.json()["hint"]
    assert server.workers() == workers
    assert psutil.Process(workers[0]).memory_info().rss < 1.05 * before
    assert forger.send(forger.stream).status_code == 200


def test_ciphertext_under_another_key_is_refused(forger, server) -> None:
    with EncryptedClient(server.url) as other:
        keys = other.upload_keys()
        assert keys is not None
        payload = pack(Kind.REQUEST, forger.scope, [forger.stream, *forger.others])
        element = seal(
            payload, kind="request", scope=scope_hash(forger.scope), key_id=bytes.fromhex(forger.keys.key_id)
        )
        assert len(element) == ENVELOPE_HEADER + len(payload)
        mine, forger.keys = forger.keys, keys
        data = len(element).to_bytes(4, "little") + element
        tensor = {
            "name": "request",
            "datatype": "BYTES",
            "shape": [1],
            "parameters": {"binary_data_size": len(data)},
        }
        head = json.dumps({"inputs": [tensor], "parameters": {"key_id": keys.key_id}}).encode()
        length = {"Inference-Header-Content-Length": str(len(head))}
        found = forger.http.post(f"/v2/models/{MODEL}/infer", content=head + data, headers=length)
        forger.keys = mine
    assert refused(found) == (400, "key_id_mismatch")


def test_client_stays_thin(models, tmp_path, server) -> None:
    code = (
        "import sys, numpy as np\n"
        "from deploy import EncryptedClient\n"
        "with EncryptedClient(sys.argv[1]) as client: client.predict(np.zeros((1, 64)))\n"
        "print(*sys.modules, sep='\\n')"
    )
    found = subprocess.run([sys.executable, "-c", code, server.url], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in found.stdout.split()}
    assert "tenseal" in loaded
    assert not loaded & {
        "torch",
        "cvxpy",
        "onnx",
        "onnxruntime",
        "fastapi",
        "uvicorn",
        "matplotlib",
        "h5py",
        "clarabel",
    }
