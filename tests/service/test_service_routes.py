"""Routes of the service: what they answer, and what they refuse with which code."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx2
import numpy as np
import pytest
from asking import Caller, refused
from standing import N_IN, N_OUT, Running, running, served, wait_until

from deploy import EncryptedClient
from deploy.client.exchange import split_elements
from deploy.envelope import open_envelope, scope_hash, seal
from deploy.errors import InputError
from deploy.service.tenants import read_tenants

TOKENS = {"alice": "alice-token-0123456789", "bob": "bob-token-0123456789"}


@pytest.fixture(scope="module")
def server(standin, tmp_path_factory) -> Iterator[Running]:
    models = [
        served(),
        served("standin-keyless"),
        served(version="2"),
        served(name="other", settings={"scope": "standin-2"}),
        served(name="faulty", settings={"defect": True}),
    ]
    with running(models, tmp_path_factory.mktemp("server"), workers=1) as run:
        yield run


@pytest.fixture
def caller(server) -> Iterator[Caller]:
    with Caller(server.url) as caller:
        assert caller.upload().status_code == 201
        yield caller


def test_health_and_metadata(caller) -> None:
    get = caller.http.get
    assert get("/v2").json()["extensions"] == ["binary_tensor_data", "evaluation_keys"]
    assert get("/v2/health/live").json()["live"] is True
    assert get("/v2/health/ready").status_code == 200
    metadata = get("/v2/models/toy-standin").json()
    assert metadata["versions"] == ["1", "2"]
    assert metadata["inputs"] == [{"name": "request", "datatype": "BYTES", "shape": [-1]}]
    assert metadata["parameters"]["version"] == "2"
    assert get("/v2/models/toy-standin/versions/1").json()["parameters"]["version"] == "1"
    for path in ("toy-standin/ready", "toy-standin/versions/2/ready"):
        assert get(f"/v2/models/{path}").json() == {"live": True, "ready": True}


def test_client_archive_has_an_etag(caller) -> None:
    found = caller.http.get("/v2/models/toy-standin/client")
    assert found.headers["etag"] == f'"{hashlib.sha256(found.content).hexdigest()}"'
    for tag in (found.headers["etag"], f'"x", W/{found.headers["etag"]}', "*"):
        again = caller.http.get("/v2/models/toy-standin/client", headers={"If-None-Match": tag})
        assert (again.status_code, again.content) == (304, b"")
    assert caller.http.get("/v2/models/toy-standin/client", headers={"If-None-Match": '"x"'}).status_code == 200


def test_keys_are_idempotent_and_gone_once_deleted(caller) -> None:
    path = f"/v2/keys/{caller.key_id}"
    assert caller.http.head(path).status_code == 200
    assert caller.upload().status_code == 200
    assert [caller.http.delete(path).status_code for _ in range(2)] == [204, 204]
    assert caller.http.head(path).status_code == 404
    assert caller.http.put(f"{path}?scope=standin-1", content=caller.pair.evaluation).status_code == 201


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"SECRET" + bytes(40), 422, "secret_key"),
        (b"STANDKEY", 422, "key_format"),
        (b"", 422, "key_format"),
        (bytes(4097), 413, "body_too_large"),
    ],
)
def test_keys_that_are_refused_are_erased(caller, server, content, status, code) -> None:
    path = f"/v2/keys/{hashlib.sha256(content).hexdigest()}"
    for query in ("", "?scope=standin-1"):
        assert refused(caller.http.put(path + query, content=content)) == (status, code)
    assert caller.http.head(path).status_code == 404
    store = server.log.parent / "store"
    assert not any(content == path.read_bytes() for path in store.rglob("*") if content and path.is_file())
    assert list((store / "incoming").iterdir()) == []


def test_key_routes_refuse_what_is_no_key(caller) -> None:
    other = caller.role.generate_keys().evaluation
    assert refused(caller.http.put(f"/v2/keys/{'0' * 64}", content=other)) == (422, "key_hash")
    assert refused(caller.http.put("/v2/keys/zz", content=other)) == (400, "bad_key_id")
    path = f"/v2/keys/{hashlib.sha256(other).hexdigest()}"
    assert refused(caller.http.put(f"{path}?scope=unknown", content=other)) == (422, "key_refused")
    assert refused(caller.http.put(f"{path}?scope=standin-2", content=other)) == (422, "key_format")


def test_answer_holds_what_was_asked_element_by_element(caller, rng) -> None:
    rows = rng.random((5, N_IN))
    sent = [caller.envelope(row) for row in rows]
    found = caller.infer(*sent)
    assert found.status_code == 200
    head = int(found.headers["Inference-Header-Content-Length"])
    assert json.loads(found.content[:head])["model_version"] == "2"
    for row, question, answer in zip(rows, sent, split_elements(found.content[head:]), strict=True):
        envelope = open_envelope(answer, kind="answer", key_id=bytes.fromhex(caller.key_id))
        assert envelope.subject == open_envelope(question, kind="request").digest
        np.testing.assert_array_equal(caller.role.decrypt(envelope.payload, caller.pair.secret), [row[:N_OUT]])


def test_keyless_model_is_plain_v2(caller, rng) -> None:
    rows = rng.random((3, N_IN))
    tensor = {"name": "x", "datatype": "FP64", "shape": [3, N_IN]}
    path = "/v2/models/toy-standin-keyless/infer"
    as_json = caller.http.post(path, json={"id": "7", "inputs": [{**tensor, "data": rows.tolist()}]}).json()
    assert as_json["id"] == "7"
    assert as_json["outputs"][0]["shape"] == [3, N_OUT]
    np.testing.assert_array_equal(np.reshape(as_json["outputs"][0]["data"], (3, N_OUT)), rows[:, :N_OUT])
    data = rows.tobytes()
    head = json.dumps(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": len(data)}}],
            "outputs": [{"name": "logits", "parameters": {"binary_data": True}}],
        }
    ).encode()
    length = {"Inference-Header-Content-Length": str(len(head))}
    found = caller.http.post(path, content=head + data, headers=length)
    start = int(found.headers["Inference-Header-Content-Length"])
    np.testing.assert_array_equal(np.frombuffer(found.content[start:]).reshape(3, -1), rows[:, :N_OUT])


def _tampered(envelope: bytes, position: int) -> bytes:
    return envelope[:position] + bytes([envelope[position] ^ 1]) + envelope[position + 1 :]


@pytest.mark.parametrize(
    ("position", "code"),
    [
        (0, "envelope_magic"),
        (4, "envelope_version"),
        (5, "envelope_kind"),
        (6, "envelope_version"),
        (8, "envelope_size"),
        (16, "envelope_digest"),
        (48, "envelope_digest"),
        (80, "envelope_digest"),
        (112, "envelope_digest"),
        (150, "envelope_digest"),
    ],
)
def test_every_flipped_bit_of_an_envelope_is_refused(caller, position, code) -> None:
    assert refused(caller.infer(_tampered(caller.envelope(), position))) == (422, code)


def test_requests_under_other_names_are_refused(caller, server) -> None:
    assert refused(caller.infer(b"short")) == (422, "envelope_size")
    assert refused(caller.infer(caller.envelope(payload=b"x" * 20))) == (422, "ciphertext_size")
    assert refused(caller.infer(bytes(500))) == (413, "body_too_large")
    assert refused(caller.infer(key_id="0" * 64)) == (404, "key_not_found")
    assert refused(caller.infer(key_id="x")) == (400, "bad_key_id")
    assert refused(caller.infer(archive="0" * 64)) == (409, "archive_changed")
    other = seal(b"p", kind="request", scope=scope_hash("else"), key_id=bytes.fromhex(caller.key_id))
    assert refused(caller.infer(other)) == (422, "envelope_scope")
    with Caller(server.url) as second:
        second.upload()
        assert refused(second.infer(caller.envelope())) == (400, "key_id_mismatch")
    with Caller(server.url, model="other-standin") as third:
        third.upload()
        assert refused(third.infer()) == (409, "key_scope")


def test_bodies_that_are_no_v2_are_refused(caller) -> None:
    def post(content: bytes, length: str | bytes | None = None, model: str = "toy-standin") -> tuple[int, str]:
        headers = (
            {}
            if length is None
            else {b"Inference-Header-Content-Length": length if isinstance(length, bytes) else length.encode()}
        )
        return refused(caller.http.post(f"/v2/models/{model}/infer", content=content, headers=headers))

    tensor = {"name": "request", "datatype": "BYTES", "shape": [1]}
    assert post(b"{") == (400, "bad_json")
    assert post(b"[" * 50_000) == (400, "bad_json")
    assert post(b'{"inputs": []}') == (400, "bad_json")
    for length in ("-1", "9" * 30, "x", "", "1e3", "\u0661".encode()):
        assert post(b"{}", length) == (400, "bad_header_length")
    assert post(json.dumps({"inputs": [tensor]}).encode()) == (400, "binary_required")
    assert post(json.dumps({"inputs": [{**tensor, "name": "x"}]}).encode()) == (400, "bad_tensor")
    for shape, size, rest in (
        ([1], 4, b"\1\0\0\0"),
        ([2], 4, bytes(4)),
        ([1], 3, bytes(4)),
        ([0], 0, b""),
        ([65], 4, bytes(4)),
    ):
        head = json.dumps(
            {"inputs": [{**tensor, "shape": shape, "parameters": {"binary_data_size": size}}]}
        ).encode()
        assert post(head + rest, str(len(head))) == (400, "bad_tensor")
    numbers = {"name": "x", "datatype": "FP64", "shape": [1, N_IN]}
    for change in (
        {"data": [1.0]},
        {"data": ["a"] * N_IN},
        {"data": ["1"] * N_IN},
        {"data": [True] + [0.5] * (N_IN - 1)},
        {"data": [1e400] * N_IN},
        {"data": [[0.5] * (N_IN - 1), 0.5]},
        {"data": [10**400] * N_IN},
        {"shape": [-1, N_IN], "data": [0] * N_IN},
        {"shape": [1], "data": [0]},
        {"shape": [2**40, N_IN], "data": []},
        {},
    ):
        found = post(json.dumps({"inputs": [{**numbers, **change}]}).encode(), model="toy-standin-keyless")
        assert found == (400, "bad_tensor")


def test_compressed_bodies_are_refused(caller) -> None:
    compressed = {"Content-Encoding": "gzip"}
    found = caller.http.post("/v2/models/toy-standin/infer", content=b"{}", headers=compressed)
    assert refused(found) == (415, "unsupported_encoding")
    found = caller.http.put(f"/v2/keys/{'1' * 64}", content=b"{}", headers=compressed)
    assert refused(found) == (415, "unsupported_encoding")


def test_unknown_things_are_404_with_a_hint(caller) -> None:
    assert refused(caller.http.get("/nowhere")) == (404, "not_found")
    assert refused(caller.http.get("/v2/models/none")) == (404, "model_unknown")
    assert refused(caller.http.get("/v2/models/toy-standin/versions/9")) == (404, "version_unknown")
    assert refused(caller.http.post("/v2/models/none/infer", content=b"{}")) == (404, "model_unknown")
    assert refused(caller.http.patch("/v2")) == (405, "method_not_allowed")


@pytest.mark.parametrize("chunked", [False, True])
def test_body_over_the_cap_is_413_with_the_limit_in_the_text(caller, chunked) -> None:
    size = 4 << 20
    content = iter([bytes(1 << 16)] * (size >> 16)) if chunked else bytes(size)
    found = caller.http.post("/v2/models/toy-standin/infer", content=content)
    assert refused(found) == (413, "body_too_large")
    assert re.search(r"\d+ bytes", found.json()["error"])


def test_defect_in_a_target_is_a_500_that_quotes_nothing(caller, server) -> None:
    envelope = caller.envelope()
    caller.model = "faulty-standin"
    found = caller.infer(envelope)
    assert found.status_code == 500
    assert found.json() == {"error": "a defect in the service", "code": "internal", "hint": "report it"}
    log = server.log.read_text()
    assert "ZeroDivisionError at relu_standin.py" in log
    assert envelope[144:].hex() not in log


def test_request_ids_are_given_back_or_made(caller) -> None:
    assert caller.http.get("/v2", headers={"X-Request-Id": "mine-1"}).headers["X-Request-Id"] == "mine-1"
    made = caller.http.get("/v2", headers={"X-Request-Id": 'a"{}\n'.strip()}).headers["X-Request-Id"]
    assert re.fullmatch("[0-9a-f]{32}", made)


def test_log_is_json_lines_with_status_and_code_and_no_body(caller, server) -> None:
    caller.http.get("/v2", headers={"X-Request-Id": "look-for-me"})

    def found() -> list[dict[str, Any]]:
        lines = server.log.read_text().rpartition("\n")[0].splitlines()
        return [entry for entry in map(json.loads, lines) if entry.get("request_id") == "look-for-me"]

    wait_until(found)  # the line follows the answer
    (entry,) = found()
    assert entry["status"] == 200 and entry["route"] == "/v2" and entry["event"] == "request"


@pytest.mark.parametrize("rest", [b"Content-Length: 50\r\n\r\nhalf", b"Transfer-Encoding: chunked\r\n\r\nnone\r\n"])
def test_caller_who_leaves_or_sends_no_chunks_is_no_fault_of_the_service(caller, server, rest) -> None:
    name = f"left-{len(rest)}"
    address = httpx2.URL(server.url)
    with socket.create_connection((address.host, address.port)) as connection:
        head = f"POST /v2/models/toy-standin/infer HTTP/1.1\r\nHost: x\r\nX-Request-Id: {name}\r\n"
        connection.sendall(head.encode() + rest)

    def found() -> list[dict[str, Any]]:
        lines = server.log.read_text().rpartition("\n")[0].splitlines()
        return [entry for entry in map(json.loads, lines) if entry.get("request_id") == name]

    wait_until(found)
    (entry,) = found()
    assert (entry["status"], entry["cancelled"]) == (499, True)


def test_metrics_are_on_a_port_of_their_own(caller, server) -> None:
    caller.infer()
    wait_until(
        lambda: 'deploy_requests_total{code="200",model="toy-standin"' in httpx2.get(server.metrics_url).text
    )
    text = httpx2.get(server.metrics_url).text
    assert re.search(r'deploy_requests_total\{code="200",model="toy-standin",target="standin"\} [1-9]', text)
    for name in ("deploy_queue_depth", "deploy_workers_busy", "deploy_keys_stored", "deploy_key_bytes"):
        assert re.search(rf"^{name} ", text, re.MULTILINE)
    assert caller.http.get("/metrics").status_code == 404


@pytest.fixture(scope="module")
def guarded(standin, tmp_path_factory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("guarded")
    tokens = folder / "tokens"
    tokens.write_text("# who\n" + "".join(f"{tenant} {token}\n" for tenant, token in TOKENS.items()))
    tokens.chmod(0o600)
    with running([served()], folder, workers=1, token_file=tokens) as run:
        yield run


def test_everything_but_health_needs_a_token(guarded) -> None:
    with Caller(guarded.url) as nobody, Caller(guarded.url, token="x" * 20) as stranger:
        assert nobody.http.get("/v2/health/ready").status_code == 200
        for caller in (nobody, stranger):
            for path in ("/v2", "/v2/models", "/v2/models/toy-standin", "/v2/models/toy-standin/client"):
                found = caller.http.get(path)
                assert refused(found) == (401, "unauthorized")
                assert found.headers["www-authenticate"] == "Bearer"
            assert refused(caller.upload()) == (401, "unauthorized")
            assert refused(caller.infer()) == (401, "unauthorized")
            assert caller.http.head(f"/v2/keys/{caller.key_id}").status_code == 401


def test_key_of_one_tenant_is_unknown_to_another(guarded) -> None:
    with Caller(guarded.url, token=TOKENS["alice"]) as alice, Caller(guarded.url, token=TOKENS["bob"]) as bob:
        assert alice.upload().status_code == 201
        assert alice.infer().status_code == 200
        bob.key_id, bob.pair = alice.key_id, alice.pair
        assert bob.http.head(f"/v2/keys/{bob.key_id}").status_code == 404
        assert refused(bob.infer()) == (404, "key_not_found")
        bob.http.delete(f"/v2/keys/{bob.key_id}")
        assert alice.infer().status_code == 200
    assert not any(token in guarded.log.read_text() for token in TOKENS.values())


def test_token_files_are_read_with_suspicion(tmp_path) -> None:
    path = tmp_path / "tokens"
    for text, message in (
        ("alice short", "line 1: no tenant and token"),
        ("Alice " + "x" * 20, "line 1"),
        (f"a {'x' * 20}\nb {'x' * 20}", "line 2: this token was given before"),
        ("# nobody", "has no token"),
    ):
        path.write_text(text)
        path.chmod(0o600)
        with pytest.raises(InputError, match=message):
            read_tenants(path)
    path.write_text("alice " + "x" * 20)
    path.chmod(0o640)
    with pytest.raises(InputError, match="chmod 600"):
        read_tenants(path)


def test_tls_serves_and_plain_http_does_not(standin, tmp_path) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    made = subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ]
        + [
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ],
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("openssl is not here to make a certificate")
    with running([served()], tmp_path / "run", workers=1, tls_certificate=certificate, tls_key=key) as run:
        assert run.url.startswith("https://")
        with EncryptedClient(run.url, verify=str(certificate)) as client:
            assert client.predict(np.eye(1, N_IN, 3)[0]).labels == (3,)
        with pytest.raises(httpx2.TransportError):
            httpx2.get(run.url.replace("https", "http") + "/v2")
