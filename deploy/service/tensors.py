"""V2 requests and answers as bytes: JSON, and the binary tensor extension.

Only shapes and sizes are read here; contents stay opaque. Nothing from a body is quoted in an error.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deploy.errors import WireError
from deploy.target import Signature, Tensor

__all__ = ["InferRequest", "InferResponse", "Query", "encode_answer", "parse_query"]

_DTYPES = {
    "BOOL": "?",
    **{f"UINT{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
}
_MAX_JSON_HEADER = 1 << 16
_MAX_ELEMENTS = 64
_LENGTH = struct.Struct("<I")
Parameters = dict[str, bool | int | float | str]


class InputTensor(BaseModel):
    """One input; `data` where it is not binary."""

    name: str = Field(max_length=200)
    datatype: str = Field(max_length=20)
    shape: list[int] = Field(max_length=8)
    parameters: Parameters = {}
    data: list[Any] | None = None


class OutputWish(BaseModel):
    """One output that the caller asks for; ``parameters.binary_data`` asks for bytes."""

    name: str = Field(max_length=200)
    parameters: Parameters = {}


class InferRequest(BaseModel):
    """The JSON part of an inference request."""

    model_config = ConfigDict(json_schema_extra={"description": "V2 inference request, JSON part."})

    id: str | None = Field(default=None, max_length=200)
    parameters: Parameters = {}
    inputs: list[InputTensor] = Field(min_length=1, max_length=1)
    outputs: list[OutputWish] = Field(default=[], max_length=1)


class OutputTensor(BaseModel):
    """One output."""

    name: str
    datatype: str
    shape: list[int]
    parameters: Parameters = {}
    data: list[Any] | None = None


class InferResponse(BaseModel):
    """The JSON part of an answer."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OutputTensor]


@dataclass(frozen=True, slots=True)
class Query:
    """A request that fits the model's signature.

    Parameters
    ----------
    elements : what goes to the role, one worker request each.
    binary : whether the answer is wanted in binary.
    """

    id: str | None
    parameters: Mapping[str, bool | int | float | str]
    elements: tuple[bytes | memoryview, ...]
    binary: bool


def parse_query(body: bytes | bytearray, header_length: str | None, signature: Signature) -> Query:
    """Check a body against a model's signature.

    Parameters
    ----------
    header_length : the header ``Inference-Header-Content-Length``, or None where the body is all JSON.

    Raises
    ------
    WireError : bad_header_length, bad_json, bad_tensor, binary_required.
    """
    view = memoryview(body)
    split = len(view) if header_length is None else _parse_length(header_length, len(view))
    request = _parse_json(bytes(view[:split]))
    tensor = request.inputs[0]
    for wish in request.outputs:
        if wish.name != signature.output.name:
            raise _bad_tensor("the output asked for is not the model's")
    elements = _read_elements(tensor, view[split:], header_length is not None, signature.input)
    wanted = request.outputs[0].parameters.get("binary_data") if request.outputs else None
    if wanted is None:
        wanted = request.parameters.get("binary_data_output", False)
    binary = signature.output.datatype == "BYTES" or wanted is True
    return Query(request.id, request.parameters, elements, binary)


