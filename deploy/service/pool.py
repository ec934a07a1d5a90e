"""Worker processes behind one bounded queue: sticky by key, with deadlines, cancellation and one retry.

Everything here runs on one event loop and never blocks it. Workers are fresh processes (never forks), so no thread
and no key of the server leaks into them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from deploy.errors import BundleError, DeployError, ServiceError, WireError
from deploy.service.framing import FrameError
from deploy.service.link import Link
from deploy.service.refusals import deadline_exceeded, draining, overloaded, worker_lost

__all__ = [
    "PoolObserver",
    "PoolSettings",
    "Reply",
    "ServedArchive",
    "WorkerPool",
    "preferred_worker",
    "remote_error",
]

_log = logging.getLogger(__name__)
_ATTEMPTS = 2
_MAX_RESTART_DELAY_S = 10.0
_SOCKET_BYTES = 4 << 20
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How many workers, and what bounds them.

    Parameters
    ----------
    workers : processes; one per core is right for cryptography.
    queue_limit : requests that may wait; the next one is told to come back.
    steal_after_s : how long a request waits for the worker that holds its key before any idle worker takes it;
        about the time that loading a key takes.
    worker_timeout_s : a worker busy with one request for longer is killed and replaced.
    key_cache_bytes : per worker, bound on parsed keys, counted by the size of their files.
    memory_bytes : address space of a worker, 0 for no limit.
    nice : added to the priority number of workers, so that health answers while they compute.
    """

    workers: int
    queue_limit: int = 64
    steal_after_s: float = 0.1
    worker_timeout_s: float = 300.0
    key_cache_bytes: int = 1 << 30
    memory_bytes: int = 0
    nice: int = 5


@dataclass(frozen=True, slots=True)
class ServedArchive:
    """A server archive under the id that requests name it by."""

    model: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """What a worker answered: header, payload, and how long it worked, in seconds."""

    header: Mapping[str, Any]
    payload: bytes
    worker_s: float


class PoolObserver(Protocol):
    """What the pool tells; all are called on the event loop."""

    def worker_lost(self, exit_code: int | None) -> None:
        """A worker died, of itself or because it was stuck."""
        ...

    def key_cached(self, *, hit: bool) -> None:
        """A request went to a worker that holds its key, or that has to load it."""
        ...


@dataclass(eq=False, slots=True)
class _Job:
    header: dict[str, Any]
    payload: bytes | memoryview
    key_id: str | None
    answer: asyncio.Future[Reply]
    queued_at: float
    attempts: int = 0


@dataclass(eq=False, slots=True)
class _Worker:
    slot: int
    process: asyncio.subprocess.Process | None = None
    link: Link | None = None
    ready: bool = False
    job: _Job | None = None
    keys: frozenset[str] = frozenset()


def preferred_worker(key_id: str, slots: Sequence[int]) -> int:
    """The slot a key sticks to: highest hash wins, so a lost slot moves only its own keys.

    >>> preferred_worker("00" * 32, [0, 1]) in (0, 1)
    True
    """
    return max(slots, key=lambda slot: hashlib.sha256(f"{key_id}/{slot}".encode()).digest())


