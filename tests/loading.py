"""Load on a server: requests that were encrypted before, replayed at a rate, every different answer kept."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx2
import numpy as np

from deploy.bundle import read_archive
from deploy.client.exchange import build_infer, split_elements
from deploy.envelope import open_envelope, scope_hash, seal
from deploy.registry import target
from deploy.service.models import ServedModel
from deploy.target import Deployment, KeyPair

__all__ = ["Callers", "Load", "Question", "measure_capacity", "replay"]


@dataclass(frozen=True)
class Question:
    """A request ready to be sent, and what it is about."""

    path: str
    content: bytes
    headers: Mapping[str, str]
    subject: int


@dataclass
class Load:
    """What a run of load gave: seconds from being due to being answered, statuses, and bodies by question.

    The same request gets the same bytes, so an hour of answers is no more than a minute's to hold and to check.
    """

    seconds: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    answers: set[tuple[int, bytes]] = field(default_factory=set)
    elapsed_s: float = 0.0

    def take(self, question: Question, response: httpx2.Response, seconds: float) -> None:
        """Count one answer, and keep it where it is new."""
        self.statuses[response.status_code] = self.statuses.get(response.status_code, 0) + 1
        self.seconds.append(seconds)
        if response.status_code == 200:
            start = int(response.headers["Inference-Header-Content-Length"])
            self.answers.add((question.subject, response.content[start:]))

    @property
    def rate_per_s(self) -> float:
        """Answers per second."""
        return len(self.seconds) / self.elapsed_s

    def quantile_s(self, share: float) -> float:
        """Quantile of the times, in seconds."""
        return sorted(self.seconds)[min(len(self.seconds) - 1, int(share * len(self.seconds)))]


class Callers:
    """Clients with distinct keys, their requests encrypted beforehand, and what the answers must be."""

    def __init__(self, model: ServedModel, deployment: Deployment, rows: np.ndarray, *, keys: int) -> None:
        role = target(model.target).client(read_archive(model.client_archive, role="client").files)
        assert role is not None
        self.role = role
        self.path = f"/v2/models/{model.name}/infer"
        pairs = [role.generate_keys() for _ in range(keys)]
        self.pairs = [pair for pair in pairs if pair is not None]
        self.ids = [hashlib.sha256(pair.evaluation).hexdigest() for pair in self.pairs]
        self.rows = rows
        self.reference = deployment.logits(self.rows)
        (self.stated,) = [quantity.value for quantity in deployment.cost() if quantity.name == "logit_error"]
        self.questions = [self._question(subject) for subject in range(len(self.rows))]

    def _question(self, subject: int) -> Question:
        pair, key_id = self._key(subject)
        payload = self.role.encrypt(self.rows[subject : subject + 1], pair.secret)
        element = seal(payload, kind="request", scope=scope_hash(pair.scope), key_id=bytes.fromhex(key_id))
        call = build_infer(
            self.path,
            [element],
            tensor={"name": "request", "datatype": "BYTES", "shape": [1]},
            rows=1,
            output="answer",
            parameters={"key_id": key_id},
        )
        assert call.content is not None
        return Question(call.path, call.content, call.headers, subject)

    def _key(self, subject: int) -> tuple[KeyPair, str]:
        return self.pairs[subject % len(self.pairs)], self.ids[subject % len(self.pairs)]

    def upload(self, url: str) -> None:
        """Store every key."""
        with httpx2.Client(base_url=url, trust_env=False, timeout=120) as http:
            for pair, key_id in zip(self.pairs, self.ids, strict=True):
                assert http.put(f"/v2/keys/{key_id}", content=pair.evaluation).status_code == 201

    def wrong(self, load: Load) -> list[int]:
        """Subjects with an answer that is not the reference's decision, or leaves its stated error."""
        decided = self.role.decision
        sure = decided.margins(self.reference) > 2 * self.stated
        found = []
        for subject, data in load.answers:
            (element,) = split_elements(data)
            pair, key_id = self._key(subject)
            payload = open_envelope(element, kind="answer", key_id=bytes.fromhex(key_id)).payload
            logits = self.role.decrypt(payload, pair.secret)[:1]
            reference = self.reference[subject : subject + 1]
            within = np.abs(logits - reference).max() <= self.stated
            if not within or (sure[subject] and not decided.agree(logits, reference)[0]):
                found.append(subject)
        return found


def measure_capacity(url: str, questions: Sequence[Question], *, seconds: float, callers: int) -> Load:
    """Closed loop: so many callers, each asking again as soon as it is answered."""

    async def run() -> Load:
        load, end = Load(), time.perf_counter() + seconds
        async with _client(url, callers) as http:

            async def call(first: int) -> None:
                turn = first
                while time.perf_counter() < end:
                    await _ask(http, questions[turn % len(questions)], load, time.perf_counter())
                    turn += callers

            began = time.perf_counter()
            await asyncio.gather(*(call(first) for first in range(callers)))
            load.elapsed_s = time.perf_counter() - began
        return load

    return asyncio.run(run())


def replay(url: str, questions: Sequence[Question], *, seconds: float, rate_per_s: float) -> Load:
    """Open loop: a request every 1/rate seconds, whether or not the ones before were answered."""

    async def run() -> Load:
        load = Load()
        async with _client(url, 1000) as http, asyncio.TaskGroup() as group:
            began = time.perf_counter()
            for number in range(int(seconds * rate_per_s)):
                due = began + number / rate_per_s
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                group.create_task(_ask(http, questions[number % len(questions)], load, due))
        load.elapsed_s = time.perf_counter() - began
        return load

    return asyncio.run(run())


async def _ask(http: httpx2.AsyncClient, question: Question, load: Load, due: float) -> None:
    response = await http.post(question.path, content=question.content, headers=question.headers)
    load.take(question, response, time.perf_counter() - due)


def _client(url: str, connections: int) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
    return httpx2.AsyncClient(base_url=url, timeout=3600.0, trust_env=False, limits=limits)
