"""Run a server until it is told to stop: uvicorn, TLS, metrics, draining."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import uvicorn

from deploy.errors import DeployError, InputError, ServiceError, UsageError
from deploy.service.app import create_app
from deploy.service.connection import Connection
from deploy.service.journal import configure_logging
from deploy.service.service import Service

__all__ = ["Address", "run_service"]

_log = logging.getLogger(__name__)


class Address:
    """Where a running server answers."""

    def __init__(self, url: str, metrics_url: str | None) -> None:
        self.url = url
        self.metrics_url = metrics_url


class _Server(uvicorn.Server):  # type: ignore[misc]
    """Turns unready at SIGTERM, stays so for a while, then closes; a second signal closes at once."""

    def __init__(self, config: uvicorn.Config, service: Service, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._announce = announce
        self._starting: asyncio.Task[None] | None = None
        self.failure: DeployError | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals on the loop; unlike uvicorn's, do not die of them again once everything is closed."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _on_signal(self, number: int) -> None:
        again, self._service.draining = self._service.draining, True
        _log.info("draining", extra={"fields": {"signal": number}})
        if self._starting is not None:
            self._starting.cancel()
        delay_s = 0.0 if again or number == signal.SIGINT else self._service.settings.drain_delay_s
        asyncio.get_running_loop().call_later(delay_s, self.handle_exit, number, None)
        if again:
            self.force_exit = True
            for connection in list(self.server_state.connections):
                connection.transport.abort()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the workers, then listen and announce the address; a signal meanwhile ends it."""
        self._starting = asyncio.create_task(self._service.start())
        try:
            await self._starting
        except (DeployError, asyncio.CancelledError) as error:
            self.failure = error if isinstance(error, DeployError) else None
            self.should_exit = True
            await self._service.stop()
            return
        finally:
            self._starting = None
        await super().startup(sockets)
        if self.started:
            gc.collect()
            gc.freeze()  # what lives as long as the server is not looked through again
            self._announce()


def run_service(service: Service, *, announce: Callable[[Address], None]) -> None:
    """Serve until SIGTERM or SIGINT; running requests are finished first.

    Parameters
    ----------
    announce : told the address once the server is ready.

    Raises
    ------
    UsageError : the address is taken. InputError : the TLS files do not fit.
    ServiceError : the workers cannot start; the log says why.
    """
    settings = service.settings
    configure_logging()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    listener = _listen(settings.host, settings.port)
    tls = settings.tls_certificate is not None
    _check_tls(settings.tls_certificate, settings.tls_key)
    stop_metrics: Callable[[], None] = lambda: None  # noqa: E731
    metrics_url = None
    if settings.metrics_port >= 0:
        try:
            port, stop_metrics = service.metrics.serve(settings.metrics_host, settings.metrics_port)
        except OSError as error:
            listener.close()
            raise UsageError(
                f"port {settings.metrics_port} for metrics: {error.strerror}",
                remedy="choose another --metrics-port",
            ) from None
        metrics_url = f"http://{settings.metrics_host}:{port}/metrics"
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    address = Address(f"{'https' if tls else 'http'}://{shown}:{port}", metrics_url)
    config = uvicorn.Config(
        create_app(service),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        timeout_graceful_shutdown=int(settings.drain_s) or None,
        timeout_keep_alive=settings.idle_timeout_s,
        loop="uvloop" if find_spec("uvloop") else "asyncio",
        http=Connection,
        ws="none",
    )
    server = _Server(config, service, lambda: announce(address))
    try:
        server.run(sockets=[listener])
    finally:
        stop_metrics()
        listener.close()
    if server.failure is not None:
        raise server.failure
    if not server.started and not service.draining:
        raise ServiceError("the server did not start", code="not_ready", hint="see the log")


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # else asyncio leaves Nagle on
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UsageError(f"{host}:{port}: {error.strerror}", remedy="choose another --host or --port") from None
    listener.listen(1024)
    return listener


def _check_tls(certificate: Path | None, key: Path | None) -> None:
    if certificate is None or key is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InputError(
            f"no certificate and key that fit: {error.strerror or type(error).__name__}",
            place=f"{certificate}, {key}",
            remedy="give PEM files of one pair",
        ) from None
