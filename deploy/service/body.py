"""Reading bodies: bounded in bytes, in time and in memory, and always read before an answer is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request

from deploy.errors import DeployError, WireError
from deploy.service.exchange import RECEIVE_INTO
from deploy.service.refusals import overloaded

__all__ = ["Body", "MemoryBudget"]

_DROP_S = 5.0


class MemoryBudget:
    """Bytes of bodies that may be held at once; the next body is told to come back."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0

    def take(self, size: int) -> None:
        """Reserve; raises :class:`ServiceError` (429)."""
        if self.used_bytes + size > self.total_bytes and self.used_bytes:
            raise overloaded(f"{self.used_bytes} bytes of requests are under way, {self.total_bytes} is the bound")
        self.used_bytes += size

    def give_back(self, size: int) -> None:
        """Release what was taken."""
        self.used_bytes -= size


class Body:
    """The body of one request.

    Parameters
    ----------
    cap_bytes : refuse more, by the declared length where there is one.
    pause_s : longest wait for the next bytes.
    total_s : longest time for all of it.
    remedy : what a sender of more should do.
    """

    def __init__(self, request: Request, *, cap_bytes: int, pause_s: float, total_s: float, remedy: str) -> None:
        self._request = request
        self._cap_bytes = cap_bytes
        self._pause_s = pause_s
        self._total_s = total_s
        self._remedy = remedy
        self._stream = request.stream()
        self._ended = False
        declared = request.headers.get("content-length")  # never beside chunks: the connection refuses both
        self.declared = int(declared) if declared is not None and declared.isdigit() else None

    def lower_cap(self, cap_bytes: int) -> None:
        """Lower the cap once it is known whose body this is."""
        self._cap_bytes = min(self._cap_bytes, cap_bytes)

    def check_encoding(self) -> None:
        """Raise :class:`WireError` (415) for a compressed body: ciphertexts do not compress, and what swells is a risk."""
        if self._request.headers.get("content-encoding", "identity") != "identity":
            raise WireError(
                "the body has a Content-Encoding",
                code="unsupported_encoding",
                http_status=415,
                hint="send it as it is, without compression",
            )

    def check_length(self) -> None:
        """Raise :class:`WireError` (413) where the declared length is over the cap."""
        if self.declared is not None and self.declared > self._cap_bytes:
            raise self._too_large()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body, piece by piece.

        Raises
        ------
        WireError : 413 over the cap, 408 too slow.
        ClientDisconnect : the caller went away.
        """
        self.check_length()
        loop = asyncio.get_running_loop()
        end = loop.time() + self._total_s
        size = 0
        while True:
            try:
                async with asyncio.timeout_at(min(end, loop.time() + self._pause_s)):
                    chunk = await anext(self._stream, None)
            except TimeoutError:
                self._ended = True
                raise self._too_slow() from None
            except ClientDisconnect:
                self._ended = True
                raise
            if chunk is None:
                self._ended = True
                return
            size += len(chunk)
            if size > self._cap_bytes:
                raise self._too_large()
            yield chunk

    async def read(self) -> bytearray:
        """The body as a whole; received straight into place where its length is declared and the server can do that."""
        offered = self._request.scope.get("extensions", {}).get(RECEIVE_INTO)
        if offered is not None and self.declared is not None:
            self.check_length()
            self._ended = True
            data = bytearray(self.declared)
            try:
                await offered["call"](memoryview(data), pause_s=self._pause_s, total_s=self._total_s)
            except TimeoutError:
                raise self._too_slow() from None
            return data
        data = bytearray()
        async for chunk in self.chunks():
            data += chunk
        return data

    async def drop(self) -> None:
        """Read and forget what is left, within the cap and a few seconds, so that the sender gets to see the answer."""
        if self._ended or (self.declared is not None and self.declared > self._cap_bytes):
            return
        try:
            async with asyncio.timeout(_DROP_S):
                async for _ in self.chunks():
                    pass
        except (TimeoutError, DeployError, ClientDisconnect):
            return

    def _too_slow(self) -> WireError:
        return WireError(
            f"no byte for {self._pause_s:g} s, or not all of the body within {self._total_s:g} s",
            code="body_timeout",
            http_status=408,
            hint="send it faster, or ask the operator to raise body_timeout_s",
        )

    def _too_large(self) -> WireError:
        return WireError(
            f"the body is larger than {self._cap_bytes} bytes",
            code="body_too_large",
            http_status=413,
            hint=self._remedy,
        )
