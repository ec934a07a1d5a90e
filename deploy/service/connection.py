"""Connections that must send the head of a request in time, so that none is held open by a slow or silent caller."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["TimedConnection"]


class TimedConnection(H11Protocol):  # type: ignore[misc]
    """uvicorn's connection, closed where the head of a request takes longer than ``timeout_keep_alive`` seconds.

    uvicorn itself times only the pause after an answer: a caller that has begun a head, or never sends a byte, could
    stay for ever. Bodies are timed by :class:`deploy.service.body.Body`.
    """

    _head_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """A caller is there: wait for a head."""
        super().connection_made(transport)
        self._expect_head()

    def on_response_complete(self) -> None:
        """An answer is sent: wait for the next head."""
        super().on_response_complete()
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The caller is gone."""
        self._expect_nothing()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._expect_nothing()
        self._head_deadline = self.loop.call_later(self.timeout_keep_alive, self._close_without_head)

    def _expect_nothing(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _close_without_head(self) -> None:
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()
