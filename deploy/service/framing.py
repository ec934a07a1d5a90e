"""Frames between the server and its workers: a JSON header and a payload, nothing that could be executed.

A worker handles bytes from outside, so the server trusts what comes back from one no more than it must: JSON of
bounded size, never a pickle.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

__all__ = ["LENGTHS_BYTES", "FrameError", "encode_frame", "read_header", "read_lengths", "receive_frame"]

_LENGTHS = struct.Struct("<IQ")
LENGTHS_BYTES = _LENGTHS.size
"""What a frame begins with: the lengths of its two parts."""
_MAX_HEADER = 1 << 20
_MAX_ARCHIVE = 1 << 34
_MAX_ANSWER = 1 << 28


class FrameError(ConnectionError):
    """The other side is gone, or speaks nonsense."""


def encode_frame(header: Mapping[str, Any], payload: bytes | memoryview = b"") -> list[bytes | memoryview]:
    """Parts of one frame, in order, ready for ``writelines``."""
    head = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    return [_LENGTHS.pack(len(head), len(payload)), head, payload]


def receive_frame(connection: socket.socket) -> tuple[dict[str, Any], bytearray]:
    """Read one frame in a worker, blocking; raises :class:`FrameError` at the server's end."""
    head_bytes, payload_bytes = read_lengths(_receive(connection, LENGTHS_BYTES), max_payload=_MAX_ARCHIVE)
    header = read_header(_receive(connection, head_bytes))
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


def read_lengths(data: bytes | bytearray, *, max_payload: int = _MAX_ANSWER) -> tuple[int, int]:
    """Lengths of header and payload, in bytes; raises :class:`FrameError` beyond the bounds."""
    head_bytes, payload_bytes = _LENGTHS.unpack(data)
    if head_bytes > _MAX_HEADER or payload_bytes > max_payload:
        raise FrameError(f"a frame of {head_bytes} + {payload_bytes} bytes")
    return head_bytes, payload_bytes


def read_header(data: bytes | bytearray) -> dict[str, Any]:
    """A frame's header; raises :class:`FrameError` where it is no JSON object."""
    try:
        header = json.loads(data)
    except ValueError:
        raise FrameError("a header that is not JSON") from None
    if not isinstance(header, dict):
        raise FrameError("a header that is no object")
    return header
