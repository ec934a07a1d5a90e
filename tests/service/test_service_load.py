"""Load near the capacity that was just measured: no error, no wrong answer; and 429 beyond it.

Times are not judged here (benchmarks/service.py does that): how fast answers come depends on who else uses the machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from loading import Callers, measure_capacity, replay
from standing import running

import deploy
from deploy.demo import HELD_OUT
from deploy.service.models import ServedModel, open_sources, parse_source


@pytest.fixture(scope="module")
def served_digits(digits_bundle) -> Iterator[tuple[list[ServedModel], Callers]]:
    models = open_sources([parse_source(str(digits_bundle))])
    rows = deploy.HeldOut.read(HELD_OUT).x
    yield models, Callers(models[0], deploy.Bundle.read(digits_bundle).deployment("ckks"), rows[:30], keys=6)


@pytest.mark.parametrize("seconds", [60, pytest.param(1800, marks=pytest.mark.long)])
def test_load_at_nine_tenths_of_capacity_has_no_error_and_no_wrong_answer(
    served_digits, tmp_path, seconds, record_property
) -> None:
    models, callers = served_digits
    patient = {"queue": 100_000, "request_timeout_s": 3600}  # others may slow the machine down meanwhile
    with running(models, tmp_path, workers=2, **patient) as server:
        callers.upload(server.url)
        workers = server.workers()
        capacity = measure_capacity(server.url, callers.questions, seconds=8, callers=4)
        load = replay(server.url, callers.questions, seconds=seconds, rate_per_s=0.9 * capacity.rate_per_s)
        record_property("capacity", f"{capacity.rate_per_s:.1f}/s")
        record_property("p50, p99", f"{load.quantile_s(0.5):.4f} s, {load.quantile_s(0.99):.4f} s")
        assert set(load.statuses) == {200}
        assert set(load.answers) == set(range(30))
        assert callers.wrong(load) == []
        assert server.workers() == workers
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert not [line for line in lines if line["level"] == "error"]


def test_overload_is_answered_never_dropped(served_digits, tmp_path) -> None:
    models, callers = served_digits
    with running(models, tmp_path, workers=1, queue=4) as server:
        callers.upload(server.url)
        load = measure_capacity(server.url, callers.questions, seconds=3, callers=24)
        assert set(load.statuses) == {200, 429}
        assert callers.wrong(load) == []
