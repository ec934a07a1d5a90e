"""Prometheus metrics, on a port of their own."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

__all__ = ["Metrics"]

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)


class Metrics:
    """The metrics of one server; docs/service.md says what each is for."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "deploy_requests",
            "Requests by model, target and HTTP status.",
            ("model", "target", "code"),
            registry=registry,
        )
        self.seconds = Histogram(
            "deploy_request_seconds",
            "Inference, from headers to answer.",
            ("model",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.worker_seconds = Histogram(
            "deploy_worker_seconds", "Inference, in the worker.", ("model",), buckets=_SECONDS, registry=registry
        )
        self.in_progress = Gauge("deploy_in_progress", "Requests under way.", registry=registry)
        self.queue_depth = Gauge("deploy_queue_depth", "Requests that wait for a worker.", registry=registry)
        self.workers_busy = Gauge("deploy_workers_busy", "Workers that compute.", registry=registry)
        self.workers_lost = Counter(
            "deploy_workers_lost", "Workers that died and were replaced.", registry=registry
        )
        self.keys_stored = Gauge("deploy_keys_stored", "Evaluation keys in the store.", registry=registry)
        self.key_bytes = Gauge("deploy_key_bytes", "Their bytes.", registry=registry)
        self.key_cache = Counter(
            "deploy_key_cache",
            "Requests whose worker held the key (hit) or not (miss).",
            ("result",),
            registry=registry,
        )
        tensor_bytes = Counter(
            "deploy_tensor_bytes",
            "Bytes of tensors received (in) and sent (out).",
            ("direction",),
            registry=registry,
        )
        self.bytes_in, self.bytes_out = tensor_bytes.labels("in"), tensor_bytes.labels("out")

    def watch(self, gauge: Gauge, read: Callable[[], float]) -> None:
        """Read a gauge when it is scraped."""
        gauge.set_function(read)

    def worker_lost(self, exit_code: int | None) -> None:
        """Count a worker that died."""
        self.workers_lost.inc()

    def key_cached(self, *, hit: bool) -> None:
        """Count a request by whether its worker held the key."""
        self.key_cache.labels("hit" if hit else "miss").inc()

    def serve(self, host: str, port: int) -> tuple[int, Callable[[], None]]:
        """Answer ``/metrics`` from a thread; gives the port, and what stops it."""
        server, thread = start_http_server(port, addr=host, registry=self.registry)

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return server.server_port, stop
