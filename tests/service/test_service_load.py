"""Load near the capacity that was just measured: no error, no wrong answer; and 429 beyond it.

Times are not judged here (benchmarks/service.py does that): how fast answers come depends on who else uses the machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import httpx2
import numpy as np
import pytest
from loading import Load, Question, measure_capacity, replay
from standing import running

import deploy
from deploy.bundle import read_archive
from deploy.client.exchange import build_infer, split_elements
from deploy.demo import HELD_OUT
from deploy.envelope import open_envelope, scope_hash, seal
from deploy.service.models import ServedModel, open_sources, parse_source
from deploy.target import ClientRole

KEYS, ROWS_PER_KEY = 6, 5
MODEL = "digits-ckks"


class Callers:
    """Clients with distinct keys, their requests encrypted beforehand, and what the answers must be."""

    def __init__(self, model: ServedModel, deployment: deploy.target.Deployment, rows: np.ndarray) -> None:
        self.role: ClientRole = deploy.targets()["ckks"].client(
            read_archive(model.client_archive, role="client").files
        )
        self.pairs = [self.role.generate_keys() for _ in range(KEYS)]
        self.ids = [hashlib.sha256(pair.evaluation).hexdigest() for pair in self.pairs]
        self.rows = rows[: KEYS * ROWS_PER_KEY]
        self.reference = deployment.logits(self.rows)
        (self.stated,) = [quantity.value for quantity in deployment.cost() if quantity.name == "logit_error"]
        self.questions = [self._question(subject) for subject in range(len(self.rows))]

    def _question(self, subject: int) -> Question:
        pair, key_id = self.pairs[subject % KEYS], self.ids[subject % KEYS]
        payload = self.role.encrypt(self.rows[subject : subject + 1], pair.secret)
        element = seal(payload, kind="request", scope=scope_hash(pair.scope), key_id=bytes.fromhex(key_id))
        call = build_infer(
            f"/v2/models/{MODEL}/infer",
            [element],
            tensor={"name": "request", "datatype": "BYTES", "shape": [1]},
            rows=1,
            output="answer",
            parameters={"key_id": key_id},
        )
        assert call.content is not None
        return Question(call.path, call.content, call.headers, subject)

    def upload(self, url: str) -> None:
        """Store every key."""
        with httpx2.Client(base_url=url, trust_env=False, timeout=120) as http:
            for pair, key_id in zip(self.pairs, self.ids, strict=True):
                assert http.put(f"/v2/keys/{key_id}", content=pair.evaluation).status_code == 201

    def wrong(self, load: Load) -> list[int]:
        """Subjects whose answer is not the reference's decision, or leaves its stated error."""
        decided = self.role.decision
        sure = decided.margins(self.reference) > 2 * self.stated
        found = []
        for subject, data in load.answers:
            (element,) = split_elements(data)
            payload = open_envelope(element, kind="answer", key_id=bytes.fromhex(self.ids[subject % KEYS])).payload
            logits = self.role.decrypt(payload, self.pairs[subject % KEYS].secret)[:1]
            reference = self.reference[subject : subject + 1]
            within = np.abs(logits - reference).max() <= self.stated
            if not within or (sure[subject] and not decided.agree(logits, reference)[0]):
                found.append(subject)
        return found


@pytest.fixture(scope="module")
def served_digits(digits_bundle) -> Iterator[tuple[list[ServedModel], Callers]]:
    models = open_sources([parse_source(str(digits_bundle))])
    rows = deploy.HeldOut.read(HELD_OUT).x
    yield models, Callers(models[0], deploy.Bundle.read(digits_bundle).deployment("ckks"), rows)


@pytest.mark.parametrize("seconds", [50, pytest.param(1800, marks=pytest.mark.long)])
def test_load_at_nine_tenths_of_capacity_has_no_error_and_no_wrong_answer(
    served_digits, tmp_path, seconds, record_property
) -> None:
    models, callers = served_digits
    with running(models, tmp_path, workers=2, queue=10_000) as server:
        callers.upload(server.url)
        workers = server.workers()
        capacity = measure_capacity(server.url, callers.questions, seconds=8, callers=4)
        load = replay(server.url, callers.questions, seconds=seconds, rate_per_s=0.9 * capacity.rate_per_s)
        record_property("capacity", f"{capacity.rate_per_s:.1f}/s")
        record_property("p50, p99", f"{load.quantile_s(0.5):.4f} s, {load.quantile_s(0.99):.4f} s")
        assert set(load.statuses) == {200}
        assert len(load.answers) == len(load.seconds)
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
