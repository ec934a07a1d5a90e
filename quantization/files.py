"""A quantised network as files, and back.

=============  ====================================================================================================
ternary.json   shapes, grids, groups and the method of each layer; schema version
codes.bin      codes, plane after plane: base 3 for ternary, 4 bits up to 15 levels, int8 above
scales.bin     float32, little-endian, plane after plane
biases.bin     float32, little-endian, layer after layer
columns.bin    int8 exponents of the column factors (powers of two), layer after layer, where a layer has them
=============  ====================================================================================================

The lengths of the three binary files follow from ``ternary.json``; anything else is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import pairwise
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deploy.arrays import Array
from deploy.errors import BundleError
from quantization.network import Plane, QuantizedLayer, QuantizedMlp
from quantization.packing import pack_codes, packed_bytes, unpack_codes

__all__ = ["BIASES", "CODES", "COLUMNS", "NETWORK", "SCALES", "read_network", "stored_codes", "write_network"]

NETWORK, CODES, SCALES, BIASES = "ternary.json", "codes.bin", "scales.bin", "biases.bin"
COLUMNS = "columns.bin"
_SCHEMA: Literal[1] = 1
_MAX_WEIGHTS = 1 << 31


class _Plane(BaseModel):
    model_config = ConfigDict(extra="forbid")
    levels: int = Field(ge=1, le=127)
    group: int = Field(ge=1)
    support: list[int] | None = None


class _Layer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    method: str
    n_out: int = Field(ge=1)
    n_in: int = Field(ge=1)
    planes: list[_Plane] = Field(min_length=1, max_length=8)
    columns: bool = False


class _Network(BaseModel):
    model_config = ConfigDict(extra="forbid")
    schema_version: Literal[1] = _SCHEMA
    layers: list[_Layer] = Field(min_length=1)


def write_network(network: QuantizedMlp) -> dict[str, bytes]:
    """Write a network; the same network gives the same bytes."""
    document = _Network(
        layers=[
            _Layer(
                name=layer.name,
                method=layer.method,
                n_out=layer.shape[0],
                n_in=layer.shape[1],
                planes=[
                    _Plane(levels=plane.levels, group=plane.group, support=_support(plane))
                    for plane in layer.planes
                ],
                columns=layer.columns is not None,
            )
            for layer in network.layers
        ]
    )
    planes = [plane for layer in network.layers for plane in layer.planes]
    return {
        NETWORK: (json.dumps(document.model_dump(), indent=1) + "\n").encode(),
        CODES: b"".join(pack_codes(stored_codes(plane), plane.levels) for plane in planes),
        SCALES: b"".join(plane.scales.astype("<f4").tobytes() for plane in planes),
        BIASES: b"".join(layer.bias.astype("<f4").tobytes() for layer in network.layers),
        COLUMNS: b"".join(
            np.log2(layer.columns).astype(np.int8).tobytes()
            for layer in network.layers
            if layer.columns is not None
        ),
    }


def _support(plane: Plane) -> list[int] | None:
    """Columns that hold any code, where fewer than half do: the protected columns of a mixed layer."""
    columns = np.flatnonzero(plane.codes.any(axis=0))
    return columns.tolist() if 0 < 2 * len(columns) < plane.codes.shape[1] else None


def stored_codes(plane: Plane) -> Array:
    """The codes that the file holds: all, or those of the columns that have any."""
    columns = _support(plane)
    return plane.codes if columns is None else plane.codes[:, columns]


def read_network(files: Mapping[str, bytes]) -> QuantizedMlp:
    """Read what :func:`write_network` wrote; raises :class:`deploy.errors.BundleError` on anything else."""
    missing = [name for name in (NETWORK, CODES, SCALES, BIASES, COLUMNS) if name not in files]
    if missing:
        raise BundleError(f"{missing[0]} is missing")
    try:
        document = _Network.model_validate_json(files[NETWORK])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the top"
        raise BundleError(f"{first['msg']} at {where}", place=NETWORK) from None
    _check_shapes(document.layers)
    _check_lengths(document.layers, files)
    codes, scales, biases, columns = (BytesIO(files[name]) for name in (CODES, SCALES, BIASES, COLUMNS))
    layers = []
    for item in document.layers:
        planes = []
        for form in item.planes:
            width, groups = _stored_width(item, form), -(-item.n_in // form.group)
            size = item.n_out * width
            stored = unpack_codes(codes.read(packed_bytes(size, form.levels)), size, form.levels)
            values = np.zeros((item.n_out, item.n_in), dtype=np.int8)
            values[:, slice(None) if form.support is None else form.support] = stored.reshape(item.n_out, width)
            scale = _floats(scales.read(4 * item.n_out * groups), SCALES)
            if (scale < 0).any():
                raise BundleError(f"a negative scale in layer {item.name}", place=SCALES)
            planes.append(
                Plane(
                    values,
                    scale.reshape(item.n_out, groups),
                    form.levels,
                    form.group,
                )
            )
        bias = _floats(biases.read(4 * item.n_out), BIASES)
        factors = 2.0 ** np.frombuffer(columns.read(item.n_in), np.int8) if item.columns else None
        layers.append(QuantizedLayer(tuple(planes), bias, item.method, item.name, factors))
    return QuantizedMlp(tuple(layers))


def _check_shapes(layers: Sequence[_Layer]) -> None:
    if sum(item.n_out * item.n_in for item in layers) > _MAX_WEIGHTS:
        raise BundleError(f"more than {_MAX_WEIGHTS} weights", place=NETWORK)
    for first, second in pairwise(layers):
        if first.n_out != second.n_in:
            raise BundleError(
                f"layer {first.name} gives {first.n_out} values, the next takes {second.n_in}", place=NETWORK
            )
    for item in layers:
        for form in item.planes:
            support = [0] if form.support is None else form.support
            if not support or sorted(set(support)) != support or not 0 <= support[0] <= support[-1] < item.n_in:
                raise BundleError(f"a list of columns that are none of layer {item.name}", place=NETWORK)
            if form.group > item.n_in:
                raise BundleError(f"a group of {form.group} columns in a layer of {item.n_in}", place=NETWORK)


def _check_lengths(layers: Sequence[_Layer], files: Mapping[str, bytes]) -> None:
    expected = {
        CODES: sum(
            packed_bytes(item.n_out * _stored_width(item, form), form.levels)
            for item in layers
            for form in item.planes
        ),
        SCALES: sum(4 * item.n_out * -(-item.n_in // form.group) for item in layers for form in item.planes),
        BIASES: sum(4 * item.n_out for item in layers),
        COLUMNS: sum(item.n_in for item in layers if item.columns),
    }
    for name, size in expected.items():
        if len(files[name]) != size:
            raise BundleError(f"{len(files[name])} bytes, {NETWORK} calls for {size}", place=name)


def _stored_width(item: _Layer, form: _Plane) -> int:
    return item.n_in if form.support is None else len(form.support)


def _floats(data: bytes, place: str) -> Array:
    values = np.frombuffer(data, dtype="<f4").astype(np.float64)
    if not np.isfinite(values).all():
        raise BundleError("a value that is NaN or infinite", place=place)
    return np.asarray(values)
