"""What dies, fills up, stalls or disappears: nothing lost, nothing corrupted, and always an answer."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import numpy as np
import pytest
from asking import Caller, refused
from standing import N_IN, N_OUT, PATIENCE_S, Running, running, served, wait_until

from deploy import EncryptedClient
from deploy.client.exchange import split_elements
from deploy.envelope import open_envelope


def metric(server: Running, name: str) -> float:
    """A metric without labels."""
    match = re.search(rf"^{name} (\S+)$", httpx2.get(server.metrics_url).text, re.MULTILINE)
    assert match is not None
    return float(match[1])


def is_right(caller: Caller, response: httpx2.Response, row: np.ndarray) -> bool:
    """Whether an answer decrypts to the model's logits of a row."""
    assert response.status_code == 200, response.text
    data = response.content[int(response.headers["Inference-Header-Content-Length"]) :]
    (answer,) = split_elements(data)
    payload = open_envelope(answer, kind="answer", key_id=bytes.fromhex(caller.key_id)).payload
    return bool(np.array_equal(caller.role.decrypt(payload, caller.pair.secret), [row[:N_OUT]]))


@pytest.fixture
def serve(standin, tmp_path) -> Iterator[Callable[..., Running]]:
    """Start servers that are killed at the end of the test."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def start(*, model: dict[str, Any] | None = None, **settings: Any) -> Running:
            folder = tmp_path / "server"
            return stack.enter_context(running([served(settings=model)], folder, **{"workers": 1, **settings}))

        yield start


def half_put(server: Running, caller: Caller) -> socket.socket:
    """A connection that has sent the head and half the body of a key upload."""
    parts = urlsplit(server.url)
    connection = socket.create_connection((parts.hostname, parts.port))
    data = caller.pair.evaluation
    head = f"PUT /v2/keys/{caller.key_id} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data[: len(data) // 2])
    return connection


def incoming(server: Running) -> list[Path]:
    """Uploads under way."""
    return list((server.log.parent / "store" / "incoming").iterdir())


def test_request_of_a_killed_worker_is_tried_once_more_and_answered(serve, rng) -> None:
    server = serve(model={"seconds": 1.0})
    row = rng.random(N_IN)
    with Caller(server.url) as caller, ThreadPoolExecutor(1) as pool:
        caller.upload()
        answer = pool.submit(caller.infer, caller.envelope(row))
        wait_until(lambda: metric(server, "deploy_workers_busy") == 1)
        before = set(server.workers())
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        assert is_right(caller, answer.result(), row)
        assert not before & set(server.workers())
        assert metric(server, "deploy_workers_lost_total") == 1


def test_request_that_kills_its_worker_twice_is_given_up_and_the_service_goes_on(serve, tmp_path, rng) -> None:
    server = serve(model={"fragile": True, "folder": str(tmp_path)})
    with Caller(server.url) as caller:
        caller.upload()
        assert caller.infer(caller.envelope(payload=b"DIEONCE" + bytes(137))).status_code == 200
        (tmp_path / "died").unlink()
        assert refused(caller.infer(caller.envelope(payload=b"DIE" + bytes(141)))) == (503, "worker_lost")
        row = rng.random(N_IN)
        wait_until(lambda: caller.http.get("/v2/health/ready").status_code == 200)
        assert is_right(caller, caller.infer(caller.envelope(row)), row)


def test_worker_killed_during_an_upload_does_not_disturb_it(serve) -> None:
    server = serve()
    with Caller(server.url) as caller, half_put(server, caller) as connection:
        wait_until(lambda: incoming(server))
        for pid in server.workers():
            os.kill(pid, signal.SIGKILL)
        connection.sendall(caller.pair.evaluation[len(caller.pair.evaluation) // 2 :])
        assert connection.recv(100).startswith(b"HTTP/1.1 201")
        wait_until(lambda: caller.http.get("/v2/health/ready").status_code == 200)
        assert caller.infer().status_code == 200


def test_server_killed_during_an_upload_keeps_whole_keys_and_erases_the_half(serve, rng) -> None:
    first = serve()
    row = rng.random(N_IN)
    with Caller(first.url) as stored, Caller(first.url) as cut:
        stored.upload()
        with half_put(first, cut):
            wait_until(lambda: incoming(first))
            first.process.send_signal(signal.SIGKILL)
            first.process.wait()
        (half,) = incoming(first)
        os.utime(half, (time.time() - 60,) * 2)
        second = serve()
        assert incoming(second) == []
        stored.move(second.url)
        cut.move(second.url)
        assert is_right(stored, stored.infer(stored.envelope(row)), row)
        assert cut.http.head(f"/v2/keys/{cut.key_id}").status_code == 404
        assert cut.upload().status_code == 201
        assert is_right(cut, cut.infer(cut.envelope(row)), row)


def test_workers_die_with_a_server_that_was_killed(serve) -> None:
    server = serve(workers=2)
    workers = server.workers()
    assert len(workers) == 2
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def test_full_disk_answers_507_and_harms_no_other_key(standin, tmp_path, rng) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no small file system can be mounted here")
    try:
        with (
            running([served()], tmp_path / "server", workers=1, store=disk) as server,
            Caller(server.url) as kept,
        ):
            assert kept.upload().status_code == 201
            (disk / "ballast").write_bytes(bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize))
            with Caller(server.url) as late:
                assert refused(late.upload()) == (507, "storage")
                row = rng.random(N_IN)
                assert is_right(kept, kept.infer(kept.envelope(row)), row)
                assert list((disk / "incoming").iterdir()) == []
                (disk / "ballast").unlink()
                assert late.upload().status_code == 201
                assert is_right(late, late.infer(late.envelope(row)), row)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_slow_client_is_told_so_and_leaves_nothing(serve) -> None:
    server = serve(body_timeout_s=0.5)
    with Caller(server.url) as caller, half_put(server, caller) as connection:
        wait_until(lambda: incoming(server))
        assert caller.http.get("/v2/health/ready").status_code == 200
        answer = b""
        while not answer.endswith(b"}"):
            answer += connection.recv(4096)
        assert answer.startswith(b"HTTP/1.1 408") and b'"code":"body_timeout"' in answer
        wait_until(lambda: not incoming(server))
        assert caller.upload().status_code == 201


@pytest.mark.parametrize("bounds", [{"body_timeout_s": 0.5}, {"upload_timeout_s": 1.0}])
def test_inference_whose_body_stops_or_trickles_is_told_so(serve, bounds) -> None:
    server = serve(**bounds)
    host, port = server.url.removeprefix("http://").split(":")
    head = b"POST /v2/models/toy-standin/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(head)
        connection.settimeout(0.1)
        answer = b""
        for _ in range(900):
            try:
                part = connection.recv(4096)
            except TimeoutError:
                if "upload_timeout_s" in bounds:
                    connection.sendall(b"x")
                continue
            answer += part
            if not part:
                break
        assert answer.startswith(b"HTTP/1.1 408") and b'"code":"body_timeout"' in answer
    with Caller(server.url) as caller:
        assert caller.upload().status_code == 201
        assert caller.infer().status_code == 200
    assert metric(server, "deploy_in_progress") == 0


@pytest.mark.parametrize("sent", [b"", b"GET /v2 HT", b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\nGET /v2"])
def test_a_head_that_never_ends_closes_its_connection(serve, sent) -> None:
    server = serve(idle_timeout_s=0.3)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(sent)
        answer = b""
        while part := connection.recv(4096):
            answer += part
    assert answer.count(b"HTTP/1.1 200") == sent.count(b"\r\n\r\n")


def test_client_that_trickles_is_held_to_the_total_time(serve) -> None:
    server = serve(body_timeout_s=30, upload_timeout_s=1.0)
    with Caller(server.url) as caller, half_put(server, caller) as connection:
        connection.settimeout(PATIENCE_S)
        stop = threading.Event()

        def trickle() -> None:
            while not stop.wait(0.1):
                try:
                    connection.send(b"x")
                except OSError:
                    return

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            assert connection.recv(4096).startswith(b"HTTP/1.1 408")
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize("how", ["half-closed", "reset", "closed"])
def test_connection_lost_during_an_upload_leaves_nothing(serve, how) -> None:
    server = serve()
    with Caller(server.url) as caller:
        connection = half_put(server, caller)
        wait_until(lambda: incoming(server))
        if how == "half-closed":
            connection.shutdown(socket.SHUT_WR)
        elif how == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.close()
        else:
            connection.close()
        wait_until(lambda: not incoming(server))
        connection.close()
        assert caller.http.head(f"/v2/keys/{caller.key_id}").status_code == 404
        assert caller.upload().status_code == 201
        assert caller.infer().status_code == 200


def test_two_servers_share_one_store(serve, rng) -> None:
    first, second = serve(), serve()
    row = rng.random(N_IN)
    with Caller(first.url) as caller:
        caller.upload()
        caller.infer()
        caller.move(second.url)
        assert is_right(caller, caller.infer(caller.envelope(row)), row)
        caller.http.delete(f"/v2/keys/{caller.key_id}")
        caller.move(first.url)
        assert refused(caller.infer()) == (404, "key_not_found")


def test_index_truncated_under_a_running_server_is_rebuilt(serve, rng) -> None:
    server = serve()
    row = rng.random(N_IN)
    index = server.log.parent / "store" / "index.sqlite"
    with Caller(server.url) as caller, Caller(server.url) as other:
        caller.upload()
        for size in (index.stat().st_size // 2, 0):
            code = "import os, sys; os.truncate(sys.argv[1], int(sys.argv[2]))"
            subprocess.run([sys.executable, "-c", code, str(index), str(size)], check=True)
            assert is_right(caller, caller.infer(caller.envelope(row)), row)
            assert other.upload().status_code in (200, 201)
            assert is_right(other, other.infer(other.envelope(row)), row)


def test_stored_key_that_rotted_is_erased_and_asked_for_again(serve, rng) -> None:
    server = serve()
    row = rng.random(N_IN)
    with EncryptedClient(server.url) as client:
        keys = client.upload_keys()
        assert keys is not None
        (path,) = (server.log.parent / "store" / "keys").glob("*/*")
        path.write_bytes(b"\0" + path.read_bytes()[1:])
        assert client.predict(row).labels == (row[:N_OUT].argmax(),)  # the client uploaded them again
        assert hashlib.sha256(path.read_bytes()).hexdigest() == keys.key_id


def test_overload_is_always_answered_with_429_and_when_to_come_back(serve) -> None:
    server = serve(model={"seconds": 0.3}, queue=2)
    with Caller(server.url) as caller, ThreadPoolExecutor(20) as pool:
        caller.upload()
        found = list(pool.map(lambda _: caller.infer(), range(20)))
        statuses = [response.status_code for response in found]
        assert set(statuses) == {200, 429}
        assert statuses.count(200) >= 3  # one computed and two queued, at the least
        for response in found:
            if response.status_code == 429:
                assert refused(response) == (429, "overloaded")
                assert int(response.headers["Retry-After"]) >= 1


def test_clients_get_through_an_overload_by_waiting(serve, rng) -> None:
    server = serve(model={"seconds": 0.05}, queue=1)
    rows = rng.random((12, N_IN))

    def ask(row: np.ndarray) -> int:
        with EncryptedClient(server.url, retries=30) as client:
            return int(client.predict(row).labels[0])

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, rows)) == rows[:, :N_OUT].argmax(axis=1).tolist()


def test_health_answers_while_every_worker_computes(serve) -> None:
    server = serve(model={"busy_seconds": 3.0})
    with Caller(server.url) as caller, ThreadPoolExecutor(1) as pool:
        caller.upload()
        answer = pool.submit(caller.infer)
        wait_until(lambda: metric(server, "deploy_workers_busy") == 1)
        for _ in range(5):
            assert httpx2.get(f"{server.url}/v2/health/live").status_code == 200
        assert not answer.done()
        assert answer.result().status_code == 200


def test_deadline_of_the_caller_is_kept_and_costs_no_worker(serve) -> None:
    server = serve(model={"seconds": 0.7})
    with Caller(server.url) as caller:
        caller.upload()
        workers = server.workers()
        assert refused(caller.infer(timeout_ms=50)) == (504, "deadline_exceeded")
        assert caller.infer(timeout_ms=60_000).status_code == 200
        assert server.workers() == workers


def test_stuck_worker_is_replaced(serve) -> None:
    server = serve(model={"seconds": 3600}, worker_timeout_s=0.5)
    with Caller(server.url) as caller:
        caller.upload()
        before = server.workers()
        assert refused(caller.infer()) == (503, "worker_lost")
        wait_until(lambda: server.workers() and server.workers() != before)


def test_request_whose_caller_left_the_queue_is_never_computed(serve) -> None:
    server = serve(model={"seconds": 1.0})
    with Caller(server.url) as caller, ThreadPoolExecutor(1) as pool:
        caller.upload()
        running_one = pool.submit(caller.infer)
        wait_until(lambda: metric(server, "deploy_workers_busy") == 1)
        with pytest.raises(httpx2.ReadTimeout):
            content, headers = caller.body(caller.envelope())
            httpx2.post(f"{server.url}/v2/models/toy-standin/infer", content=content, headers=headers, timeout=0.2)
        wait_until(lambda: metric(server, "deploy_queue_depth") == 0)
        assert running_one.result().status_code == 200
        assert caller.infer().status_code == 200
        text = httpx2.get(server.metrics_url).text
        assert 'deploy_worker_seconds_count{model="toy-standin"} 2.0' in text


def test_sigterm_finishes_what_runs_and_refuses_what_is_new(serve) -> None:
    server = serve(model={"seconds": 1.5}, drain_delay_s=1.0)
    with Caller(server.url) as caller, ThreadPoolExecutor(1) as pool:
        caller.upload()
        answer = pool.submit(caller.infer)
        wait_until(lambda: metric(server, "deploy_workers_busy") == 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx2.get(f"{server.url}/v2/health/ready").status_code == 503)
        assert httpx2.get(f"{server.url}/v2/health/live").status_code == 200
        with Caller(server.url) as late:
            assert refused(late.infer()) == (503, "draining")
        assert answer.result().status_code == 200
        assert server.process.wait(PATIENCE_S) == 0
