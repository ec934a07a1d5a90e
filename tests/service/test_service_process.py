"""The server as a process: starts that fail or are interrupted, signals while it works, keys whose making is killed."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from asking import Caller
from standing import PATIENCE_S, running, served, start_server, wait_until


@contextmanager
def starting(folder: Path, model: dict[str, Any] | None = None, **settings: Any) -> Iterator[Any]:
    """A server process that may never become ready, and its log."""
    process = start_server([served(settings=model)], folder, folder / "log", **{"workers": 1, **settings})
    try:
        yield process, folder / "log"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_request_bytes": 10}, "raise --max-request-bytes"),
        ({"max_key_bytes": 10}, "raise --max-key-bytes"),
        ({"metrics_port": "taken"}, "choose another --metrics-port"),
        ({"port": "taken"}, "choose another --host or --port"),
    ],
)
def test_a_start_that_fails_says_why_and_leaves_nothing(standin, tmp_path, settings, message) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        settings = {name: taken if value == "taken" else value for name, value in settings.items()}
        with starting(tmp_path, **settings) as (process, log):
            assert process.wait(PATIENCE_S) == 1
            assert message in log.read_text().splitlines()[-1]
            assert 'uvicorn.error", "event": "Traceback' not in log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_start_that_takes_long(standin, tmp_path, number) -> None:
    with starting(tmp_path, model={"open_seconds": 3600}) as (process, log):
        wait_until(lambda: psutil.Process(process.pid).children())
        workers = psutil.Process(process.pid).children()
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
        assert process.stdout.read() == ""
        wait_until(lambda: not any(worker.is_running() for worker in workers))
        assert "Traceback" not in log.read_text()


def test_a_second_interrupt_does_not_wait_for_what_runs(standin, tmp_path) -> None:
    with (
        running([served(settings={"seconds": 3600})], tmp_path, workers=1, drain_s=3600) as server,
        Caller(server.url) as caller,
        ThreadPoolExecutor(1) as pool,
    ):
        caller.upload()
        answer = pool.submit(caller.infer)
        wait_until(lambda: "deploy_workers_busy 1.0" in httpx2.get(server.metrics_url).text)
        workers = server.workers()
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: "Waiting for" in server.log.read_text())
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE_S) == 0
        with pytest.raises(httpx2.TransportError):
            answer.result()
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in workers))


def test_keys_whose_making_is_killed_are_there_whole_or_not_at_all(standin, tmp_path) -> None:
    (tmp_path / "client.zip").write_bytes(served().client_archive)
    command = [sys.executable, "-P", "-c", "from deploy.cli.main import main; main()", "keygen"]
    whole = {"secret.key", "evaluation.key", "client.zip"}
    for attempt in range(6):
        folder = tmp_path / f"keys-{attempt}"
        process = subprocess.Popen(
            [*command, "--archive", str(tmp_path / "client.zip"), "-o", str(folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and process.poll() is None:
            if any(
                path.name.startswith((".keys", "keys-")) and str(attempt) in path.name
                for path in tmp_path.iterdir()
            ):
                time.sleep(0.0005 * attempt)
                break
        process.kill()
        process.wait()
        if folder.exists():
            assert {path.name for path in folder.iterdir()} == whole
