"""The worker pool: sticky by key, fair, bounded; and what a worker holds."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from standing import N_IN, served

from deploy.envelope import KEYLESS, open_envelope, scope_hash, seal
from deploy.errors import BundleError, DeployError, ServiceError, WireError
from deploy.service.framing import FrameError, encode_frame, receive_frame
from deploy.service.link import Link
from deploy.service.pool import PoolSettings, Reply, ServedArchive, WorkerPool, preferred_worker
from deploy.service.worker import KeyCache, Session, error_document

KEYS = [hashlib.sha256(bytes([i])).hexdigest() for i in range(40)]


class Watcher:
    """Counts what a pool tells."""

    def __init__(self) -> None:
        self.lost = 0
        self.cached: list[bool] = []

    def worker_lost(self, exit_code: int | None) -> None:
        self.lost += 1

    def key_cached(self, *, hit: bool) -> None:
        self.cached.append(hit)


def stored(folder: Path, scope: str = "standin-1") -> tuple[str, Path]:
    """A key file as the store would keep it."""
    import secrets

    head = b"STANDKEY" + hashlib.sha256(scope.encode()).digest()
    data = head + secrets.token_bytes(4096 - len(head))
    key_id = hashlib.sha256(data).hexdigest()
    (folder / key_id).write_bytes(data)
    return key_id, folder / key_id


def question(key_id: str, path: Path) -> tuple[dict[str, Any], bytes]:
    """An inference for a worker."""
    element = seal(
        bytes(16 + 8 * N_IN), kind="request", scope=scope_hash("standin-1"), key_id=bytes.fromhex(key_id)
    )
    return {"op": "infer", "model": "toy-standin:1", "key_id": key_id, "key_path": str(path)}, element


def with_pool(
    work: Callable[[WorkerPool], Awaitable[Any]], *, model: Mapping[str, Any] | None = None, **settings: Any
) -> tuple[Any, Watcher]:
    """Run some work on a pool of stand-ins."""
    watcher = Watcher()
    served_model = served(settings=model)

    async def run() -> Any:
        archive = ServedArchive(served_model.id, served_model.server_archive)
        pool = WorkerPool([archive], PoolSettings(**{"workers": 2, "nice": 0, **settings}), watcher)
        await pool.start()
        while len(pool.process_ids) < settings.get("workers", 2):
            await asyncio.sleep(0.01)
        try:
            return await work(pool)
        finally:
            await pool.close()

    return asyncio.run(run()), watcher


def test_keys_spread_over_workers_and_a_lost_worker_moves_only_its_own() -> None:
    slots = [0, 1, 2]
    before = {key: preferred_worker(key, slots) for key in KEYS}
    assert {slot: list(before.values()).count(slot) > 5 for slot in slots} == dict.fromkeys(slots, True)
    after = {key: preferred_worker(key, [0, 2]) for key in KEYS}
    assert all(after[key] == slot for key, slot in before.items() if slot != 1)


def test_requests_of_a_key_go_to_the_worker_that_holds_it(standin, tmp_path) -> None:
    keys: list[tuple[str, Path]] = []
    while sorted(preferred_worker(key_id, [0, 1]) for key_id, _ in keys) != [0, 0, 0, 1, 1, 1]:
        keys = [stored(tmp_path) for _ in range(6)]

    async def work(pool: WorkerPool) -> set[int]:
        held = set()
        for _ in range(5):
            for key_id, path in keys:
                reply = await pool.submit(*question(key_id, path), key_id=key_id, timeout_s=60)
                held.add(len(reply.header["keys"]))
        return held

    held, watcher = with_pool(work, steal_after_s=60.0)
    assert watcher.cached.count(False) == len(keys)  # each key was loaded once, by one worker
    assert max(held) == 3  # and each worker has its half


def test_request_that_waits_too_long_for_its_worker_is_taken_by_an_idle_one(standin, tmp_path) -> None:
    key_id, path = stored(tmp_path)

    async def work(pool: WorkerPool) -> list[Reply]:
        ask = [pool.submit(*question(key_id, path), key_id=key_id, timeout_s=60) for _ in range(2)]
        return list(await asyncio.gather(*ask))

    replies, watcher = with_pool(work, model={"seconds": 1.5}, steal_after_s=0.1)
    assert len(replies) == 2
    assert watcher.cached.count(False) == 2  # the second worker loaded it too


def test_queue_is_bounded_and_says_so(standin, tmp_path) -> None:
    key_id, path = stored(tmp_path)

    async def work(pool: WorkerPool) -> list[Any]:
        ask = [pool.submit(*question(key_id, path), key_id=key_id, timeout_s=60) for _ in range(8)]
        return list(await asyncio.gather(*ask, return_exceptions=True))

    found, _ = with_pool(work, model={"seconds": 0.2}, workers=1, queue_limit=3)
    refused = [each for each in found if isinstance(each, ServiceError)]
    assert len(refused) == 4  # one computed, three waited
    assert {(each.code, each.http_status, each.retry_after_s) for each in refused} == {("overloaded", 429, 1)}


def test_closing_answers_what_waits(standin, tmp_path) -> None:
    key_id, path = stored(tmp_path)

    async def work(pool: WorkerPool) -> list[Any]:
        ask = [
            asyncio.create_task(pool.submit(*question(key_id, path), key_id=key_id, timeout_s=60)) for _ in range(3)
        ]
        await asyncio.sleep(0.1)
        await pool.close()
        with pytest.raises(ServiceError) as error:
            pool.check_room()
        assert error.value.code == "draining"
        for task in ask[:1]:
            task.cancel()
        return list(await asyncio.gather(*ask, return_exceptions=True))

    found, _ = with_pool(work, model={"seconds": 5}, workers=1)
    assert [each.code for each in found[1:]] == ["draining", "draining"]


def test_archive_that_cannot_be_opened_is_the_error_of_the_start(standin) -> None:
    async def start(data: bytes) -> None:
        pool = WorkerPool([ServedArchive("m:1", data)], PoolSettings(workers=1), Watcher())
        await pool.start()

    with pytest.raises(BundleError):
        asyncio.run(start(b"no archive"))
    with pytest.raises(BundleError, match="client's archive"):
        asyncio.run(start(served().client_archive))


def test_key_cache_holds_what_fits_and_always_the_newest() -> None:
    cache = KeyCache(100)
    for name, size in (("a", 40), ("b", 40)):
        cache.put("s", name, name, size)
    assert cache.get("s", "a") == "a"  # a use: b is the oldest now
    cache.put("s", "c", "c", 40)
    assert cache.ids() == ["a", "c"]
    assert cache.get("other", "a") is None
    cache.put("s", "huge", "huge", 1000)
    assert cache.ids() == ["huge"]


def test_worker_session_checks_before_it_computes(standin, tmp_path) -> None:
    model = served()
    session = Session(key_cache_bytes=1 << 20)
    opened, _ = session.handle({"op": "open", "model": "m"}, bytearray(model.server_archive))
    assert opened["limits"]["key_scope"] == "standin-1"
    assert opened["signature"]["input"] == {"name": "request", "datatype": "BYTES", "shape": [-1]}
    key_id, path = stored(tmp_path)
    header, element = question(key_id, path)
    header["model"] = "m"
    answer, data = session.handle(header, bytearray(element))
    assert answer["keys"] == [key_id]
    envelope = open_envelope(data, kind="answer", scope=scope_hash("standin-1"), key_id=bytes.fromhex(key_id))
    assert envelope.subject == open_envelope(element, kind="request").digest
    path.write_bytes(b"rotten")
    assert "error" not in session.handle(header, bytearray(element))[0]  # held already
    fresh = Session(key_cache_bytes=1 << 20)
    fresh.handle({"op": "open", "model": "m"}, bytearray(model.server_archive))
    assert fresh.handle(header, bytearray(element))[0]["error"]["code"] == "key_damaged"
    path.unlink()
    assert fresh.handle(header, bytearray(element))[0]["error"]["code"] == "key_not_found"
    assert fresh.handle({"op": "nonsense"}, bytearray())[0]["error"]["code"] == "internal"
    keyless = {"op": "infer", "model": "m"}
    assert session.handle(keyless, bytearray(element))[0]["error"]["code"] == "key_id_mismatch"


def test_error_of_a_worker_crosses_without_payload() -> None:
    error = WireError("cause", code="some_code", http_status=413, hint="do this").at("place")
    assert error_document(error) == {"error": "place: cause", "code": "some_code", "hint": "do this", "status": 413}
    assert error_document(DeployError("x"))["status"] == 500


def said_over_a_link(*pieces: bytes, asked: bool = True) -> tuple[dict[str, Any], bytes]:
    """What a link makes of a worker that says these pieces and hangs up; the question must have reached it whole."""

    async def talk() -> tuple[dict[str, Any], bytes]:
        ours, theirs = socket.socketpair()
        _, link = await asyncio.get_running_loop().create_connection(Link, sock=ours)
        with theirs:
            answer = link.ask({"op": "é"}, b"question") if asked else None
            for piece in pieces:
                await asyncio.sleep(0)
                theirs.sendall(piece)
            if answer is not None:
                assert receive_frame(theirs) == ({"op": "é"}, b"question")
        await link.closed
        return await (answer or link.ask({"op": "é"}, b"question"))

    return asyncio.run(talk())


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\1\0",
        b"\xff" * 12,
        b"\2\0\0\0" + (1 << 29).to_bytes(8, "little") + b"{}",
        b"\2\0\0\0" + bytes(8) + b"[]",
        b"\2\0\0\0" + bytes(8) + b"{x",
    ],
)
def test_frames_that_are_none_end_the_conversation(garbage) -> None:
    with pytest.raises(FrameError):
        said_over_a_link(garbage)


def test_frames_round_trip_in_whatever_pieces_they_come() -> None:
    frame = b"".join(encode_frame({"op": "é"}, b"payload" * 1000))
    for size in (1, 5, 12, 100, len(frame)):
        pieces = [frame[at : at + size] for at in range(0, min(200, len(frame)), size)]
        pieces.append(frame[sum(map(len, pieces)) :])
        assert said_over_a_link(*pieces) == ({"op": "é"}, b"payload" * 1000)


def test_an_answer_that_nobody_asked_for_ends_the_conversation() -> None:
    frame = b"".join(encode_frame({}, b""))
    with pytest.raises(FrameError):
        said_over_a_link(frame, asked=False)


def test_envelope_refuses_every_single_flipped_bit() -> None:
    scope, key_id = scope_hash("scope"), hashlib.sha256(b"key").digest()
    right = seal(b"payload", kind="request", scope=scope, key_id=key_id)
    assert open_envelope(right, kind="request", scope=scope, key_id=key_id).payload == b"payload"
    for bit in range(8 * len(right)):
        wrong = bytearray(right)
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError) as error:
            open_envelope(bytes(wrong), kind="request", scope=scope, key_id=key_id)
        assert error.value.hint
    for change in ({"kind": "answer"}, {"scope": KEYLESS}, {"key_id": KEYLESS}):
        with pytest.raises(WireError):
            open_envelope(right, **{"kind": "request", "scope": scope, "key_id": key_id, **change})
    with pytest.raises(WireError, match="144 bytes or more"):
        open_envelope(right[:143], kind="request")


def test_log_lines_have_no_text_of_exceptions() -> None:
    import logging

    from deploy.service.journal import JsonFormatter

    try:
        raise ValueError("the secret row is 1.2345")
    except ValueError:
        import sys

        record = logging.LogRecord("n", logging.ERROR, "f", 1, "event", None, sys.exc_info())
    line = JsonFormatter().format(record)
    assert "1.2345" not in line
    assert json.loads(line)["exception"].startswith("ValueError at test_pool.py:")
