"""Inference in worker processes: SEAL never releases the interpreter's lock, so threads do not help.

Workers are spawned, never forked: a process that has made a threaded TenSEAL context hangs in its children. Each
worker loads plan and network once, encodes plaintexts once, and keeps the keys it was last given.

Axes: ``requests``.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

from deploy.errors import UsageError
from fhe.network import PolynomialNetwork
from fhe.plan import Plan

__all__ = ["WorkerPool"]

_KEPT_KEYS = 4
"""Sets of evaluation keys that a worker keeps loaded."""

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class WorkerPool:
    """Answers requests in `workers` processes. A context manager; entering starts the processes.

    Parameters
    ----------
    plan, network : what the server archive holds.
    workers : processes, one for each core by default.

    Raises
    ------
    WireError : from :meth:`infer`, exactly as the server's role raises it.
    """

    def __init__(self, plan: Plan, network: PolynomialNetwork, *, workers: int | None = None) -> None:
        self._workers = workers if workers is not None else (os.cpu_count() or 1)
        if self._workers < 1:
            raise UsageError(f"{self._workers} workers", remedy="use at least one")
        self._archive = (plan.to_bytes(), network.to_bytes())
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        self._pool = ProcessPoolExecutor(
            self._workers, mp_context=get_context("spawn"), initializer=_start, initargs=self._archive
        )
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def submit(self, request: bytes, key_file: Path) -> Future[bytes]:
        """Answer one request in some worker, with the keys in `key_file` (checked when they are loaded)."""
        if self._pool is None:
            raise RuntimeError("enter the pool first")
        return self._pool.submit(_answer, request, str(key_file))

    def infer(self, requests: Sequence[bytes], key_file: Path) -> list[bytes]:
        """Answer requests in parallel, in their order."""
        futures = [self.submit(request, key_file) for request in requests]
        return [future.result() for future in futures]


class _Worker:
    """What one process keeps."""

    def __init__(self, plan: bytes, network: bytes) -> None:
        from fhe.roles import CkksServerRole

        self._role = CkksServerRole(Plan.from_bytes(plan), PolynomialNetwork.from_bytes(network))
        self._keys: OrderedDict[tuple[str, int, int], Any] = OrderedDict()

    def answer(self, request: bytes, key_file: str) -> bytes:
        status = Path(key_file).stat()
        name = (key_file, status.st_mtime_ns, status.st_size)
        if name not in self._keys:
            self._keys[name] = self._role.load_key(Path(key_file))
            while len(self._keys) > _KEPT_KEYS:
                self._keys.popitem(last=False)
        self._keys.move_to_end(name)
        return self._role.infer(request, self._keys[name])


_worker: _Worker | None = None


def _start(plan: bytes, network: bytes) -> None:
    global _worker
    for variable in _THREAD_VARIABLES:
        os.environ.setdefault(variable, "1")
    _worker = _Worker(plan, network)


def _answer(request: bytes, key_file: str) -> bytes:
    if _worker is None:
        raise RuntimeError("the worker was not started")
    return _worker.answer(request, key_file)
