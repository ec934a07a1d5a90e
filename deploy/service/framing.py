"""Frames between the server and its workers: a JSON header and a payload, nothing that could be executed.

A worker handles bytes from outside, so the server trusts what comes back from one no more than it must: JSON of
bounded size, never a pickle.
"""

from __future__ import annotations

import json
import socket
import struct
from asyncio import StreamReader
from collections.abc import Mapping
from typing import Any

__all__ = ["FrameError", "encode_frame", "read_frame", "receive_frame"]

_LENGTHS = struct.Struct("<IQ")
_MAX_HEADER = 1 << 20
_MAX_PAYLOAD = 1 << 34


class FrameError(ConnectionError):
    """The other side is gone, or speaks nonsense."""


def encode_frame(header: Mapping[str, Any], payload: bytes | memoryview = b"") -> list[bytes | memoryview]:
    """Parts of one frame, in order, ready for ``writelines``."""
    head = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    return [_LENGTHS.pack(len(head), len(payload)), head, payload]


async def read_frame(reader: StreamReader) -> tuple[dict[str, Any], bytes]:
    """Read one frame from a worker; raises :class:`FrameError` at its end."""
    try:
        head_bytes, payload_bytes = _lengths(await reader.readexactly(_LENGTHS.size))
        header = _header(await reader.readexactly(head_bytes))
        return header, await reader.readexactly(payload_bytes)
    except (EOFError, OSError) as error:
        raise FrameError(f"the worker is gone: {type(error).__name__}") from None


def receive_frame(connection: socket.socket) -> tuple[dict[str, Any], bytearray]:
    """Read one frame in a worker, blocking; raises :class:`FrameError` at the server's end."""
    head_bytes, payload_bytes = _lengths(_receive(connection, _LENGTHS.size))
    header = _header(_receive(connection, head_bytes))
    return header, _receive(connection, payload_bytes)


def _receive(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise FrameError("the server is gone")
        view = view[count:]
    return data


def _lengths(data: bytes | bytearray) -> tuple[int, int]:
    head_bytes, payload_bytes = _LENGTHS.unpack(data)
    if head_bytes > _MAX_HEADER or payload_bytes > _MAX_PAYLOAD:
        raise FrameError(f"a frame of {head_bytes} + {payload_bytes} bytes")
    return head_bytes, payload_bytes


def _header(data: bytes | bytearray) -> dict[str, Any]:
    try:
        header = json.loads(data)
    except ValueError:
        raise FrameError("a header that is not JSON") from None
    if not isinstance(header, dict):
        raise FrameError("a header that is no object")
    return header
