"""torch.export archives (.pt2), read without torch: a JSON graph and raw tensors.

``torch.export.load`` unpickles weights, constants and example inputs with code allowed, and example inputs are
rows of the training data in many archives. This reader takes the graph from the JSON and tensors from their raw
bytes, and never opens the example inputs. Two layouts are read: the one with ``serialized_exported_program.json``
(PyTorch 2.1 to 2.6) and the archive with ``models/*.json`` (since 2.7).
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders.archive import Archive
from deploy.loaders.damage import one_line
from deploy.loaders.torch.program import Call, Program, Reference
from deploy.loaders.weights import check_size

__all__ = ["read_exported"]

_DTYPES: Mapping[int, str] = {
    1: "<u1",
    2: "<i1",
    3: "<i2",
    4: "<i4",
    5: "<i8",
    6: "<f2",
    7: "<f4",
    8: "<f8",
    12: "?",
    13: "bfloat16",
}
"""torch's ScalarType as torch.export numbers it."""


def read_exported(path: Path, limit: int) -> Program:
    """Read the graph and the tensors that it needs."""
    with Archive(path) as archive:
        legacy = archive.find("serialized_exported_program.json")
        if legacy is not None:
            document = _json(archive.read(legacy), legacy)
            tensors = _legacy_tensors(archive)
        else:
            models = [name for name in archive.names if "models/" in name and name.endswith(".json")]
            if len(models) != 1:
                raise LoadError(f"the archive holds {len(models)} models", remedy="save one exported program")
            document = _json(archive.read(models[0]), models[0])
            tensors = _archived_tensors(archive, limit)
        has_examples = any("sample_inputs" in name or "example_inputs" in name for name in archive.names)
    program = _program(document, tensors)
    if not has_examples:
        return program
    note = "the archive holds example inputs; they were not read and are in no bundle"
    return Program(
        program.calls, program.constants, program.input, program.input_dims, program.outputs, (*program.notes, note)
    )


