"""One request and its answer on a connection, as ASGI has them; and bodies received where they are wanted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Scope

from deploy.service.journal import describe_exception

if TYPE_CHECKING:
    from deploy.service.connection import Connection

__all__ = ["RECEIVE_INTO", "Exchange"]

RECEIVE_INTO = "deploy.receive_into"
"""The ASGI extension under which :meth:`Exchange.receive_into` is offered."""

_log = logging.getLogger(__name__)
_STATUS_LINES: dict[int, bytes] = {
    status: f"HTTP/1.1 {int(status)} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_STATUS_LINES[499] = b"HTTP/1.1 499 Caller Left\r\n"
_BODILESS = (204, 304)


class Exchange:
    """What the application sees of one request, and what it answers.

    Parameters
    ----------
    keep_alive : whether the connection serves another request afterwards.
    """

    def __init__(
        self, connection: Connection, loop: asyncio.AbstractEventLoop, scope: Scope, *, keep_alive: bool
    ) -> None:
        scope["extensions"] = {RECEIVE_INTO: {"call": self.receive_into}}
        self._connection = connection
        self._loop = loop
        self._scope = scope
        self._wants_continue = (b"expect", b"100-continue") in scope["headers"]
        self._news: asyncio.Future[None] | None = None
        self._gone = self._told = self._answered = self._late = False
        self._head = b""
        self._heard_at = 0.0
        self._pace: asyncio.TimerHandle | None = None
        self.keep_alive = keep_alive
        self.received = bytearray()
        self.room: memoryview | None = None
        self.whole = self.started = False

    def take(self, data: bytes) -> None:
        """A piece of the body came through the parser."""
        self.received += data
        self._wake()

    def fill(self, count: int) -> bool:
        """So many bytes came into :attr:`room`; say whether the body is whole now."""
        assert self.room is not None
        self.room = self.room[count:]
        self._heard_at = self._loop.time()
        if not self.room:
            self.end()
        return self.whole

    def end(self) -> None:
        """The body is whole."""
        self.whole, self.room = True, None
        self._wake()

    def leave(self) -> None:
        """The caller is gone."""
        self._gone, self.room = True, None
        self._wake()

    async def run(self, app: ASGIApp) -> None:
        """Have the application answer; where it does not, the connection breaks."""
        try:
            await app(self._scope, self.receive, self.send)
        except Exception as error:  # noqa: BLE001  the HTTP boundary
            _log.error("request was given up", extra={"fields": {"exception": describe_exception(error)}})
        finally:
            if not self._answered and not self._gone:
                self._connection.transport.abort()

    async def receive(self) -> Message:
        """ASGI's ``receive``."""
        while not self._gone and not self._answered:
            if self.received or (self.whole and not self._told):
                self._told = self.whole
                message = {"type": "http.request", "body": bytes(self.received), "more_body": not self.whole}
                self.received.clear()
                return message
            await self._hear()
        return {"type": "http.disconnect"}

    async def receive_into(self, buffer: memoryview, *, pause_s: float, total_s: float) -> None:
        """Receive a body of the declared length, none of which was asked for before, into a buffer of that length.

        Raises
        ------
        TimeoutError : `pause_s` without a byte, or `total_s` without all of them.
        ClientDisconnect : the caller went away.
        """
        there = len(self.received)
        buffer[:there] = self.received
        self.received.clear()
        self._told = True
        if self.whole:
            return
        self.room = buffer[there:]
        self._heard_at = self._loop.time()
        self._check_pace(pause_s, self._heard_at + total_s)
        try:
            while not self.whole:
                if self._gone:
                    raise ClientDisconnect
                if self._late:
                    raise TimeoutError
                await self._hear()
        finally:
            if self._pace is not None:
                self._pace.cancel()
            if not self.whole:
                self.room = None
                self._connection.stop_listening()

    async def send(self, message: Message) -> None:
        """ASGI's ``send``; a head leaves together with the first piece of its body."""
        await self._connection.writable.wait()
        if self._gone:
            return
        if message["type"] == "http.response.start":
            self.started, self._wants_continue = True, False
            self._head = self._write_head(message["status"], message["headers"])
            return
        body = b"" if self._scope["method"] == "HEAD" else message.get("body", b"")
        head, self._head = self._head, b""
        self._connection.transport.writelines((head, body))
        if not message.get("more_body", False):
            self._answered = True
            self._wake()
            self._connection.answered(self)

    def _write_head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        pairs = [*self._connection.default_headers(), *headers]
        is_framed = status in _BODILESS or any(name == b"content-length" for name, _ in pairs)
        if not self.whole or not is_framed:  # what is still on its way, or the end of the body, is told by closing
            self.keep_alive = False
        if not self.keep_alive:
            pairs.append((b"connection", b"close"))
        lines = [part for name, value in pairs for part in (name, b": ", value, b"\r\n")]
        head = b"".join((_STATUS_LINES[status], *lines, b"\r\n"))
        if head.count(b"\r") != len(pairs) + 2 or head.count(b"\n") != len(pairs) + 2:
            raise ValueError("a header with a line break")
        return head

    async def _hear(self) -> None:
        """Wait for more of the request, or for its caller to leave."""
        if self._wants_continue:
            self._wants_continue = False
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._connection.resume()
        self._news = self._loop.create_future()
        try:
            await self._news
        finally:
            self._news = None

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _check_pace(self, pause_s: float, end: float) -> None:
        due = min(end, self._heard_at + pause_s)
        if self._loop.time() < due:
            self._pace = self._loop.call_at(due, self._check_pace, pause_s, end)
        else:
            self._late = True
            self._wake()
