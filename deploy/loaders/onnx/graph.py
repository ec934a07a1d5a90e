"""An ONNX graph as the lowering reads it: nodes in an order that can be computed, only those that matter.

Initialisers may be listed among the inputs, stand in Constant nodes or lie in typed fields; nodes may stand in any
order; dead nodes are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import Message
from onnx import AttributeProto

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders.onnx.file import read_tensor

__all__ = ["Graph", "Input", "Node", "read_graph"]

_DEFAULT = ("", "ai.onnx")


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operator, with its attributes as Python values (tensors as arrays, in `proto` as they were)."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    opset: int
    proto: onnx.NodeProto

    @property
    def short(self) -> str:
        """How a layer is named after it."""
        return self.name or self.outputs[0]

    @property
    def label(self) -> str:
        """How errors and notes name it."""
        return f"node {self.name} ({self.op})" if self.name else f"node {self.op} that makes {self.outputs[0]}"


@dataclass(frozen=True, slots=True)
class Input:
    """A graph input: dims are sizes, or names for what is not fixed, or None for no shape at all."""

    name: str
    type: int
    dims: tuple[int | str, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """What is computed: `nodes` in order, from `inputs` and `constants` to `outputs`."""

    nodes: tuple[Node, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[Input, ...]
    constants: Mapping[str, onnx.TensorProto]
    folder: Path
    dead: int

    def constant(self, name: str) -> Array:
        """Read an initialiser."""
        return read_tensor(self.constants[name], self.folder)


def read_graph(model: onnx.ModelProto, folder: Path) -> Graph:
    """Order the nodes, drop the dead ones and find the inputs that data must be given for."""
    if model.functions:
        model = _inline(model)
    graph = model.graph
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    if graph.sparse_initializer:
        raise LoadError(
            f"{len(graph.sparse_initializer)} sparse initialisers", remedy="export with dense initialisers"
        )
    if not graph.output:
        raise LoadError("the graph has no output")
    producers: dict[str, int] = {}
    for index, proto in enumerate(graph.node):
        if not proto.output:
            raise LoadError("the node has no output", place=f"node {proto.name} ({proto.op_type})")
        for name in filter(None, proto.output):
            if name in producers or name in constants:
                raise LoadError(f"tensor {name} is made twice", place=f"node {proto.name} ({proto.op_type})")
            producers[name] = index
    order = _order(graph, producers)
    used = {name for index in order for name in graph.node[index].input} | {value.name for value in graph.output}
    listed = {value.name: value for value in graph.input}
    for name in sorted(used - {""}):
        if name not in producers and name not in constants and name not in listed:
            raise LoadError(f"tensor {name} is used and made nowhere")
    inputs = tuple(
        _read_value(value) for value in graph.input if value.name not in constants and value.name in used
    )
    return Graph(
        nodes=tuple(_read_node(graph.node[index], opsets, folder) for index in order),
        inputs=inputs,
        outputs=tuple(_read_value(value) for value in graph.output),
        constants={name: tensor for name, tensor in constants.items() if name in used},
        folder=folder,
        dead=len(graph.node) - len(order),
    )


def _inline(model: onnx.ModelProto) -> onnx.ModelProto:
    from onnx import inliner

    try:
        return inliner.inline_local_functions(model)
    except (RuntimeError, ValueError, TypeError) as error:
        raise LoadError(f"its local functions cannot be inlined: {error}") from None


def _order(graph: onnx.GraphProto, producers: Mapping[str, int]) -> list[int]:
    """Indices of the live nodes, each after the nodes that feed it; raises on a cycle."""
    done: dict[int, bool] = {}
    order: list[int] = []
    stack = [(producers[value.name], False) for value in reversed(graph.output) if value.name in producers]
    while stack:
        index, is_expanded = stack.pop()
        if is_expanded:
            done[index] = True
            order.append(index)
            continue
        if index in done:
            if not done[index]:
                raise LoadError("the graph has a cycle", place=f"node {graph.node[index].name}")
            continue
        done[index] = False
        stack.append((index, True))
        for name in graph.node[index].input:
            feeder = producers.get(name)
            if feeder is None or done.get(feeder):
                continue
            if feeder in done:
                raise LoadError("the graph has a cycle", place=f"node {graph.node[index].name}")
            stack.append((feeder, False))
    return order


def _read_node(proto: onnx.NodeProto, opsets: Mapping[str, int], folder: Path) -> Node:
    domain = "" if proto.domain in _DEFAULT else proto.domain
    opset = opsets.get(domain, opsets.get("ai.onnx", 1) if not domain else 1)
    place = f"node {proto.name or proto.output[0]} ({proto.op_type})"
    attributes = {}
    for attribute in proto.attribute:
        try:
            attributes[attribute.name] = _read_attribute(attribute, folder)
        except LoadError as error:
            raise error.at(place) from None
        except (ValueError, TypeError, UnicodeDecodeError) as error:
            raise LoadError(f"attribute {attribute.name} cannot be read: {error}", place=place) from None
    return Node(
        proto.op_type, domain, proto.name, tuple(proto.input), tuple(proto.output), attributes, opset, proto
    )


def _read_attribute(attribute: AttributeProto, folder: Path) -> Any:
    if attribute.ref_attr_name:
        raise LoadError(f"attribute {attribute.name} refers to a function's attribute")
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type == AttributeProto.TENSOR:
        return read_tensor(value, folder)
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, Message):
        return value
    if attribute.type == AttributeProto.STRINGS:
        return [item.decode("utf-8") for item in value]
    return list(value) if hasattr(value, "__len__") else value


def _read_value(value: onnx.ValueInfoProto) -> Input:
    tensor = value.type.tensor_type
    if value.type.WhichOneof("value") != "tensor_type" or not tensor.HasField("shape"):
        return Input(value.name, tensor.elem_type, None)
    dims = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else (dim.dim_param or "?")
        for dim in tensor.shape.dim
    )
    return Input(value.name, tensor.elem_type, dims)
