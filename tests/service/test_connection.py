"""HTTP as it comes off the wire: heads that are refused, bodies in every framing, pipelines, callers who do not read."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from standing import N_IN, PATIENCE_S, Running, running, served

HEAD = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def server(standin, tmp_path_factory) -> Iterator[Running]:
    models = [served(), served("standin-keyless")]
    with running(models, tmp_path_factory.mktemp("server"), workers=1, idle_timeout_s=2.0) as run:
        yield run


@contextmanager
def connected(server: Running) -> Iterator[socket.socket]:
    """A bare connection."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        yield connection


def say(server: Running, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """Everything that a connection answers until it is closed."""
    with connected(server) as connection:
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(pause_s)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    return answer


def statuses(answer: bytes) -> list[int]:
    """Statuses of the answers in a stream; each has a length, and nothing stands between them."""
    found = []
    while answer:
        head, _, rest = answer.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines)
        found.append(int(first.split()[1]))
        answer = rest[int(headers.get(b"content-length", b"0")) :]
    return found


def keyless(framing: bytes, body: bytes) -> bytes:
    """An inference by the keyless model."""
    return b"POST /v2/models/toy-standin-keyless/infer HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n" + body


def question() -> bytes:
    """The body of one."""
    tensor = {"name": "x", "datatype": "FP64", "shape": [1, N_IN], "data": [0.5] * N_IN}
    return json.dumps({"inputs": [tensor]}).encode()