class WorkerPool:
    """A pool that serves archives; use as ``await pool.start()`` … ``await pool.close()``."""

    def __init__(self, archives: Sequence[ServedArchive], settings: PoolSettings, observer: PoolObserver) -> None:
        self._archives = archives
        self._settings = settings
        self._observer = observer
        self._workers = [_Worker(slot) for slot in range(settings.workers)]
        self._waiting: deque[_Job] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._steal_timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._first_failure: DeployError | None = None
        self.models: dict[str, Mapping[str, Any]] = {}

    @property
    def depth(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def busy(self) -> int:
        """Workers that compute."""
        return sum(worker.job is not None for worker in self._workers)

    @property
    def ready(self) -> bool:
        """Whether a worker can take requests."""
        return not self._closing and any(worker.ready for worker in self._workers)

    @property
    def process_ids(self) -> list[int]:
        """Of the workers that are alive."""
        return [worker.process.pid for worker in self._workers if worker.process and worker.ready]

    async def start(self) -> None:
        """Start every worker and wait until the first can serve.

        Raises
        ------
        DeployError : an archive that no worker can open, a target that is not installed.
        """
        self._tasks = [asyncio.create_task(self._run(worker)) for worker in self._workers]
        while not self.ready:
            if self._first_failure is not None:
                failure = self._first_failure
                await self.close()
                raise failure
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Stop the workers; whatever still waits is answered with 503."""
        self._closing = True
        while self._waiting:
            _fail(self._waiting.popleft(), draining())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._steal_timer is not None:
            self._steal_timer.cancel()

    def check_room(self, count: int = 1) -> None:
        """Raise :class:`ServiceError` (429) where `count` more requests would not fit into the queue."""
        if self._closing:
            raise draining()
        idle = sum(worker.ready and worker.job is None for worker in self._workers)
        if len(self._waiting) + count > self._settings.queue_limit + idle:
            raise overloaded(f"{len(self._waiting)} requests wait, the queue holds {self._settings.queue_limit}")

    async def submit(
        self,
        header: dict[str, Any],
        payload: bytes | memoryview = b"",
        *,
        key_id: str | None = None,
        timeout_s: float,
    ) -> Reply:
        """Have one operation done; cancelling the caller takes it out of the queue.

        Raises
        ------
        ServiceError : queue full (429), deadline passed (504), worker lost twice (503), shutting down (503).
        WireError : what the worker refused.
        """
        self.check_room()
        loop = asyncio.get_running_loop()
        job = _Job(header, payload, key_id, loop.create_future(), loop.time())
        self._waiting.append(job)
        self._dispatch()
        deadline = loop.call_later(timeout_s, lambda: _fail(job, deadline_exceeded(timeout_s)))
        try:
            return await job.answer
        finally:
            deadline.cancel()
            if job in self._waiting:
                self._waiting.remove(job)

    def _dispatch(self) -> None:
        idle = [worker for worker in self._workers if worker.ready and worker.job is None]
        for worker in idle:
            job = self._choose(worker)
            if job is not None:
                self._waiting.remove(job)
                job.attempts += 1
                worker.job = job
                if job.key_id is not None:
                    self._observer.key_cached(hit=job.key_id in worker.keys)
                self._begin(worker, job)
        if self._waiting and any(worker.ready and worker.job is None for worker in self._workers):
            self._dispatch_later()

    def _choose(self, worker: _Worker) -> _Job | None:
        """The job a free worker takes: its own keys first, others' only once they waited."""
        now = asyncio.get_running_loop().time()
        slots = [other.slot for other in self._workers if other.ready]
        late = self._settings.steal_after_s
        if self._waiting and now - self._waiting[0].queued_at > 20 * late:
            return self._waiting[0]
        for job in self._waiting:
            if (
                job.key_id is None
                or job.key_id in worker.keys
                or preferred_worker(job.key_id, slots) == worker.slot
            ):
                return job
        return next((job for job in self._waiting if now - job.queued_at >= late), None)

    def _dispatch_later(self) -> None:
        if self._steal_timer is None or self._steal_timer.cancelled():
            self._steal_timer = asyncio.get_running_loop().call_later(
                self._settings.steal_after_s / 4, self._dispatch_again
            )

    def _dispatch_again(self) -> None:
        self._steal_timer = None
        self._dispatch()

    async def _run(self, worker: _Worker) -> None:
        """Keep one slot filled with a live process."""
        failures = 0
        try:
            while True:
                try:
                    await self._launch(worker)
                    failures = 0
                    assert worker.link is not None
                    await worker.link.closed
                except DeployError as error:
                    failures += 1
                    self._first_failure = self._first_failure or error
                    _log.error("worker cannot start", extra={"fields": {"slot": worker.slot, "cause": str(error)}})
                except (FrameError, OSError):
                    failures += not worker.ready
                await self._lost(worker)
                if failures:
                    if not self.models:
                        self._first_failure = self._first_failure or ServiceError(
                            "a worker died while it started", code="not_ready", hint="see the log"
                        )
                    await asyncio.sleep(min(0.1 * 2**failures, _MAX_RESTART_DELAY_S))
        finally:
            await self._stop(worker)

    async def _launch(self, worker: _Worker) -> None:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):  # the kernel caps it: where it may hold a whole request, one write is enough
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        environment = {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, "1")}
        creation = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "deploy.service.worker", str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        try:
            worker.process = await asyncio.shield(creation)
        except BaseException:
            ours.close()
            with contextlib.suppress(OSError):
                worker.process = await creation  # a cancelled start has a process all the same, which must be ended
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        _, worker.link = await asyncio.get_running_loop().create_connection(Link, sock=ours)
        settings = self._settings
        bounds = {
            "key_cache_bytes": settings.key_cache_bytes,
            "memory_bytes": settings.memory_bytes,
            "nice": settings.nice,
        }
        worker.link.tell(bounds)
        for archive in self._archives:
            answer, _ = await worker.link.ask({"op": "open", "model": archive.model}, archive.data)
            if "error" in answer:
                raise remote_error(answer["error"])
            self.models.setdefault(archive.model, answer)
        worker.ready = True
        self._dispatch()

    def _begin(self, worker: _Worker, job: _Job) -> None:
        """Hand a job to a free worker."""
        assert worker.link is not None
        stuck = asyncio.get_running_loop().call_later(self._settings.worker_timeout_s, self._kill, worker, job)
        answer = worker.link.ask(job.header, job.payload)
        answer.add_done_callback(partial(self._finish, worker, job, stuck))

    def _finish(
        self,
        worker: _Worker,
        job: _Job,
        stuck: asyncio.TimerHandle,
        answer: asyncio.Future[tuple[dict[str, Any], bytes]],
    ) -> None:
        """Pass an answer on and take the next job; of a worker that died, :meth:`_lost` takes care."""
        stuck.cancel()
        if answer.exception() is not None:
            return
        header, payload = answer.result()
        worker.keys = frozenset(header.get("keys", ()))
        if "error" in header:
            _fail(job, remote_error(header["error"]))
        elif not job.answer.done():
            job.answer.set_result(Reply(header, payload, float(header.get("seconds", 0.0))))
        worker.job = None
        self._dispatch()

    def _kill(self, worker: _Worker, job: _Job) -> None:
        assert worker.process is not None
        _log.error("worker stuck", extra={"fields": {"slot": worker.slot, "pid": worker.process.pid}})
        job.attempts = _ATTEMPTS
        worker.process.kill()

    async def _lost(self, worker: _Worker) -> None:
        """Clean up after a process that died; its request is tried once more elsewhere."""
        was_ready, job = worker.ready, worker.job
        exit_code = await self._stop(worker)
        if was_ready:
            self._observer.worker_lost(exit_code)
            _log.error("worker lost", extra={"fields": {"slot": worker.slot, "exit_code": exit_code}})
        if job is not None and not job.answer.done():
            if job.attempts < _ATTEMPTS and not self._closing:
                self._waiting.appendleft(job)
                self._dispatch()
            else:
                _fail(job, worker_lost("the worker died on this request, and so did the one that tried it again"))

    async def _stop(self, worker: _Worker) -> int | None:
        worker.ready, worker.job, worker.keys = False, None, frozenset()
        process, link, worker.link = worker.process, worker.link, None
        if link is not None:
            link.close()
        if process is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        exit_code = await process.wait()
        worker.process = None  # not before it is gone: a cancelled wait is taken up again
        return exit_code


def _fail(job: _Job, error: DeployError) -> None:
    if not job.answer.done():
        job.answer.set_exception(error)


def remote_error(document: Mapping[str, Any]) -> DeployError:
    """The exception for what :func:`deploy.service.worker.error_document` wrote."""
    status = int(document["status"])
    if "where" in document:
        _log.error("defect in a worker", extra={"fields": {"where": document["where"]}})
    if document["code"] == "bad_bundle":
        return BundleError(str(document["error"]), remedy=str(document["hint"]))
    if status < 500:
        return WireError(
            str(document["error"]), code=str(document["code"]), http_status=status, hint=str(document["hint"])
        )
    return ServiceError(
        str(document["error"]), code=str(document["code"]), http_status=status, hint=str(document["hint"])
    )
