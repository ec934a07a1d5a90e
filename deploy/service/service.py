"""One server's state: models, workers, keys, tenants, metrics; and what it does with them, apart from HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from deploy.envelope import HEADER_BYTES
from deploy.errors import DeployError, UsageError, WireError
from deploy.service.body import MemoryBudget
from deploy.service.keystore import KeyStore, StoredKey, Upload
from deploy.service.metrics import Metrics
from deploy.service.models import Catalogue, ServedModel
from deploy.service.pool import PoolObserver, Reply, ServedArchive, WorkerPool
from deploy.service.refusals import draining, key_not_found, not_ready, overloaded
from deploy.service.settings import ServiceSettings
from deploy.service.tenants import Tenants, read_tenants
from deploy.service.tensors import Query

__all__ = ["Backend", "BackendFactory", "Service"]

_log = logging.getLogger(__name__)
_MAINTENANCE_S = 60.0
_CHECK_KEY_S = 120.0
_JSON_PART = 1 << 16
_MAX_ELEMENTS = 64


class Backend(Protocol):
    """What runs the roles: worker processes here, replicas on a cluster."""

    models: dict[str, Mapping[str, Any]]

    @property
    def ready(self) -> bool:
        """Whether a request can be taken."""
        ...

    @property
    def depth(self) -> int:
        """Requests that wait."""
        ...

    @property
    def busy(self) -> int:
        """Workers that compute."""
        ...

    async def start(self) -> None:
        """Return once a worker can serve; raises DeployError where none ever will."""
        ...

    async def close(self) -> None:
        """Stop."""
        ...

    def check_room(self, count: int = 1) -> None:
        """Raise :class:`ServiceError` (429) where the queue is full."""
        ...

    async def submit(
        self,
        header: dict[str, Any],
        payload: bytes | memoryview = b"",
        *,
        key_id: str | None = None,
        timeout_s: float,
    ) -> Reply:
        """Have one operation done."""
        ...


BackendFactory = Callable[[Sequence[ServedModel], ServiceSettings, PoolObserver], Backend]


def _start_here(models: Sequence[ServedModel], settings: ServiceSettings, observer: PoolObserver) -> Backend:
    archives = [ServedArchive(model.id, model.server_archive) for model in models]
    return WorkerPool(archives, settings.pool, observer)


class Service:
    """A server without its HTTP; start and stop it on one event loop.

    Parameters
    ----------
    backend : makes what runs the roles; worker processes of this machine where None.
    """

    def __init__(
        self, models: Sequence[ServedModel], settings: ServiceSettings, *, backend: BackendFactory | None = None
    ) -> None:
        if not models:
            raise UsageError("no model to serve", remedy="give a bundle")
        self.settings = settings
        self.catalogue = Catalogue(models)
        self.tenants = read_tenants(settings.token_file) if settings.token_file else Tenants()
        self.store = KeyStore(settings.store, settings.store_limits)
        self.metrics = Metrics()
        self.backend = (backend or _start_here)(models, settings, self.metrics)
        self.budget = MemoryBudget(settings.body_budget_bytes)
        self.draining = False
        self.uploads = 0
        self._maintenance: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether requests are welcome."""
        return not self.draining and self.backend.ready

    async def start(self) -> None:
        """Start the workers and wait until one can serve.

        Raises
        ------
        DeployError : an archive cannot be opened, a model needs larger bodies than the settings allow.
        """
        metrics = self.metrics
        metrics.watch(metrics.queue_depth, lambda: self.backend.depth)
        metrics.watch(metrics.workers_busy, lambda: self.backend.busy)
        metrics.watch(metrics.keys_stored, lambda: self.store.totals()[0])
        metrics.watch(metrics.key_bytes, lambda: self.store.totals()[1])
        await self.backend.start()
        self.catalogue.describe(self.backend.models)
        for need, cap, option in (
            (self.catalogue.request_bytes + _JSON_PART, self.settings.max_request_bytes, "max-request-bytes"),
            (self.catalogue.key_bytes, self.settings.max_key_bytes, "max-key-bytes"),
        ):
            if need > cap:
                await self.backend.close()
                raise UsageError(
                    f"a model needs bodies of {need} bytes, the cap is {cap}", remedy=f"raise --{option}"
                )
        self._maintenance = asyncio.create_task(self._maintain())

    async def stop(self) -> None:
        """Stop the workers and close the store."""
        if self._maintenance is not None:
            self._maintenance.cancel()
            await asyncio.gather(self._maintenance, return_exceptions=True)
        await self.backend.close()
        self.store.close()

    async def _maintain(self) -> None:
        while True:
            await asyncio.sleep(_MAINTENANCE_S)
            await asyncio.to_thread(self.store.expire)
            await asyncio.to_thread(self.store.sweep)

    def check_ready(self) -> None:
        """Raise :class:`ServiceError` (503) unless requests are welcome."""
        if self.draining:
            raise draining()
        if not self.ready:
            raise not_ready()

    def request_cap(self, model: ServedModel) -> int:
        """Largest body of an inference, in bytes: many elements, or numbers written out as JSON."""
        one = self.catalogue.limits(model).request_bytes
        enveloped = self.catalogue.signature(model).input.datatype == "BYTES"
        wanted = _MAX_ELEMENTS * (one + HEADER_BYTES + 4) if enveloped else 4 * one
        return min(self.settings.max_request_bytes, wanted + _JSON_PART)

    async def find_key(self, model: ServedModel, tenant: str, query: Query) -> StoredKey | None:
        """The key that a query names; None for a keyless model.

        Raises
        ------
        WireError : key_id_missing, bad_key_id, key_not_found, key_scope.
        """
        limits = self.catalogue.limits(model)
        key_id = query.parameters.get("key_id")
        if not limits.key_bytes:
            return None
        if key_id is None:
            raise WireError(
                "this model needs keys",
                code="key_id_missing",
                http_status=400,
                hint="send parameters.key_id, the sha256 of the uploaded keys",
            )
        key_id = check_key_id(key_id)
        key = self.store.recall(tenant, key_id) or await asyncio.to_thread(self.store.find, tenant, key_id)
        if key is None:
            raise key_not_found()
        if not key.has_scope(limits.key_scope):
            raise WireError(
                "the key was made for other parameters",
                code="key_scope",
                http_status=409,
                hint="make keys from this model's client archive",
            )
        return key

    async def infer(self, model: ServedModel, tenant: str, query: Query) -> list[bytes]:
        """Answer a query, element by element.

        Raises
        ------
        DeployError : the first element's refusal; the others are cancelled.
        """
        limits = self.catalogue.limits(model)
        spare = HEADER_BYTES if self.catalogue.signature(model).input.datatype == "BYTES" else 0
        for number, element in enumerate(query.elements):
            if len(element) > limits.request_bytes + spare:
                raise WireError(
                    f"element {number} has {len(element)} bytes, the cap is {limits.request_bytes + spare}",
                    code="body_too_large",
                    http_status=413,
                    hint=f"send at most {limits.rows_per_request} rows in one element",
                )
        key = await self.find_key(model, tenant, query)
        header: dict[str, Any] = {"op": "infer", "model": model.id}
        if key is not None:
            header |= {"key_id": key.key_id, "key_path": str(key.path)}
        key_id = key.key_id if key is not None else None
        try:
            replies = await self._submit(header, query.elements, key_id, self._timeout(query))
        except DeployError as error:
            if key is not None and error.code in ("key_damaged", "key_not_found"):
                await asyncio.to_thread(self.store.delete, tenant, key.key_id)
                raise key_not_found() from None
            raise
        seconds = self.metrics.worker_seconds.labels(model.name)
        for reply in replies:
            seconds.observe(reply.worker_s)
        self.metrics.bytes_in.inc(sum(map(len, query.elements)))
        self.metrics.bytes_out.inc(sum(len(reply.payload) for reply in replies))
        return [reply.payload for reply in replies]

    async def _submit(
        self, header: dict[str, Any], elements: Sequence[bytes | memoryview], key_id: str | None, timeout_s: float
    ) -> list[Reply]:
        self.backend.check_room(len(elements))
        if len(elements) == 1:
            return [await self.backend.submit(header, elements[0], key_id=key_id, timeout_s=timeout_s)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self.backend.submit(header, element, key_id=key_id, timeout_s=timeout_s))
                    for element in elements
                ]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    def _timeout(self, query: Query) -> float:
        wanted = query.parameters.get("timeout_ms")
        ours = self.settings.request_timeout_s
        if isinstance(wanted, bool) or not isinstance(wanted, int | float) or not wanted > 0:
            return ours
        return min(ours, wanted / 1000)

    async def accept_key(self, upload: Upload, scope: str | None) -> None:
        """Check a finished upload against each scope served (or the one given) and publish it.

        Raises
        ------
        WireError : what the target's parser refused.
        """
        candidates = self.catalogue.by_scope(scope)
        refusal: Exception = WireError(
            "no model served here takes such keys",
            code="key_refused",
            hint="make keys from this server's client archive",
        )
        for model in candidates:
            header = {"op": "check_key", "model": model.id, "path": str(upload.path)}
            try:
                await self.backend.submit(header, timeout_s=_CHECK_KEY_S)
            except WireError as error:
                refusal = error
                continue
            await asyncio.to_thread(upload.commit, self.catalogue.limits(model).key_scope)
            return
        raise refusal

    @contextlib.contextmanager
    def upload_slot(self) -> Iterator[None]:
        """Count an upload; raises :class:`ServiceError` (429) where too many are under way."""
        if self.uploads >= self.settings.max_uploads:
            raise overloaded(f"{self.uploads} uploads are under way", retry_after_s=2)
        self.uploads += 1
        try:
            yield
        finally:
            self.uploads -= 1


def check_key_id(key_id: object) -> str:
    """A key id from outside, or :class:`WireError` (400)."""
    if isinstance(key_id, str) and len(key_id) == 64 and all(digit in "0123456789abcdef" for digit in key_id):
        return key_id
    raise WireError(
        "no sha256 in 64 lower-case hexadecimal digits",
        code="bad_key_id",
        http_status=400,
        hint="send the sha256 of the uploaded keys",
    )