def chunked(body: bytes, size: int) -> bytes:
    """A body in chunks, with a trailer."""
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\nX-Request-Id: no\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\0\1\2\3\r\n\r\n", 400),
        (b"NONSENSE / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no host
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"GET / HTTP/3.7\r\nHost: x\r\n\r\n", 400),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (HEAD + b"A b: c\r\n\r\n", 400),
        (HEAD + b"A : c\r\n\r\n", 400),
        (HEAD + b": c\r\n\r\n", 400),
        (HEAD + b"A: c\r\n folded\r\n\r\n", 400),
        (HEAD + b"A: c\0d\r\n\r\n", 400),
        (HEAD + b"A: c\rd: e\r\n\r\n", 400),
        (HEAD + b"A: c\nContent-Length: 1\r\n\r\n", 400),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400),
        (HEAD + b"Content-Length: +1\r\n\r\nx", 400),
        (HEAD + b"Content-Length: 1, 1\r\n\r\nx", 400),
        (HEAD + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nx", 400),
        (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nx", 400),
        (HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
        (HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        (HEAD + b"A: " + b"x" * 200_000 + b"\r\n\r\n", 431),
        (HEAD + b"A: b\r\n" * 30_000 + b"\r\n", 431),
        (b"GET /" + b"x" * 200_000, 431),
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_closed(server, sent, status) -> None:
    smuggled = HEAD + b"\r\n"  # were any of these read differently, this would be answered too
    answer = say(server, sent + smuggled)
    assert statuses(answer) == [status]
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert set(json.loads(body)) == {"error", "code", "hint"}


@pytest.mark.parametrize(
    ("chunks", "counts"),
    [
        (b"0\r\n\r\n", True),
        (b"x\r\n\r\n", False),
        (b"-1\r\n\r\n", False),
        (b"5\r\nab\r\n0\r\n\r\n", False),
        (b"2\r\nabc\r\n0\r\n\r\n", False),
        (b"2\nab\n0\n\n", False),
        (b"ffffffffffffffffff\r\nab", False),
        (b" 2\r\nab\r\n0\r\n\r\n", False),
        (b"2 \r\nab\r\n0\r\n\r\n", False),
    ],
)
def test_chunks_that_are_none_end_the_connection(server, chunks, counts) -> None:
    answer = say(server, keyless(b"Transfer-Encoding: chunked\r\n", chunks), HEAD + b"Connection: close\r\n\r\n")
    assert statuses(answer) == ([400, 200] if counts else [400])
    assert (b'"code":"bad_json"' in answer) is counts


@pytest.mark.parametrize("pieces", [1, 2, 7])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_bodies_arrive_in_any_framing_and_pieces(server, framing, pieces) -> None:
    body = question()
    if framing == "length":
        sent = keyless(b"Content-Length: %d\r\n" % len(body), body)
    else:
        sent = keyless(b"Transfer-Encoding: chunked\r\n", chunked(body, 50))
    size = -(-len(sent) // pieces)
    last = HEAD + b"Connection: close\r\n\r\n"
    parts = [sent[at : at + size] for at in range(0, len(sent), size)]
    assert statuses(say(server, *parts, last, pause_s=0.02)) == [200, 200]


def test_pipelined_requests_are_answered_in_order(server) -> None:
    body = question()
    infer = keyless(b"Content-Length: %d\r\n" % len(body), body)
    unknown = b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"
    health = HEAD + b"\r\n"
    large = keyless(b"Content-Length: 300000\r\n", bytes(300_000))
    last = HEAD + b"Connection: close\r\n\r\n"
    answer = say(server, infer + unknown + health + infer + large + health * 20 + unknown + last)
    assert statuses(answer) == [200, 404, 200, 200, 413] or statuses(answer) == [
        200, 404, 200, 200, 413, *[200] * 20, 404, 200,
    ]  # fmt: skip


def test_garbage_behind_a_request_does_not_disturb_its_answer(server) -> None:
    body = question()
    infer = keyless(b"Content-Length: %d\r\n" % len(body), body)
    assert statuses(say(server, infer + b"\0garbage\r\n\r\n")) == [200]
    assert statuses(say(server, infer + keyless(b"Transfer-Encoding: chunked\r\n", b"zz"))) == [200]


def test_upgrades_are_declined_and_http_goes_on(server) -> None:
    body = question()
    offer = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    infer = keyless(offer + b"Content-Length: %d\r\n" % len(body), body)
    in_chunks = keyless(offer + b"Transfer-Encoding: chunked\r\n", chunked(body, 50))
    answer = say(server, HEAD + offer + b"\r\n" + infer + in_chunks + HEAD + b"Connection: close\r\n\r\n")
    assert statuses(answer) == [200, 200, 200, 200]
    assert statuses(say(server, infer[:200], infer[200:] + in_chunks[:180], in_chunks[180:] + b"\0")) == [200, 200]


def test_a_caller_who_asks_first_is_told_to_go_on(server) -> None:
    body = question()
    with connected(server) as connection:
        connection.sendall(keyless(b"Expect: 100-continue\r\nContent-Length: %d\r\n" % len(body), b""))
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 OK\r\n")


def test_http_1_0_and_close_end_the_connection(server) -> None:
    assert statuses(say(server, b"GET /v2/health/live HTTP/1.0\r\n\r\n" * 2)) == [200]
    assert statuses(say(server, (HEAD + b"Connection: close\r\n\r\n") * 2)) == [200]


def test_head_has_no_body(server) -> None:
    assert say(server, b"HEAD /v2/keys/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").endswith(b"\r\n\r\n")


def test_trailers_are_no_headers(server) -> None:
    answer = say(server, keyless(b"Transfer-Encoding: chunked\r\nConnection: close\r\n", chunked(question(), 64)))
    assert statuses(answer) == [200]
    assert b"x-request-id: no" not in answer


def test_a_caller_who_does_not_take_its_answers_is_let_go(server) -> None:
    with connected(server) as connection:
        connection.settimeout(0.3)
        with contextlib.suppress(TimeoutError):  # until neither side takes any more
            while True:
                connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
        connection.settimeout(PATIENCE_S)
        end = time.monotonic() + PATIENCE_S
        with pytest.raises(ConnectionError):
            while time.monotonic() < end:
                time.sleep(0.1)
                with contextlib.suppress(BlockingIOError):
                    connection.send(b"G", socket.MSG_DONTWAIT)
