"""An ONNX file's bytes: parsed within limits, with the weights that lie beside it.

Nothing outside the model's folder is read; every size is checked against the bytes that are there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, numpy_helper

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders.onnx.wire import detach_weights

__all__ = ["read_model", "read_tensor"]

_DETACHED = 8 << 20
"""Size from which large weights are read from the file when they are needed, not parsed."""

MAX_FILE_BYTES = (1 << 31) - 1
"""Largest message that protobuf can hold."""


def read_model(path: Path) -> onnx.ModelProto:
    """Parse the file.

    Raises
    ------
    LoadError : too large, not a protobuf message, or a message without a graph.
    """
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise LoadError(
            f"{size:,} bytes, an ONNX file holds at most {MAX_FILE_BYTES:,}",
            remedy="export with external data",
        )
    with path.open("rb") as file:
        if file.read(1) == b"\0":  # no tag of protobuf is 0: spares the reading of a file of holes
            raise LoadError(
                "not an ONNX model: it starts with a zero byte",
                remedy="export it again; check that the copy is complete",
            )
    model = onnx.ModelProto()
    small = detach_weights(path) if size > _DETACHED and not path.is_symlink() else None
    try:
        model.ParseFromString(path.read_bytes() if small is None else small)
    except (DecodeError, RecursionError, ValueError) as error:
        raise LoadError(
            f"not an ONNX model, or damaged ({error})", remedy="export it again; check that the copy is complete"
        ) from None
    if not model.HasField("graph") or not model.graph.node:
        raise LoadError("the file holds no graph", remedy="export it again; check that the copy is complete")
    return model


def read_tensor(tensor: TensorProto, folder: Path) -> Array:
    """Turn a tensor into an array of its own type, reading external data from `folder` alone."""
    place = f"tensor {tensor.name}" if tensor.name else "a tensor"
    dims = tuple(tensor.dims)
    if any(length < 0 for length in dims):
        raise LoadError(f"shape {list(dims)}", place=place)
    entries = math.prod(dims)
    try:
        if tensor.data_location == TensorProto.EXTERNAL:
            return _read_external(tensor, dims, folder)
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
        if tensor.HasField("raw_data"):
            raw = tensor.raw_data
            if tensor.data_type in _PACKED:
                return np.asarray(numpy_helper.to_array(tensor))
            if len(raw) != entries * dtype.itemsize:
                needed = entries * dtype.itemsize
                raise LoadError(f"shape {list(dims)} needs {needed:,} bytes, there are {len(raw):,}", place=place)
            return np.frombuffer(raw, dtype.newbyteorder("<")).reshape(dims)
        return np.asarray(numpy_helper.to_array(tensor)).reshape(dims)
    except LoadError:
        raise
    except (ValueError, TypeError, KeyError, OverflowError, AttributeError) as error:
        raise LoadError(f"cannot be read: {' '.join(str(error).split())[:200]}", place=place) from None


_PACKED = {
    value
    for name, value in TensorProto.DataType.items()
    if name in ("INT4", "UINT4", "INT2", "UINT2", "FLOAT4E2M1")
}


def _read_external(tensor: TensorProto, dims: tuple[int, ...], folder: Path) -> Array:
    place = f"tensor {tensor.name}"
    fields: Mapping[str, str] = {entry.key: entry.value for entry in tensor.external_data}
    location = fields.get("location", "")
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)).newbyteorder("<")
    path = _locate(location, folder, place)
    offset = int(fields.get("offset", 0))
    expected = math.prod(dims) * dtype.itemsize
    length = int(fields.get("length", expected))
    held = path.stat().st_size
    if offset < 0 or length != expected or offset + expected > held:
        raise LoadError(
            f"{length:,} bytes from {offset:,} of {location}, which holds {held:,}; "
            f"shape {list(dims)} of {dtype} needs {expected:,}",
            place=place,
            remedy="copy the weight file again",
        )
    if not expected:
        return np.zeros(dims, dtype)
    return np.memmap(path, dtype, mode="r", offset=offset, shape=dims)


def _locate(location: str, folder: Path, place: str) -> Path:
    relative = Path(location)
    path = folder / relative
    outside = LoadError(
        f"external data at {location!r} lies outside the model's folder",
        place=place,
        remedy="put the weight file beside the model and save it with a relative path",
    )
    if not location or "\0" in location or relative.is_absolute() or ".." in relative.parts:
        raise outside
    if not path.is_file():
        raise LoadError(
            f"external data file {location} is missing",
            place=place,
            remedy=f"copy it into {folder} beside the model, or export with the weights inside",
        )
    if not path.resolve().is_relative_to(folder.resolve()):
        raise outside
    return path