def _json(data: bytes, name: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise LoadError(f"no JSON ({one_line(error)})", place=name) from None


def _archived_tensors(archive: Archive, limit: int) -> dict[str, Array]:
    """Weights and constants that configuration files list, by their qualified names."""
    tensors: dict[str, Array] = {}
    for name in archive.names:
        if name.endswith(("_weights_config.json", "_constants_config.json")):
            folder = name.rpartition("/")[0]
            config = _json(archive.read(name), name).get("config", {})
            for tensor, entry in config.items():
                tensors[tensor] = _tensor(archive, folder, tensor, entry, limit)
    return tensors


def _tensor(archive: Archive, folder: str, name: str, entry: Any, limit: int) -> Array:
    place = f"tensor {name}"
    data = archive.read(f"{folder}/{entry['path_name']}")
    if entry.get("use_pickle"):
        return _torch_tensor(data, place)
    meta = entry["tensor_meta"]
    kind = _DTYPES.get(meta["dtype"])
    if kind is None:
        raise LoadError(f"is of torch type {meta['dtype']}", place=place, remedy="supported are real numbers")
    sizes = [_size(item) for item in meta["sizes"]]
    strides = [_size(item) for item in meta["strides"]]
    offset = _size(meta.get("storage_offset", {"as_int": 0}))
    numbers = [item for item in (*sizes, *strides, offset) if isinstance(item, int) and item >= 0]
    if len(numbers) != len(sizes) + len(strides) + 1 or len(sizes) != len(strides):
        raise LoadError(f"sizes {sizes}, strides {strides}, offset {offset}", place=place)
    check_size(math.prod(int(size) for size in sizes), limit, place)
    raw = np.frombuffer(data, "<u2" if kind == "bfloat16" else kind)
    last = int(offset) + sum((int(n) - 1) * int(s) for n, s in zip(sizes, strides, strict=True))
    if math.prod(int(size) for size in sizes) and last >= raw.size:
        raise LoadError(f"sizes {sizes} reach beyond the {raw.size} entries that are stored", place=place)
    if kind == "bfloat16":
        raw = (raw.astype(np.uint32) << 16).view(np.float32)
    view = np.lib.stride_tricks.as_strided(
        raw[int(offset) :], [int(n) for n in sizes], [int(s) * raw.itemsize for s in strides], writeable=False
    )
    return np.array(view)


def _legacy_tensors(archive: Archive) -> dict[str, Array]:
    tensors: dict[str, Array] = {}
    for member in ("serialized_state_dict.pt", "serialized_constants.pt", "serialized_state_dict.json"):
        found = archive.find(member)
        data = archive.read(found) if found else b""
        if data:
            from deploy.loaders.torch.state import read_state

            tensors.update(read_state(io.BytesIO(data)))
    return tensors


def _torch_tensor(data: bytes, place: str) -> Array:
    from deploy.loaders.torch.state import as_array, load_weights_only

    return as_array(load_weights_only(io.BytesIO(data)), place)


def _size(item: Any) -> int | str:
    if isinstance(item, int):
        return item
    if "as_int" in item:
        return int(item["as_int"])
    return str(item.get("as_expr", {}).get("expr_str", "?"))


def _program(document: Any, tensors: Mapping[str, Array]) -> Program:
    module = document["graph_module"]
    graph, signature = module["graph"], module["signature"]
    constants, inputs = _bind_inputs(signature, tensors)
    if len(inputs) != 1:
        raise LoadError(
            f"{len(inputs)} inputs that matter: {', '.join(inputs)}", remedy="supported is one input tensor"
        )
    outputs = [_argument(spec["user_output"]["arg"]) for spec in signature["output_specs"] if "user_output" in spec]
    names = [output.name for output in outputs if isinstance(output, Reference)]
    if not names or len(names) != len(outputs):
        raise LoadError("the outputs are no tensors")
    sizes = graph["tensor_values"][inputs[0]]["sizes"]
    return Program(
        [_call(node) for node in graph["nodes"]],
        constants,
        inputs[0],
        tuple(_size(item) for item in sizes),
        names,
    )


def _bind_inputs(signature: Any, tensors: Mapping[str, Array]) -> tuple[dict[str, Array], list[str]]:
    """Graph inputs that are parameters, buffers or constants, and those that are data."""
    constants: dict[str, Array] = {}
    inputs: list[str] = []
    names = {"parameter": "parameter_name", "buffer": "buffer_name", "tensor_constant": "tensor_constant_name"}
    for spec in signature["input_specs"]:
        ((kind, body),) = spec.items()
        if kind == "user_input":
            argument = _argument(body["arg"])
            if isinstance(argument, Reference):
                inputs.append(argument.name)
        elif kind in names:
            stored = body[names[kind]]
            if stored not in tensors:
                raise LoadError(f"{kind} {stored} is missing from the archive")
            constants[body["arg"]["name"]] = tensors[stored]
        elif kind not in ("token", "constant_input"):
            raise LoadError(f"an input of kind {kind}")
    return constants, inputs


def _call(node: Any) -> Call:
    pieces = str(node["target"]).removeprefix("torch.ops.").split(".")
    op = pieces[1] if len(pieces) > 1 and pieces[0] in ("aten", "prims") else ".".join(pieces)
    arguments = {
        entry.get("name") or f"argument {index}": _argument(entry["arg"])
        for index, entry in enumerate(node["inputs"])
    }
    outputs = [output for entry in node["outputs"] for output in _flat(_argument(entry))]
    return Call(op, arguments, tuple(output.name for output in outputs))


def _flat(value: object) -> list[Reference]:
    if isinstance(value, Reference):
        return [value]
    return [item for entry in value for item in _flat(entry)] if isinstance(value, list) else []


def _argument(entry: Any) -> Any:
    """A value of the serialised graph: a reference, a number, a word, a list, or None."""
    if not isinstance(entry, dict) or len(entry) != 1:
        raise LoadError(f"an argument {str(entry)[:60]}")
    ((kind, value),) = entry.items()
    if kind == "as_none":
        return None
    if kind in ("as_tensor", "as_sym_int", "as_sym_bool", "as_sym_float"):
        return (
            Reference(str(value["name" if "name" in value else "as_name"]))
            if isinstance(value, dict) and ("name" in value or "as_name" in value)
            else next(iter(value.values()))
        )
    if kind in ("as_tensors",):
        return [Reference(str(item["name"])) for item in value]
    if kind == "as_sym_ints":
        return [_argument({"as_sym_int": item}) for item in value]
    if kind == "as_optional_tensors":
        return [_argument(item) for item in value]
    if kind in ("as_int", "as_ints", "as_float", "as_floats", "as_bool", "as_bools", "as_string", "as_strings"):
        return value
    return None if kind in ("as_scalar_type", "as_memory_format", "as_layout", "as_device") else str(value)
