"""Files of named arrays: npz and safetensors."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError

__all__ = ["read_npz", "read_safetensors"]

_MAX_HEADER = 100 << 20

_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "<i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "<u1",
    "BOOL": "?",
}


def read_npz(path: Path) -> dict[str, Array]:
    """Arrays of a npz file; object arrays are refused by numpy itself."""
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def read_safetensors(path: Path) -> dict[str, Array]:
    """Arrays of a safetensors file, bfloat16 included, checked against the file's length."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        if len(head) < 8:
            raise LoadError("no safetensors header")
        (length,) = struct.unpack("<Q", head)
        if length > min(_MAX_HEADER, size - 8):
            raise LoadError(f"a header of {length:,} bytes in a file of {size:,}")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise LoadError(f"the header is no JSON ({error})") from None
    if not isinstance(header, dict):
        raise LoadError("the header is no JSON object")
    data = np.memmap(path, np.uint8, mode="r", offset=8 + length) if size > 8 + length else np.zeros(0, np.uint8)
    return {name: _view(name, entry, data) for name, entry in header.items() if name != "__metadata__"}


def _view(name: str, entry: object, data: Array) -> Array:
    if not isinstance(entry, dict):
        raise LoadError("its header entry is no object", place=f"tensor {name}")
    kind, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    is_sound = (
        isinstance(shape, list)
        and isinstance(offsets, list)
        and len(offsets) == 2
        and all(isinstance(number, int) and number >= 0 for number in (*shape, *offsets))
    )
    if not is_sound or not isinstance(shape, list) or not isinstance(offsets, list):
        raise LoadError(f"shape {shape}, offsets {offsets}", place=f"tensor {name}")
    start, stop = offsets
    width = 2 if kind == "BF16" else np.dtype(_DTYPES[kind]).itemsize if kind in _DTYPES else 0
    if not width:
        raise LoadError(f"is of type {kind}", place=f"tensor {name}", remedy="save it as F32")
    if stop - start != math.prod(shape) * width or stop > data.size:
        raise LoadError(
            f"shape {shape} of {kind} needs {math.prod(shape) * width:,} bytes, "
            f"offsets {offsets} of {data.size:,} were given",
            place=f"tensor {name}",
        )
    raw = data[start:stop]
    if kind == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return np.asarray(raw.view(_DTYPES[str(kind)])).reshape(shape)
