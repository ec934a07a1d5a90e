"""The client against servers that lie, dawdle or never stop: one clear error each, in bounded time and memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from standing import N_IN, served

from deploy import AsyncEncryptedClient, EncryptedClient
from deploy.cli.main import run
from deploy.errors import DeployError, InputError

Send = Callable[[bytes], None]
Script = bytes | Callable[[Send], None]


@contextmanager
def pretending(answers: Mapping[str, Script]) -> Iterator[str]:
    """A server that answers a path with these bytes, or as a function does with ``send``; then it hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head = connection.recv(1 << 16)
            script = answers[head.split()[1].decode()]
            if isinstance(script, bytes):
                connection.sendall(script)
            else:
                script(connection.sendall)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


def said(content: bytes | object, status: str = "200 OK", *headers: str) -> bytes:
    """A whole answer."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    lines = "".join(f"{line}\r\n" for line in (*headers, "Connection: close", f"Content-Length: {len(body)}"))
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


def metadata(**changes: Any) -> dict[str, Any]:
    """What a right server says of the stand-in."""
    model = served()
    parameters = {
        "request_bytes": 144,
        "answer_bytes": 96,
        "key_bytes": 4096,
        "key_scope": "standin-1",
        "rows_per_request": 1,
        "client_archive_sha256": model.etag,
        **changes,
    }
    tensors = {
        side: [{"name": name, "datatype": "BYTES", "shape": [-1]}]
        for side, name in (("inputs", "request"), ("outputs", "answer"))
    }
    return {"name": "m", **tensors, "parameters": parameters}


def endless(send: Send) -> None:
    """A body without an end."""
    send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        send(b"10000\r\n" + bytes(0x10000) + b"\r\n")


def trickle(send: Send) -> None:
    """A body whose every byte comes just in time."""
    send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(1000):
        send(b" ")
        time.sleep(0.1)


def silence(send: Send) -> None:
    """Nothing at all."""
    time.sleep(5)


BOMB = b"\x1f\x8b\x08\0\0\0\0\0\0\3" + bytes(1000)
CASES: list[tuple[str, Script, str]] = [
    ("silence", silence, "unreachable"),
    ("trickle", trickle, "unreachable"),
    ("endless", endless, "bad_answer"),
    ("hang up", b"", "unreachable"),
    ("garbage", b"\0\1\2\3" * 100, "unreachable"),
    ("cut short", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}", "unreachable"),
    ("huge length", b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n{}", "bad_answer"),
    ("absurd length", b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n{}", "unreachable"),
    ("endless head", b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 100_000, "unreachable"),
    ("redirect", said(b"", "302 Found", "Location: http://127.0.0.1:1/v2"), "http_302"),
    ("html", said(b"<html>", "200 OK", "Content-Type: text/html"), "bad_answer"),
    ("compressed", said(BOMB, "200 OK", "Content-Encoding: gzip"), "bad_answer"),
    ("nested", said(b"[" * 100_000), "bad_answer"),
    ("a number", said(7), "bad_answer"),
    ("strange entries", said([{"nom": 1}]), "bad_answer"),
    ("retry when", said(b"", "503 No", "Retry-After: \xb2"), "http_503"),
    ("shouting", said({"error": "\x1b[2J" * 1000, "code": "c\n", "hint": "\x07"}, "400 No"), "c?"),
]


@pytest.mark.parametrize(("script", "code"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_hostile_server_is_one_clear_error(script, code, is_async) -> None:
    async def ask(url: str) -> None:
        async with AsyncEncryptedClient(url, retries=1, timeout_s=0.5) as client:
            await client.predict(np.zeros(N_IN))

    tracemalloc.start()
    began = time.monotonic()
    try:
        with pretending({"/v2/models": script}) as url, pytest.raises(DeployError) as error:
            if is_async:
                asyncio.run(ask(url))
            else:
                with EncryptedClient(url, retries=1, timeout_s=0.5) as client:
                    client.predict(np.zeros(N_IN))
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert error.value.code == code
    assert error.value.remedy
    assert str(error.value).isprintable() and len(str(error.value)) < 1500
    assert time.monotonic() - began < 30  # twice half a second and a pause, with a busy machine in mind


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {**metadata(), "inputs": []},
        {**metadata(), "outputs": [{"name": "answer"}]},
        {**metadata(), "parameters": None},
        metadata(rows_per_request=0),
        metadata(rows_per_request=10**30),
        metadata(key_bytes="many"),
        metadata(client_archive_sha256="x"),
    ],
)
def test_metadata_that_does_not_fit_is_a_bad_answer(document) -> None:
    with (
        pretending({"/v2/models/m": said(document)}) as url,
        EncryptedClient(url, model="m", retries=0) as client,
        pytest.raises(DeployError, match=r"metadata does not fit") as error,
    ):
        client.predict(np.zeros(N_IN))
    assert error.value.code == "bad_answer"


@pytest.mark.parametrize(
    ("archive", "code"),
    [
        (b"", "archive_hash"),
        (served().client_archive[:-1], "archive_hash"),
        (served(name="other", settings={"scope": "x"}).client_archive, "archive_hash"),
        (served().server_archive, "archive_hash"),
    ],
)
def test_another_archive_than_the_metadata_names_is_refused(standin, archive, code) -> None:
    paths = {"/v2/models/m": said(metadata()), "/v2/models/m/client": said(archive)}
    with (
        pretending(paths) as url,
        EncryptedClient(url, model="m", retries=0) as client,
        pytest.raises(DeployError) as error,
    ):
        client.predict(np.zeros(N_IN))
    assert error.value.code == code


def test_an_archive_that_is_none_is_refused_even_with_the_right_hash(standin) -> None:
    import hashlib

    for content in (b"PK\3\4" + bytes(100), served().server_archive):
        document = metadata(client_archive_sha256=hashlib.sha256(content).hexdigest())
        paths = {"/v2/models/m": said(document), "/v2/models/m/client": said(content)}
        with (
            pretending(paths) as url,
            EncryptedClient(url, model="m", retries=0) as client,
            pytest.raises(DeployError) as error,
        ):
            client.predict(np.zeros(N_IN))
        assert error.value.code == "bad_bundle"


def test_a_server_cannot_talk_a_client_with_keys_into_sending_rows_readably(standin) -> None:
    from deploy.client import KeyFiles

    model = served("standin-keyless")
    document = metadata(key_bytes=0, client_archive_sha256=model.etag)
    document["inputs"] = [{"name": "x", "datatype": "FP64", "shape": [-1, N_IN]}]
    paths = {"/v2/models/m": said(document), "/v2/models/m/client": said(model.client_archive)}
    keys = KeyFiles(b"secret", b"evaluation", bytes(32))
    with (
        pretending(paths) as url,
        EncryptedClient(url, model="m", keys=keys, retries=0) as client,
        pytest.raises(InputError, match="it would see the rows"),
    ):
        client.predict(np.zeros(N_IN))


def test_the_command_says_it_in_one_line(tmp_path, capsys) -> None:
    np.savez(tmp_path / "rows.npz", x=np.zeros((1, N_IN)))
    with pretending({"/v2/models": said(b"<html>")}) as url:
        assert run(["predict", "--url", url, "--data", str(tmp_path / "rows.npz")]) == 4
    error = capsys.readouterr().err
    assert "the answer is no JSON" in error and "Traceback" not in error
