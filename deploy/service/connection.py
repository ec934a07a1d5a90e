"""HTTP/1.1 on one connection: heads within a deadline and a size, bodies only as fast as the application takes them.

llhttp's strict parser (httptools) reads heads and chunked bodies. A body whose length is declared can be received
straight into memory that the application reserved for it: half a megabyte of ciphertext passes through no parser and
is copied once. uvicorn listens, makes one :class:`Connection` for each caller, and drains them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from deploy.service.exchange import Exchange

__all__ = ["Connection"]

_log = logging.getLogger(__name__)
_MAX_HEAD = 1 << 16
_LINGER_S = 2.0
_scratch = memoryview(bytearray(1 << 16))  # whatever is received is taken out at once: every connection uses it


class _Refused(Exception):
    """A head that the application never sees."""

    def __init__(self, status: HTTPStatus) -> None:
        self.status = status


class Connection(asyncio.BufferedProtocol):
    """One connection, made by uvicorn for its setting ``http``.

    The setting ``timeout_keep_alive`` bounds the wait for a whole head, and for a caller who does not take its answer.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._config = config
        self._state = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._deadline: asyncio.TimerHandle | None = None
        self._waiting: deque[Exchange] = deque()  # in order of arrival; the first is being answered
        self._last: Exchange | None = None  # the body that arrives is its
        self._head_bytes = 0
        self._in_head = self._offered = self._repeating = False
        self._deaf = False  # what still arrives means nothing
        self._paused = False
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A caller is there: wait for a head."""
        self.transport = transport
        self._ends = {
            "server": get_local_addr(transport),
            "client": get_remote_addr(transport),
            "scheme": "https" if is_ssl(transport) else "http",
        }
        self._state.connections.add(self)
        self._expect(self._config.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        """The caller is gone."""
        self._state.connections.discard(self)
        self._expect_nothing()
        self.writable.set()
        for exchange in self._waiting:
            exchange.leave()
        self._parser = None

    def shutdown(self) -> None:
        """Close once what runs is answered: uvicorn drains."""
        if self._waiting:
            self._waiting[-1].keep_alive = False
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        """The caller does not take its answer."""
        self.writable.clear()
        self._expect(self._config.timeout_keep_alive)

    def resume_writing(self) -> None:
        """It does."""
        self.writable.set()
        if self._waiting:
            self._expect_nothing()
        else:
            self._expect(self._config.timeout_keep_alive)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: into a body that is awaited, or to the parser."""
        return self._last.room if self._last is not None and self._last.room else _scratch

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes came."""
        if self._last is not None and self._last.room:
            if self._last.fill(nbytes):
                self._parser = httptools.HttpRequestParser(self)  # the old one still waits for that body
        elif not self._deaf:
            self._parse(_scratch[:nbytes])

    def _parse(self, data: memoryview) -> None:
        try:
            while data:
                try:
                    self._parser.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as offer:
                    data = data[offer.args[0] :]
                    self._decline_upgrade()
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause.status if isinstance(cause, _Refused) else HTTPStatus.BAD_REQUEST)
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        if len(self._waiting) > 1 or (self._last is not None and len(self._last.received) >= len(_scratch)):
            self.pause()

    def _decline_upgrade(self) -> None:
        """Read the body as HTTP/1.1: the parser left it out, so a new one hears of its framing alone."""
        framing = [pair for pair in self._headers if pair[0] in (b"content-length", b"transfer-encoding")]
        lines = [b"POST / HTTP/1.1", *(name + b": " + value for name, value in framing), b"", b""]
        self._parser = httptools.HttpRequestParser(self)
        self._offered = False
        self._repeating = True
        self._parser.feed_data(b"\r\n".join(lines))
        self._repeating = False

    def on_message_begin(self) -> None:
        """The first byte of a head."""
        if self._repeating:
            return
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head, self._head_bytes = True, 0

    def on_url(self, target: bytes) -> None:
        """A piece of the request target."""
        if self._in_head:
            self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; those behind a chunked body say nothing."""
        if self._in_head:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """A whole head: hand the request on, or refuse it."""
        if self._repeating:
            return
        self._in_head = False
        self._offered = self._parser.should_upgrade()
        method, version = self._parser.get_method().decode("ascii"), self._parser.get_http_version()
        self._check_head(method, version)
        path, _, query = self._target.partition(b"?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "method": method,
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": self._headers,
            "state": self._app_state.copy(),
            **self._ends,
        }
        keep_alive = version == "1.1" and self._parser.should_keep_alive()
        self._last = Exchange(self, self._loop, scope, keep_alive=keep_alive)
        self._waiting.append(self._last)
        if len(self._waiting) == 1:
            self._expect_nothing()
            self._start(self._last)

    def on_body(self, data: bytes) -> None:
        """A piece of a body."""
        if self._last is not None:
            self._last.take(data)

    def on_message_complete(self) -> None:
        """The end of a request, unless the parser takes what follows for another protocol."""
        if self._last is not None and not self._offered:
            self._last.end()

    def _check_head(self, method: str, version: str) -> None:
        """Refuse what the parser lets through and two readers could understand in two ways."""
        if version not in ("1.0", "1.1"):
            raise _Refused(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        hosts = sum(name == b"host" for name, _ in self._headers)
        if hosts > 1 or (hosts == 0 and version == "1.1") or not self._target.isascii() or method == "CONNECT":
            raise _Refused(HTTPStatus.BAD_REQUEST)
        codings = [value.lower() for name, value in self._headers if name == b"transfer-encoding"]
        if codings and (codings != [b"chunked"] or version == "1.0"):
            raise _Refused(HTTPStatus.NOT_IMPLEMENTED)

    def _start(self, exchange: Exchange) -> None:
        task = self._loop.create_task(exchange.run(self._config.loaded_app))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def answered(self, exchange: Exchange) -> None:
        """An answer is sent: go on with the next request, or wait for one, or close."""
        self._state.total_requests += 1
        self._waiting.popleft()
        if not exchange.whole:
            self._linger()
        elif not exchange.keep_alive:
            self.transport.close()
        elif self._waiting:
            self._start(self._waiting[0])
        elif self._deaf:
            self._linger()
        elif not self.transport.is_closing():
            self._last = None
            self._expect(self._config.timeout_keep_alive)
            self.resume()

    def stop_listening(self) -> None:
        """What still arrives means nothing: the connection ends with the answer under way."""
        self._deaf = True

    def pause(self) -> None:
        """Receive no more for now."""
        if not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Receive again."""
        if self._paused and len(self._waiting) <= 1:
            self._paused = False
            self.transport.resume_reading()

    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """What uvicorn puts into every answer: the date."""
        return list(self._state.default_headers)

    def _refuse(self, status: HTTPStatus) -> None:
        """Answer bytes that are no request, unless an answer is under way, which is then the last one."""
        _log.warning("no request", extra={"fields": {"status": int(status)}})
        self._deaf = True
        broken = self._last if self._last is not None and not self._last.whole else None
        if broken is not None and broken is self._waiting[0] and not broken.started:
            self._waiting.clear()
        elif self._waiting:
            if broken is not None and broken is not self._waiting[0]:
                self._waiting.pop()
            elif broken is not None:
                broken.leave()
            return
        document = {
            "error": status.phrase,
            "code": "bad_request",
            "hint": "speak HTTP/1.1, see docs/service-wire.md",
        }
        body = json.dumps(document).encode()
        head = f"HTTP/1.1 {int(status)} {status.phrase}\r\ncontent-type: application/json\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        if broken is not None:
            broken.leave()
        self._linger()

    def _linger(self) -> None:
        """End our side, and read on for a moment: closed at once, the answer could be lost to bytes that are unread."""
        self._deaf = True
        self._waiting.clear()
        if not self.transport.is_closing():
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self._expect(_LINGER_S)
            self.resume()

    def _expect(self, seconds: float) -> None:
        self._expect_nothing()
        self._deadline = self._loop.call_later(seconds, self._end)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()
