"""The server's end of the socket to one worker: one frame out, one frame back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from deploy.service.framing import LENGTHS_BYTES, FrameError, encode_frame, read_header, read_lengths

__all__ = ["Link"]


class Link(asyncio.BufferedProtocol):
    """A worker to talk to. A worker handles bytes from outside: whatever comes unasked or malformed ends the link."""

    def __init__(self) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[dict[str, Any], bytes]] | None = None
        self._restart()

    def _restart(self) -> None:
        self._head_bytes: int | None = None
        self._frame = bytearray(LENGTHS_BYTES)
        self._room = memoryview(self._frame)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The socket is ready."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """The worker is gone."""
        self._fail(FrameError("the worker is gone"))

    def tell(self, header: Mapping[str, Any]) -> None:
        """Send a frame that is not answered."""
        assert self._transport is not None
        self._transport.writelines(encode_frame(header))

    def ask(
        self, header: Mapping[str, Any], payload: bytes | memoryview
    ) -> asyncio.Future[tuple[dict[str, Any], bytes]]:
        """Send a frame; the future is the answer's header and payload, or :class:`FrameError` where there is none."""
        assert self._answer is None and self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        if self.closed.done():
            self._fail(FrameError("the worker is gone"))
        else:
            self._transport.writelines(encode_frame(header, payload))
        return self._answer

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Room for the rest of the lengths, or of the frame."""
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes came."""
        self._room = self._room[nbytes:]
        if self._room:
            return
        try:
            if self._answer is None:
                raise FrameError("an answer that nobody asked for")
            if self._head_bytes is None:
                self._head_bytes, payload_bytes = read_lengths(self._frame)
                self._frame = bytearray(self._head_bytes + payload_bytes)
                self._room = memoryview(self._frame)
                return
            header = read_header(self._frame[: self._head_bytes])
        except FrameError as error:
            self.close()
            self._fail(error)
            return
        answer, self._answer = self._answer, None
        payload = bytes(memoryview(self._frame)[self._head_bytes :])
        self._restart()
        if not answer.done():
            answer.set_result((header, payload))

    def _fail(self, error: FrameError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        if not self.closed.done():
            self.closed.set_result(None)
