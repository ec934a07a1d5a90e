"""A row that is sent encrypted is found nowhere on the server's side."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from standing import N_IN, N_OUT, running, served
from tapping import disk_hits, hits, memory_hits, tapped, traces

from deploy import EncryptedClient

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/PID/mem")


def canary_row() -> np.ndarray:
    """A row that exists nowhere else, from the system's randomness."""
    return np.frombuffer(os.urandom(N_IN * 8), "<u8") / 2.0**64


def test_canary_row_is_nowhere_on_the_servers_side(standin, tmp_path) -> None:
    row = canary_row()
    needles = traces(row)
    with (
        running([served()], tmp_path, workers=2) as server,
        tapped(server.url) as tap,
        EncryptedClient(tap.url) as client,
    ):
        for _ in range(3):
            assert client.predict(row).labels == (row[:N_OUT].argmax(),)
        assert len(tap.recorded) > 1000
        assert hits(tap.recorded, needles) == 0
        for pid in [server.process.pid, *server.workers()]:
            assert memory_hits(pid, needles) == 0
        assert disk_hits([tmp_path], needles) == 0


def test_the_search_finds_a_row_that_is_sent_in_the_clear(standin, tmp_path) -> None:
    row = canary_row()
    needles = traces(row)
    with (
        running([served("standin-keyless")], tmp_path, workers=1) as server,
        tapped(server.url) as tap,
        EncryptedClient(tap.url) as client,
    ):
        client.predict(row)
        assert hits(tap.recorded, needles) >= 4
        (tmp_path / "spill").write_bytes(row.tobytes())
        assert disk_hits([tmp_path], needles) >= 4
    assert memory_hits(os.getpid(), needles) >= 4


def test_secret_key_never_leaves_the_client(standin, tmp_path) -> None:
    with (
        running([served()], tmp_path, workers=1) as server,
        tapped(server.url) as tap,
        EncryptedClient(tap.url) as client,
    ):
        client.predict(canary_row())
        assert client.keys is not None
        needles = [client.keys.secret]
        assert hits(tap.recorded, [client.keys.evaluation]) == 1
        assert hits(tap.recorded, needles) == 0
        for pid in [server.process.pid, *server.workers()]:
            assert memory_hits(pid, needles) == 0
        assert disk_hits([Path(tmp_path)], needles) == 0
