"""A replica on some node of a cluster: one worker process behind it, keys fetched once and kept while they are used."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.errors import DeployError
from deploy.service.pool import PoolSettings, ServedArchive, WorkerPool
from deploy.service.worker import error_document

__all__ = ["KEYS_PER_REPLICA", "RoleReplica", "multiplexed_replica"]

KEYS_PER_REPLICA = 64


class _Nobody:
    """Watches a pool and says nothing; Ray counts."""

    def worker_lost(self, exit_code: int | None) -> None:
        """Ignore."""

    def key_cached(self, *, hit: bool) -> None:
        """Ignore."""


class _KeyFile:
    """A key on this node's disk, erased once Ray Serve lets go of it."""

    def __init__(self, data: bytes) -> None:
        handle, name = tempfile.mkstemp(prefix="relu-deploy-key-")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        self.path = Path(name)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()


class RoleReplica:
    """Runs roles; Ray Serve makes as many as there is work for.

    Parameters
    ----------
    archives : (model id, server archive) of everything served.
    settings : of the one worker process, see :class:`deploy.service.pool.PoolSettings`.
    """

    def __init__(self, archives: Sequence[tuple[str, bytes]], settings: Mapping[str, Any]) -> None:
        served = [ServedArchive(model, data) for model, data in archives]
        self._pool = WorkerPool(served, PoolSettings(**{**settings, "workers": 1}), _Nobody())
        self._starting: asyncio.Task[None] | None = None
        self._offered: dict[str, Any] = {}

    async def handle(
        self, header: dict[str, Any], payload: bytes, offered_key: list[Any], timeout_s: float
    ) -> tuple[dict[str, Any], bytes]:
        """Do one operation; every failure is an answer.

        Parameters
        ----------
        offered_key : a reference to the key's bytes in a list, so that Ray does not fetch it unless it is needed.
        """
        try:
            await self._ready()
            key_id = header.get("key_id")
            if key_id is not None:
                self._offered[key_id] = offered_key[0]
                key = await self.load_key(key_id)
                self._offered.pop(key_id, None)
                header = {**header, "key_path": str(key.path)}
            reply = await self._pool.submit(header, payload, key_id=key_id, timeout_s=timeout_s)
        except DeployError as error:
            return {"error": error_document(error)}, b""
        return {**reply.header, "seconds": reply.worker_s}, reply.payload

    async def load_key(self, key_id: str) -> _KeyFile:
        """Fetch a key to this node."""
        data: bytes = await self._offered[key_id]
        return await asyncio.to_thread(_KeyFile, data)

    async def check_health(self) -> None:
        """Told to Ray Serve, which replaces a replica that raises."""
        await self._ready()

    async def _ready(self) -> None:
        if self._starting is None:
            self._starting = asyncio.create_task(self._pool.start())
        await asyncio.shield(self._starting)


def multiplexed_replica() -> type[RoleReplica]:
    """The replica with its keys multiplexed: Ray Serve remembers which replica holds a key and sends its requests there.

    Made in a function because Ray is imported only where there is a cluster.
    """
    from ray import serve

    class MultiplexedReplica(RoleReplica):
        @serve.multiplexed(max_num_models_per_replica=KEYS_PER_REPLICA)  # type: ignore[untyped-decorator]
        async def load_key(self, key_id: str) -> _KeyFile:
            return await RoleReplica.load_key(self, key_id)

    return MultiplexedReplica
