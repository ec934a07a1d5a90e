"""Operators that move entries or leave them alone: reshapes, transpositions, slices, casts."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders.onnx.endings import look_up
from deploy.loaders.onnx.graph import Node
from deploy.loaders.onnx.table import (
    Context,
    Inputs,
    Value,
    axes_of,
    constant_at,
    integers,
    moved_at,
    operator,
    signal_at,
)
from deploy.loaders.relayout import one_row, relayout
from deploy.loaders.signal import Signal
from deploy.loaders.tails import Tailed

__all__: list[str] = []


@operator("Identity", takes_tail=True)
def identity(context: Context, node: Node, inputs: Inputs) -> Value:
    value = inputs[0]
    assert value is not None
    return value


@operator("Reshape", takes_tail=True)
def reshape(context: Context, node: Node, inputs: Inputs) -> Value:
    value = moved_at(node, inputs, 0)
    shape = axes_of(node, inputs, 1, "shape")
    if shape is None:
        raise LoadError("Reshape without a shape")
    keep_zero = bool(node.attributes.get("allowzero", 0))
    resolved = [
        value.shape[axis] if length == 0 and not keep_zero and axis < len(value.shape) else length
        for axis, length in enumerate(shape)
    ]
    return relayout(value, lambda a: a.reshape(one_row(resolved, a.size, context.batch)))


@operator("Flatten", takes_tail=True)
def flatten(context: Context, node: Node, inputs: Inputs) -> Value:
    axis = int(node.attributes.get("axis", 1))

    def change(a: Array) -> Array:
        at = axis + a.ndim if axis < 0 else axis
        return a.reshape(math.prod(a.shape[:at]), math.prod(a.shape[at:]))

    return relayout(moved_at(node, inputs, 0), change)


@operator("Squeeze", takes_tail=True)
def squeeze(context: Context, node: Node, inputs: Inputs) -> Value:
    axes = axes_of(node, inputs)
    return relayout(moved_at(node, inputs, 0), lambda a: np.squeeze(a, None if axes is None else tuple(axes)))


@operator("Unsqueeze", takes_tail=True)
def unsqueeze(context: Context, node: Node, inputs: Inputs) -> Value:
    axes = axes_of(node, inputs) or []
    return relayout(moved_at(node, inputs, 0), lambda a: np.expand_dims(a, tuple(axes)))


@operator("Transpose", takes_tail=True)
def transpose(context: Context, node: Node, inputs: Inputs) -> Value:
    perm = node.attributes.get("perm")
    return relayout(moved_at(node, inputs, 0), lambda a: np.transpose(a, perm))


@operator("Expand")
def expand(context: Context, node: Node, inputs: Inputs) -> Value:
    value, target = signal_at(node, inputs, 0), integers(constant_at(node, inputs, 1)) or []
    return value.broadcast(np.broadcast_shapes(value.shape, tuple(target)))


@operator("Slice", takes_tail=True)
def slice_(context: Context, node: Node, inputs: Inputs) -> Value:
    starts, ends = axes_of(node, inputs, 1, "starts") or [], axes_of(node, inputs, 2, "ends") or []
    axes = axes_of(node, inputs, 3, "axes") or list(range(len(starts)))
    steps = axes_of(node, inputs, 4, "steps") or [1] * len(starts)

    def change(a: Array) -> Array:
        cut: list[slice] = [slice(None)] * a.ndim
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            stop = None if step < 0 and end < -a.shape[axis] else end
            cut[axis] = slice(start, stop, step)
        return a[tuple(cut)]

    return relayout(moved_at(node, inputs, 0), change)


@operator("Gather", takes_tail=True)
def gather(context: Context, node: Node, inputs: Inputs) -> Value:
    axis = int(node.attributes.get("axis", 0))
    if isinstance(inputs[0], np.ndarray) and isinstance(inputs[1], Tailed):
        return look_up(inputs[0], inputs[1])
    index = constant_at(node, inputs, 1)
    if index is None or index.dtype.kind not in "iu":
        raise LoadError("Gather without constant indices")
    return relayout(moved_at(node, inputs, 0), lambda a: np.take(a, index, axis))


@operator("Split", takes_tail=True)
def split(context: Context, node: Node, inputs: Inputs) -> tuple[Value, ...]:
    value = moved_at(node, inputs, 0)
    axis = int(node.attributes.get("axis", 0))
    sizes = axes_of(node, inputs, 1, "split")
    if not -len(value.shape) <= axis < len(value.shape):
        raise LoadError(f"axis {axis} of shape {list(value.shape)}")
    length, parts = value.shape[axis], len(node.outputs)
    if sizes is None:
        chunk = -(-length // parts)
        sizes = [min(chunk, length - chunk * part) for part in range(parts)]
    if sum(sizes) != length or len(sizes) != parts or min(sizes) < 0:
        raise LoadError(f"parts {sizes} of {length} entries for {parts} outputs")
    stops = np.cumsum(sizes)
    return tuple(
        relayout(value, lambda a, s=stop - size, e=stop: np.take(a, np.arange(s, e), axis))  # type: ignore[misc]
        for size, stop in zip(sizes, stops, strict=True)
    )


@operator("Shape", takes_tail=True)
def shape(context: Context, node: Node, inputs: Inputs) -> Value:
    value = moved_at(node, inputs, 0)
    start, end = node.attributes.get("start", 0), node.attributes.get("end")
    return np.array(value.shape[start:end], dtype=np.int64)


@operator("Size", takes_tail=True)
def size(context: Context, node: Node, inputs: Inputs) -> Value:
    value = moved_at(node, inputs, 0)
    return np.array(math.prod(value.shape), dtype=np.int64)


@operator("Cast", takes_tail=True)
def cast(context: Context, node: Node, inputs: Inputs) -> Value:
    value, target = moved_at(node, inputs, 0), node.attributes.get("to", 0)
    if isinstance(target, str):
        target = TensorProto.DataType.Value(target) if target in list(TensorProto.DataType.keys()) else 0
    if isinstance(value, Tailed) and value.rule is not None:
        return value
    kind = TensorProto.DataType.Name(target) if target in TensorProto.DataType.values() else str(target)
    if target in (TensorProto.FLOAT, TensorProto.DOUBLE):
        return value
    if target in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
        context.chain.note(
            f"{node.label}: the file rounds values to {kind.lower()} there; they are kept in float64"
        )
        return value
    is_input = isinstance(value, Signal) and value.level == 0 and value.is_layer
    if is_input and context.input_type not in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16):
        return value
    source = TensorProto.DataType.Name(context.input_type) if is_input else "a floating type"
    raise LoadError(f"casts {source} to {kind}, which rounds", remedy="supported are casts to floating types")


@operator("Dropout")
def dropout(context: Context, node: Node, inputs: Inputs) -> Value:
    value = signal_at(node, inputs, 0)
    training = constant_at(node, inputs, 2) if node.opset >= 12 else None
    is_training = bool(training is not None and training.size and training.ravel()[0])
    if is_training or (node.opset < 7 and not node.attributes.get("is_test", 0)):
        raise LoadError("Dropout in training mode makes the output random", remedy="export in evaluation mode")
    context.chain.note(f"{node.label} was dropped: it does nothing at inference")
    return value
