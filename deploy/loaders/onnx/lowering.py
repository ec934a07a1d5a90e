"""From an ONNX graph to layers: each node is read once, in order, as a constant, a signal or a tail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders.batch import Plan, farthest, plan_rows, row_shape
from deploy.loaders.chain import Chain
from deploy.loaders.onnx import activations, affine, endings, quantisers, relayout, windows
from deploy.loaders.onnx.file import read_model
from deploy.loaders.onnx.folding import fold
from deploy.loaders.onnx.graph import Graph, Input, Node, read_graph
from deploy.loaders.onnx.table import OPERATORS, Context, Value
from deploy.loaders.result import Loaded, Settings
from deploy.loaders.signal import Signal
from deploy.loaders.tails import Tailed, close_tail, mid_network

__all__ = ["load_onnx", "lower_model"]

_TABLES = (activations, affine, endings, quantisers, relayout, windows)
"""The modules that fill the table of operators when they are imported."""

_WEIGHTED = ("Gemm", "MatMul", "Conv", "ConvTranspose", "BatchNormalization")


def load_onnx(path: Path, settings: Settings) -> Loaded:
    """Read an ONNX file into layers, or raise :class:`LoadError` naming the node."""
    return lower_model(read_model(path), path.parent, settings)


def lower_model(model: onnx.ModelProto, folder: Path, settings: Settings) -> Loaded:
    """Lower a parsed model; external data is looked for in `folder` alone."""
    graph = read_graph(model, folder)
    source = _data_input(graph)
    has_weights = any(node.op in _WEIGHTED for node in graph.nodes)
    refusals: list[tuple[int, LoadError]] = []
    for plan in plan_rows(source.name, _stated_dims(source, settings), _first_width(graph)):
        chain = Chain(limit=settings.max_parameters)
        context = Context(chain, plan.batch, {source.name: chain.input(plan.shape)}, source.type, has_weights)
        try:
            return _lower(graph, context, plan)
        except LoadError as error:
            refusals.append((len(context.values), error))
    raise farthest(refusals)


def _stated_dims(source: Input, settings: Settings) -> tuple[int | str, ...] | None:
    """The input's shape as the file has it, or as the caller says."""
    return source.dims if settings.input_shape is None else ("batch", *settings.input_shape)


def _data_input(graph: Graph) -> Input:
    if not graph.inputs:
        raise LoadError(f"output {graph.outputs[0].name} does not depend on the input")
    if len(graph.inputs) > 1:
        names = ", ".join(value.name for value in graph.inputs)
        raise LoadError(f"{len(graph.inputs)} inputs that matter: {names}", remedy="supported is one input tensor")
    source = graph.inputs[0]
    if source.type in (TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        raise LoadError(f"input {source.name} is of type {TensorProto.DataType.Name(source.type)}")
    return source


def _first_width(graph: Graph) -> int | None:
    """Rows of the first weight on the way: how many inputs a file without sizes must have."""
    for node in graph.nodes:
        if node.op in ("Gemm", "MatMul") and len(node.inputs) > 1 and node.inputs[1] in graph.constants:
            dims = graph.constants[node.inputs[1]].dims
            if len(dims) == 2:
                return int(dims[1 if node.attributes.get("transB", 0) else 0])
        if node.op == "Scaler":
            return len(node.attributes.get("offset", ())) or None
    return None


def _lower(graph: Graph, context: Context, plan: Plan) -> Loaded:
    chain = context.chain
    for name in graph.constants:
        context.values[name] = graph.constant(name)
    for node in graph.nodes:
        try:
            results = _evaluate(context, node)
        except LoadError as error:
            raise error.at(node.label) from None
        for name, value in zip(node.outputs, results, strict=False):
            if name:
                context.values[name] = value
    outputs = []
    for declared in graph.outputs:
        if declared.name not in context.values:
            raise LoadError(f"output {declared.name} is made nowhere")
        outputs.append((declared.name, context.values[declared.name]))
    if plan.batch > 1:
        _check_batch(graph, outputs, plan.batch)
    ending = close_tail(outputs)
    chain.finish(ending.logits, outputs[0][0])
    if graph.dead:
        chain.note(f"{graph.dead} nodes that feed no output were dropped")
    if plan.batch > 1:
        chain.note(f"the file fixes the batch to {plan.batch:,}; the network works row by row")
    return Loaded(chain, ending, row_shape(plan.shape))


def _check_batch(graph: Graph, outputs: Sequence[tuple[str, Value]], batch: int) -> None:
    """Make sure that a fixed batch passes through: the first axis of every output is the batch, as declared."""
    for declared, (name, value) in zip(graph.outputs, outputs, strict=True):
        if isinstance(value, Signal | Tailed):
            shape = value.shape
            stated = declared.dims or (batch, *shape[1:])
            fits = all(isinstance(n, str) or n == m for n, m in zip(stated, (batch, *shape[1:]), strict=False))
            if not shape or shape[0] != 1 or len(stated) != len(shape) or not fits:
                raise LoadError(f"output {name} mixes the {batch} rows of a batch")


def _evaluate(context: Context, node: Node) -> tuple[Value, ...]:
    inputs: list[Value | None] = []
    for name in node.inputs:
        if name and name not in context.values:
            raise LoadError(f"tensor {name} is an optional output that was not made")
        inputs.append(context.values[name] if name else None)
    if node.op == "Constant" and not node.domain:
        return (_constant(node),)
    operator = OPERATORS.get((node.domain, node.op))
    if all(value is None or isinstance(value, np.ndarray) for value in inputs):
        if operator is not None and operator.folds:
            return _as_tuple(operator.lower(context, node, inputs))
        return fold(node, [value for value in inputs if value is None or isinstance(value, np.ndarray)])
    if operator is None:
        raise _refusal(node)
    for value in inputs:
        if isinstance(value, Tailed) and not operator.takes_tail:
            raise mid_network(value)
    return _as_tuple(operator.lower(context, node, inputs))


def _as_tuple(result: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    return result if isinstance(result, tuple) else (result,)


def _constant(node: Node) -> Array:
    kinds = ("value", "value_float", "value_floats", "value_int", "value_ints", "value_string", "value_strings")
    for kind in kinds:
        if kind in node.attributes:
            value = node.attributes[kind]
            if isinstance(value, np.ndarray):
                return value
            dtype = {"f": np.float32, "i": np.int64}.get(kind[6:7])
            return np.asarray(value, dtype=dtype)
    raise LoadError("a Constant without a dense value", remedy="export with dense constants")


def _refusal(node: Node) -> LoadError:
    named = f"{node.domain}.{node.op}" if node.domain else node.op
    if node.op.startswith("TreeEnsemble"):
        return LoadError(f"{named} is a tree ensemble, not a ReLU network")
    return LoadError(
        f"{named} is not supported",
        remedy="supported are affine operators, Relu, LeakyRelu, PRelu, Clip, Abs, Max, Min, x*x (docs/loaders.md)",
    )
