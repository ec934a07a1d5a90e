"""Load on a server: requests that were encrypted before, replayed at a rate, every different answer kept."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx2
import numpy as np

from deploy.bundle import read_archive
from deploy.client.exchange import build_infer, split_elements
from deploy.envelope import open_envelope, scope_hash, seal
from deploy.registry import target
from deploy.service.models import ServedModel
from deploy.target import Deployment, KeyPair

try:
    from uvloop import new_event_loop
except ImportError:
    from asyncio import new_event_loop

__all__ = ["Answer", "Callers", "Load", "Question", "measure_capacity", "replay"]

_HEAD_LENGTH = b"inference-header-content-length"


@dataclass(frozen=True)
class Question:
    """A request ready to be sent, and what it is about."""

    path: str
    content: bytes
    headers: Mapping[str, str]
    subject: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: status, headers by lower-case name, body."""

    status: int
    headers: Mapping[bytes, bytes]
    content: bytes


@dataclass
class Load:
    """What a run of load gave: seconds from being due to being answered, statuses, and bodies by question.

    The same request gets the same bytes, so an hour of answers is no more than a minute's to hold and to check.
    """

    seconds: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    answers: dict[int, list[bytes]] = field(default_factory=dict)
    elapsed_s: float = 0.0

    def take(self, question: Question, answer: Answer, seconds: float) -> None:
        """Count one answer, and keep it where it is new."""
        self.statuses[answer.status] = self.statuses.get(answer.status, 0) + 1
        self.seconds.append(seconds)
        if answer.status == 200:
            known = self.answers.setdefault(question.subject, [])
            content = memoryview(answer.content)[int(answer.headers[_HEAD_LENGTH]) :]
            if content not in known:
                known.append(bytes(content))

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
        for subject, data in [(subject, data) for subject, known in load.answers.items() for data in known]:
            (element,) = split_elements(data)
            pair, key_id = self._key(subject)
            payload = open_envelope(element, kind="answer", key_id=bytes.fromhex(key_id)).payload
            logits = self.role.decrypt(payload, pair.secret)[:1]
            reference = self.reference[subject : subject + 1]
            within = np.abs(logits - reference).max() <= self.stated
            if not within or (sure[subject] and not decided.agree(logits, reference)[0]):
                found.append(subject)
        return found


_KEPT_S = 5.0
"""How long an idle connection is used again: less than the server keeps it."""


class _Line(asyncio.BufferedProtocol):
    """One kept connection, one request at a time: HTTP/1.1 as far as the service speaks it.

    The callers share the machine with what they measure, so they cost as little as sending and receiving do.
    """

    def __init__(self) -> None:
        self._buffer = bytearray(1 << 16)
        self._there = 0
        self._head: tuple[int, int, dict[bytes, bytes]] | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self.last_used = 0.0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def ask(self, request: bytes) -> asyncio.Future[Answer]:
        """Send a whole request; its answer is awaited."""
        assert self._answer is None
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._answer

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._there :]

    def buffer_updated(self, nbytes: int) -> None:
        self._there += nbytes
        if self._head is None:
            end = self._buffer.find(b"\r\n\r\n", 0, self._there)
            if end < 0:
                return
            first, *lines = bytes(self._buffer[:end]).split(b"\r\n")
            pairs = (line.partition(b":") for line in lines)
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            self._head = int(first.split()[1]), end + 4, headers
            size = end + 4 + int(headers[b"content-length"])
            if size > len(self._buffer):
                self._buffer = self._buffer[: self._there] + bytes(size + 1 - self._there)
        status, start, headers = self._head
        size = start + int(headers[b"content-length"])
        if self._there < size:
            return
        assert self._there == size and self._answer is not None, "bytes that nobody asked for"
        answer, content = self._answer, bytes(memoryview(self._buffer)[start:size])
        self._answer = self._head = None
        self._there = 0
        if not answer.done():
            answer.set_result(Answer(status, headers, content))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the server closed the connection"))


class _Lines:
    """Kept connections to a server, as many as are needed at once."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = parts.hostname, parts.port
        self._idle: list[_Line] = []
        self._requests: dict[int, bytes] = {}

    async def ask(self, question: Question, load: Load, due: float) -> None:
        """Send a question and count its answer."""
        request = self._requests.get(id(question)) or self._write(question)
        line = self._kept() or (await asyncio.get_running_loop().create_connection(_Line, *self._address))[1]
        answer = await line.ask(request)
        load.take(question, answer, time.perf_counter() - due)
        line.last_used = time.perf_counter()
        self._idle.append(line)

    def _kept(self) -> _Line | None:
        """A kept connection, the last used first; one that the server may be about to close is let go, as clients do."""
        while self._idle:
            line = self._idle.pop()
            if time.perf_counter() - line.last_used < _KEPT_S and not line.transport.is_closing():
                return line
            line.transport.close()
        return None

    def _write(self, question: Question) -> bytes:
        headers = {"Host": "service", "Content-Length": str(len(question.content)), **question.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        request = f"POST {question.path} HTTP/1.1\r\n{head}\r\n".encode() + question.content
        self._requests[id(question)] = request
        return request

    def close(self) -> None:
        """Close every connection."""
        for line in self._idle:
            line.transport.close()


@contextlib.asynccontextmanager
async def _lines(url: str) -> AsyncIterator[_Lines]:
    lines = _Lines(url)
    try:
        yield lines
    finally:
        lines.close()


def _run(work: Coroutine[Any, Any, Load]) -> Load:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


def measure_capacity(url: str, questions: Sequence[Question], *, seconds: float, callers: int) -> Load:
    """Closed loop: so many callers, each asking again as soon as it is answered."""

    async def run() -> Load:
        load, end = Load(), time.perf_counter() + seconds
        async with _lines(url) as lines:

            async def call(first: int) -> None:
                turn = first
                while time.perf_counter() < end:
                    await lines.ask(questions[turn % len(questions)], load, time.perf_counter())
                    turn += callers

            began = time.perf_counter()
            await asyncio.gather(*(call(first) for first in range(callers)))
            load.elapsed_s = time.perf_counter() - began
        return load

    return _run(run())


def replay(url: str, questions: Sequence[Question], *, seconds: float, rate_per_s: float) -> Load:
    """Open loop: a request every 1/rate seconds, whether or not the ones before were answered."""

    async def run() -> Load:
        load = Load()
        async with _lines(url) as lines, asyncio.TaskGroup() as group:
            began = time.perf_counter()
            for number in range(int(seconds * rate_per_s)):
                due = began + number / rate_per_s
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                group.create_task(lines.ask(questions[number % len(questions)], load, due))
        load.elapsed_s = time.perf_counter() - began
        return load

    return _run(run())
