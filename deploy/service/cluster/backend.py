"""Roles on a Ray cluster, behind the interface of the local worker pool."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.errors import ServiceError
from deploy.requirement import require
from deploy.service.models import ServedModel
from deploy.service.pool import PoolObserver, PoolSettings, Reply, ServedArchive, WorkerPool, remote_error
from deploy.service.refusals import deadline_exceeded, key_not_found, overloaded, worker_lost
from deploy.service.settings import ServiceSettings

if TYPE_CHECKING:
    from deploy.service.service import BackendFactory

__all__ = ["RayBackend"]

_log = logging.getLogger(__name__)
_ATTEMPTS = 4
_OFFERED_KEYS = 256
_ONGOING_PER_REPLICA = 4
_APPLICATION = "relu-deploy"


class RayBackend:
    """Sends requests to replicas on a cluster, those of one key to the replicas that hold it.

    Keys are checked, and models described, by one worker process of this machine: uploads never leave it unchecked.
    What travels inside the cluster is Ray's own serialisation, so the cluster is one trust domain: its ports must be
    reachable by nobody else.

    Parameters
    ----------
    address : of the cluster, ``auto`` for the one this machine belongs to.
    """

    def __init__(
        self, address: str, models: Sequence[ServedModel], settings: ServiceSettings, observer: PoolObserver
    ) -> None:
        self._ray = require("ray", extra="cluster")
        self._serve = require("ray.serve", extra="cluster")
        self._address = address
        self._archives = [ServedArchive(model.id, model.server_archive) for model in models]
        self._settings = settings.pool
        self._max_replicas = settings.cluster_replicas
        self._queue = settings.queue
        self._local = WorkerPool(self._archives, PoolSettings(workers=1, queue_limit=settings.queue), observer)
        self._observer = observer
        self._offered: OrderedDict[str, Any] = OrderedDict()
        self._handle: Any = None
        self._under_way = 0
        self._closing = False
        self.models: dict[str, Mapping[str, Any]] = {}

    @property
    def ready(self) -> bool:
        """Whether replicas answer."""
        return self._handle is not None and self._local.ready and not self._closing

    @property
    def depth(self) -> int:
        """Requests beyond what the largest number of replicas works on."""
        return max(0, self._under_way - self._max_replicas)

    @property
    def busy(self) -> int:
        """Requests that replicas work on, at most one each."""
        return min(self._under_way, self._max_replicas)

    async def start(self) -> None:
        """Deploy the replicas and wait until one answers.

        Raises
        ------
        ServiceError : the cluster cannot be reached.
        """
        await self._local.start()
        self.models = self._local.models
        try:
            self._handle = await asyncio.to_thread(self._deploy)
        except (ConnectionError, TimeoutError, ValueError, RuntimeError) as error:
            await self._local.close()
            raise ServiceError(
                f"no cluster at {self._address}: {type(error).__name__}",
                code="not_ready",
                hint="start one with ray start, and give its address",
            ) from None

    def _deploy(self) -> Any:
        from deploy.service.cluster.replica import multiplexed_replica

        if not self._ray.is_initialized():
            self._ray.init(
                address=self._address, namespace=_APPLICATION, log_to_driver=False, logging_level="ERROR"
            )
        self._serve.start(http_options={"location": "NoServer"})
        deployment = self._serve.deployment(
            multiplexed_replica(),
            name="roles",
            max_ongoing_requests=_ONGOING_PER_REPLICA,
            autoscaling_config={
                "min_replicas": min(2, self._max_replicas),
                "max_replicas": self._max_replicas,
                "target_ongoing_requests": 2,
            },
            ray_actor_options={"num_cpus": 1},
            health_check_period_s=2,
            health_check_timeout_s=10,
        )
        archives = [(archive.model, archive.data) for archive in self._archives]
        application = deployment.bind(archives, asdict(self._settings))
        handle = self._serve.run(application, name=_APPLICATION, route_prefix=None)
        return handle.options(method_name="handle")

    async def close(self) -> None:
        """Take the replicas down; the cluster stays."""
        self._closing = True
        await self._local.close()
        if self._handle is not None:
            await asyncio.to_thread(self._serve.delete, _APPLICATION)
            self._handle = None

    def check_room(self, count: int = 1) -> None:
        """Raise :class:`ServiceError` (429) where too many requests are under way."""
        room = self._queue + self._max_replicas
        if self._under_way + count > room:
            raise overloaded(f"{self._under_way} requests are under way, {room} is the bound")

    async def submit(
        self,
        header: dict[str, Any],
        payload: bytes | memoryview = b"",
        *,
        key_id: str | None = None,
        timeout_s: float,
    ) -> Reply:
        """As :meth:`deploy.service.pool.WorkerPool.submit`; a request whose replica or node died is tried again."""
        if header["op"] != "infer":
            return await self._local.submit(header, payload, key_id=key_id, timeout_s=timeout_s)
        self.check_room()
        self._under_way += 1
        try:
            async with asyncio.timeout(timeout_s):
                return await self._infer(header, bytes(payload), key_id, timeout_s)
        except TimeoutError:
            raise deadline_exceeded(timeout_s) from None
        finally:
            self._under_way -= 1

    async def _infer(self, header: dict[str, Any], payload: bytes, key_id: str | None, timeout_s: float) -> Reply:
        offered = [] if key_id is None else [await self._offer(key_id, Path(header["key_path"]))]
        handle = self._handle if key_id is None else self._handle.options(multiplexed_model_id=key_id)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                answer, data = await handle.remote(header, payload, offered, timeout_s)
            except self._ray.exceptions.RayError as error:
                self._observer.worker_lost(None)
                _log.error("replica lost", extra={"fields": {"cause": type(error).__name__, "attempt": attempt}})
                await asyncio.sleep(0.1 * 2**attempt)
                continue
            if "error" in answer:
                raise remote_error(answer["error"])
            return Reply(answer, data, float(answer["seconds"]))
        raise worker_lost(f"{_ATTEMPTS} replicas were lost on this request")

    async def _offer(self, key_id: str, path: Path) -> Any:
        """A reference to a key in Ray's object store, put there once."""
        if key_id not in self._offered:
            try:
                data = await asyncio.to_thread(path.read_bytes)
            except OSError:
                raise key_not_found("the key is gone") from None
            self._offered[key_id] = await asyncio.to_thread(self._ray.put, data)
            while len(self._offered) > _OFFERED_KEYS:
                self._offered.popitem(last=False)
        self._offered.move_to_end(key_id)
        return self._offered[key_id]

    @classmethod
    def factory(cls, address: str) -> BackendFactory:
        """What :class:`deploy.service.service.Service` makes its backend with."""

        def make(models: Sequence[ServedModel], settings: ServiceSettings, observer: PoolObserver) -> RayBackend:
            return cls(address, models, settings, observer)

        return make
