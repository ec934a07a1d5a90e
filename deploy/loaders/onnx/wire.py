"""Large weights left where they lie: a protobuf message split into a small one and stretches of the file.

Parsing a message copies every weight, and reading the file copied it once before. This module walks the wire format
(tag, length, payload) down to ``ModelProto.graph.initializer.raw_data``, and writes large payloads as what ONNX calls
external data: the file itself, an offset and a length. What it does not understand it leaves to protobuf.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from onnx import StringStringEntryProto, TensorProto

__all__ = ["detach_weights"]

_GRAPH, _INITIALIZER, _RAW_DATA, _LOCATION = 7, 5, 9, 14
_LENGTH_DELIMITED = 2
_SIZES = {1: 8, 5: 4}
_LARGE = 1 << 20
_MAX_FIELDS = 200_000
"""Fields that are walked; protobuf itself is faster with a message of many small ones."""

Span = tuple[int, int]


def detach_weights(path: Path) -> bytes | None:
    """The message without large weights, or None where the bytes are no such message."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _rewrite(data, (0, len(data)), (_GRAPH, _INITIALIZER), path.name)
        except (ValueError, IndexError):
            return None


def _rewrite(data: mmap.mmap, span: Span, way: tuple[int, ...], location: str) -> bytes:
    """Copy a message; fields along `way` are rewritten, the tensors at its end detached."""
    parts: list[bytes] = []
    for number, kind, whole, payload in _fields(data, span):
        if not way and number == _LOCATION:
            raise ValueError("a tensor with external data")
        if kind != _LENGTH_DELIMITED or number != (way[0] if way else _RAW_DATA):
            parts.append(data[whole[0] : whole[1]])
        elif way:
            inner = _rewrite(data, payload, way[1:], location)
            parts.append(_varint(number << 3 | kind) + _varint(len(inner)) + inner)
        elif payload[1] - payload[0] < _LARGE:
            parts.append(data[whole[0] : whole[1]])
        else:
            parts.append(_reference(location, payload))
    return b"".join(parts)


def _reference(location: str, payload: Span) -> bytes:
    """Fields of a TensorProto that say where its data lies."""
    fields = {"location": location, "offset": str(payload[0]), "length": str(payload[1] - payload[0])}
    tensor = TensorProto(data_location=TensorProto.EXTERNAL)
    tensor.external_data.extend(StringStringEntryProto(key=key, value=value) for key, value in fields.items())
    return bytes(tensor.SerializeToString())


def _fields(data: mmap.mmap, span: Span) -> Iterator[tuple[int, int, Span, Span]]:
    """Number, wire type, whole extent and payload of each field."""
    at, end = span
    count = 0
    while at < end:
        start, count = at, count + 1
        if count > _MAX_FIELDS:
            raise ValueError("too many fields")
        tag, at = _read_varint(data, at, end)
        kind = tag & 7
        if kind == _LENGTH_DELIMITED:
            length, at = _read_varint(data, at, end)
            stop = at + length
        elif kind == 0:
            _, stop = _read_varint(data, at, end)
        elif kind in _SIZES:
            stop = at + _SIZES[kind]
        else:
            raise ValueError(f"wire type {kind}")
        if stop > end:
            raise ValueError("a field that reaches beyond its message")
        yield tag >> 3, kind, (start, stop), (at, stop)
        at = stop


def _read_varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number that does not end")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