def _parse_length(text: str, total: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 12 or int(text) > min(total, _MAX_JSON_HEADER):
        raise WireError(
            f"Inference-Header-Content-Length must be 0 to {min(total, _MAX_JSON_HEADER)} for this body",
            code="bad_header_length",
            http_status=400,
            hint="send the length of the JSON part in bytes",
        )
    return int(text)


def _parse_json(data: bytes) -> InferRequest:
    try:
        return InferRequest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        known = [part for part in first["loc"] if isinstance(part, int) or part in _FIELDS]
        where = ".".join(str(part) for part in known) or "the JSON part"
        cause = "is no JSON" if first["type"] == "json_invalid" else f"does not fit ({first['type']})"
        raise WireError(
            f"{where} {cause}",
            code="bad_json",
            http_status=400,
            hint="follow the V2 protocol, docs/service-wire.md",
        ) from None


_FIELDS = {"id", "parameters", "inputs", "outputs", "name", "datatype", "shape", "data"}


def _bad_tensor(cause: str) -> WireError:
    return WireError(
        cause, code="bad_tensor", http_status=400, hint="read the model's metadata, GET /v2/models/{m}"
    )


def _read_elements(
    tensor: InputTensor, rest: memoryview, has_binary: bool, expected: Tensor
) -> tuple[bytes | memoryview, ...]:
    if tensor.name != expected.name or tensor.datatype != expected.datatype:
        raise _bad_tensor(f"the input must be {expected.name}, {expected.datatype}")
    size = tensor.parameters.get("binary_data_size")
    if size is not None and (
        isinstance(size, bool) or size != len(rest) or not has_binary or tensor.data is not None
    ):
        raise _bad_tensor(f"binary_data_size does not fit the {len(rest)} bytes after the JSON part")
    if size is None and len(rest):
        raise _bad_tensor(f"{len(rest)} bytes after the JSON part belong to no tensor")
    if expected.datatype == "BYTES":
        if size is None:
            raise WireError(
                "this tensor cannot be sent as JSON",
                code="binary_required",
                http_status=400,
                hint="use the binary tensor extension: binary_data_size and Inference-Header-Content-Length",
            )
        return _split_bytes(tensor.shape, rest)
    _check_shape(tensor.shape, expected)
    if size is None:
        return (_pack_numbers(tensor, expected),)
    if len(rest) != math.prod(tensor.shape) * np.dtype(_DTYPES[expected.datatype]).itemsize:
        raise _bad_tensor(f"{len(rest)} bytes do not make the shape")
    return (rest,)


def _split_bytes(shape: Sequence[int], data: memoryview) -> tuple[memoryview, ...]:
    if len(shape) != 1 or not 1 <= shape[0] <= _MAX_ELEMENTS:
        raise _bad_tensor(f"the shape of a BYTES tensor is [n], n from 1 to {_MAX_ELEMENTS}")
    elements: list[memoryview] = []
    while data:
        if len(data) < _LENGTH.size or len(data) - _LENGTH.size < (length := _LENGTH.unpack_from(data)[0]):
            raise _bad_tensor(f"element {len(elements)} is cut short")
        elements.append(data[_LENGTH.size : _LENGTH.size + length])
        data = data[_LENGTH.size + length :]
        if len(elements) > shape[0]:
            break
    if len(elements) != shape[0]:
        raise _bad_tensor(f"{len(elements)} elements or more for shape [{shape[0]}]")
    return tuple(elements)


def _check_shape(shape: Sequence[int], expected: Tensor) -> None:
    fits = len(shape) == len(expected.shape) and all(
        found == wanted or (wanted == -1 and 1 <= found <= 1 << 24)
        for found, wanted in zip(shape, expected.shape, strict=True)
    )
    if not fits:
        raise _bad_tensor(f"the shape must be {list(expected.shape)}, -1 meaning any")


def _pack_numbers(tensor: InputTensor, expected: Tensor) -> bytes:
    count = math.prod(tensor.shape)
    found = np.asarray(tensor.data, dtype=object).ravel()
    if not set(map(type, found)) <= {int, float}:
        raise _bad_tensor("data is no array of numbers: no texts, truth values, or rows of different lengths")
    if found.size != count:
        raise _bad_tensor(f"data must hold {count} numbers for this shape")
    try:
        with np.errstate(over="ignore"):
            values = found.astype(_DTYPES[expected.datatype])
    except (ValueError, OverflowError):
        raise _bad_tensor(f"data has numbers that {expected.datatype} does not hold") from None
    if not np.isfinite(values).all():
        raise _bad_tensor(f"data has numbers that {expected.datatype} does not hold")
    return values.tobytes()


def encode_answer(
    query: Query, answers: Sequence[bytes], *, model: str, version: str, signature: Signature
) -> tuple[bytes, int | None]:
    """Body of an answer, and the length of its JSON part where binary parts follow."""
    output = signature.output
    tensor: dict[str, Any] = {"name": output.name, "datatype": output.datatype}
    data = b""
    if output.datatype == "BYTES":
        data = b"".join(part for answer in answers for part in (_LENGTH.pack(len(answer)), answer))
        tensor["shape"] = [len(answers)]
    else:
        values = np.frombuffer(answers[0], _DTYPES[output.datatype])
        tensor["shape"] = [values.size // max(1, math.prod(output.shape[1:])), *output.shape[1:]]
        if query.binary:
            data = answers[0]
        else:
            tensor["data"] = values.tolist()
    if query.binary:
        tensor["parameters"] = {"binary_data_size": len(data)}
    document: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": [tensor]}
    if query.id is not None:
        document["id"] = query.id
    head = json.dumps(document, separators=(",", ":")).encode()
    return head + data, len(head) if query.binary else None
