"""Progress where nobody watches a bar: lines at a slow rate, none under --quiet, and no thread that stays."""

from __future__ import annotations

import threading
import time

import pytest

from deploy.cli import drawing
from deploy.cli.drawing import draw_progress
from deploy.progress import Progress


def _work(progress: Progress) -> None:
    with progress.stage("fit", 4) as advance:
        advance(3)
        with progress.stage("inner"):
            time.sleep(0.12)
        time.sleep(0.12)


def test_a_log_gets_lines_of_stage_count_and_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(drawing, "PERIOD_S", 0.05)
    before = threading.active_count()
    with draw_progress() as progress:
        progress.say("started")
        _work(progress)
        time.sleep(0.1)
    assert threading.active_count() == before
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "started"
    assert set(lines[1:]) == {"inner: 0 s", "fit: 3 of 4, 0 s"}


def test_quiet_and_short_work_say_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with draw_progress() as progress:
        _work(progress)
    monkeypatch.setattr(drawing, "PERIOD_S", 0.05)
    with draw_progress(quiet=True) as progress:
        _work(progress)
    assert capsys.readouterr().err == ""


def test_the_clock_stops_where_the_work_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt), draw_progress() as progress, progress.stage("fit"):
        raise KeyboardInterrupt
    assert threading.active_count() == before
