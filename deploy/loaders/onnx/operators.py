"""What each ONNX operator means for signals: a table from operator to lowering.

A lowering takes the values of its inputs (constants, signals, tails, None for what is left out) and gives values
back. At least one input depends on the network's input, except where an entry says that it folds constants too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders import linear
from deploy.loaders.chain import Chain, Piece
from deploy.loaders.onnx.graph import Node
from deploy.loaders.signal import Signal
from deploy.loaders.tails import Tailed

__all__ = ["OPERATORS", "Context", "Operator", "Value"]

Value = Array | Signal | Tailed


@dataclass(slots=True)
class Context:
    """State of one lowering: the layers so far and the value of every tensor."""

    chain: Chain
    batch: int
    values: dict[str, Value]
    input_type: int


Lower = Callable[[Context, Node, Sequence[Value | None]], Value | tuple[Value, ...]]


@dataclass(frozen=True, slots=True)
class Operator:
    """A lowering, whether it takes tails, and whether it is called for constants too."""

    lower: Lower
    takes_tail: bool = False
    folds: bool = False


OPERATORS: dict[tuple[str, str], Operator] = {}


def operator(
    *names: str, domain: str = "", takes_tail: bool = False, folds: bool = False
) -> Callable[[Lower], Lower]:
    """Enter a lowering into the table."""

    def enter(lower: Lower) -> Lower:
        for name in names:
            OPERATORS[domain, name] = Operator(lower, takes_tail, folds)
        return lower

    return enter


def signal_at(node: Node, inputs: Sequence[Value | None], position: int) -> Signal:
    """The input at `position`, which must depend on the network's input."""
    value = inputs[position] if position < len(inputs) else None
    if not isinstance(value, Signal):
        raise LoadError(f"input {position} is a constant; supported is one that depends on the network's input")
    return value


def constant_at(node: Node, inputs: Sequence[Value | None], position: int) -> Array | None:
    """The constant at `position`, or None where it is left out."""
    if position >= len(inputs) or inputs[position] is None:
        return None
    value = inputs[position]
    if not isinstance(value, np.ndarray):
        raise LoadError(f"{node.inputs[position]} depends on the network's input; supported is a constant there")
    return value


def weight_at(node: Node, inputs: Sequence[Value | None], position: int) -> Array:
    """The constant at `position`, checked to be finite numbers."""
    value = constant_at(node, inputs, position)
    if value is None:
        raise LoadError(f"input {position} is missing")
    return finite(value, node.inputs[position])


def finite(value: Array, name: str) -> Array:
    """Check that a weight is numbers, all finite."""
    if value.dtype.kind in "OSUcMmV" and value.dtype.names is None and not _is_small_float(value):
        raise LoadError(f"tensor {name} is of type {value.dtype}; supported are real numbers")
    if value.dtype.kind not in "biu":
        bad = int(value.size - np.count_nonzero(np.isfinite(value)))
        if bad:
            raise LoadError(
                f"tensor {name} has {bad} of {value.size} entries that are NaN or infinite",
                remedy="the training diverged; give an earlier checkpoint",
            )
    return value


def _is_small_float(value: Array) -> bool:
    """bfloat16 and the 8-bit floats have numpy kind V."""
    return value.dtype.kind == "V" and hasattr(value.dtype.type, "__float__")


def integers(value: Array | Sequence[int] | int | None) -> list[int] | None:
    """A list of axes or sizes from an attribute or a constant."""
    if value is None:
        return None
    array = np.asarray(value)
    if array.dtype.kind not in "iu" and array.size:
        raise LoadError(f"sizes of type {array.dtype}")
    if array.size > 64:
        raise LoadError(f"{array.size} axes")
    return [int(item) for item in array.ravel()]


def axes_of(node: Node, inputs: Sequence[Value | None], position: int = 1, name: str = "axes") -> list[int] | None:
    """Axes, as an attribute (older opsets) or an input."""
    if name in node.attributes:
        return integers(node.attributes[name])
    return integers(constant_at(node, inputs, position))


# Relayout


def relayout(value: Value, change: Callable[[Array], Array]) -> Value:
    """Apply a numpy relayout to a signal or tail."""
    assert isinstance(value, Signal | Tailed)
    indices = value.indices()
    try:
        changed = change(indices)
    except (ValueError, IndexError, TypeError, OverflowError) as error:
        raise LoadError(f"shape {list(value.shape)}: {error}") from None
    return value.selected(np.ascontiguousarray(changed))


@operator("Identity", takes_tail=True)
def identity(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    value = inputs[0]
    assert value is not None
    return value


@operator("Reshape", takes_tail=True)
def reshape(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    value = inputs[0]
    shape = axes_of(node, inputs, 1, "shape")
    if shape is None or not isinstance(value, Signal | Tailed):
        raise LoadError("Reshape without a constant shape")
    keep_zero = bool(node.attributes.get("allowzero", 0))
    resolved = [
        value.shape[axis] if length == 0 and not keep_zero and axis < len(value.shape) else length
        for axis, length in enumerate(shape)
    ]
    return relayout(value, lambda a: a.reshape(one_row(context, resolved, a.size)))


def one_row(context: Context, shape: list[int], size: int) -> list[int]:
    """A target shape for a batch of one: a first axis that is the file's batch becomes 1."""
    if -1 not in shape and shape and math.prod(shape) != size and context.batch != 1:
        if (context.batch in (0, shape[0])) and math.prod(shape[1:]) == size:
            return [1, *shape[1:]]
    elif -1 in shape and context.batch > 1 and shape[0] == context.batch:
        return [1, *shape[1:]]
    return shape


@operator("Flatten", takes_tail=True)
def flatten(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    axis = int(node.attributes.get("axis", 1))

    def change(a: Array) -> Array:
        at = axis + a.ndim if axis < 0 else axis
        return a.reshape(math.prod(a.shape[:at]), math.prod(a.shape[at:]))

    return relayout(_some(inputs), change)


def _some(inputs: Sequence[Value | None]) -> Value:
    if not inputs or not isinstance(inputs[0], Signal | Tailed):
        raise LoadError("the first input is a constant; supported is one that depends on the network's input")
    return inputs[0]


@operator("Squeeze", takes_tail=True)
def squeeze(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    axes = axes_of(node, inputs)
    return relayout(_some(inputs), lambda a: np.squeeze(a, None if axes is None else tuple(axes)))


@operator("Unsqueeze", takes_tail=True)
def unsqueeze(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    axes = axes_of(node, inputs) or []
    return relayout(_some(inputs), lambda a: np.expand_dims(a, tuple(axes)))


@operator("Transpose", takes_tail=True)
def transpose(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    perm = node.attributes.get("perm")
    return relayout(_some(inputs), lambda a: np.transpose(a, perm))


@operator("Expand")
def expand(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    value, target = signal_at(node, inputs, 0), integers(constant_at(node, inputs, 1)) or []
    return value.broadcast(np.broadcast_shapes(value.shape, tuple(target)))


@operator("Slice", takes_tail=True)
def slice_(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    starts, ends = axes_of(node, inputs, 1, "starts") or [], axes_of(node, inputs, 2, "ends") or []
    axes = axes_of(node, inputs, 3, "axes") or list(range(len(starts)))
    steps = axes_of(node, inputs, 4, "steps") or [1] * len(starts)

    def change(a: Array) -> Array:
        cut: list[slice] = [slice(None)] * a.ndim
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            stop = None if step < 0 and end < -a.shape[axis] else end
            cut[axis] = slice(start, stop, step)
        return a[tuple(cut)]

    return relayout(_some(inputs), change)


@operator("Gather", takes_tail=True)
def gather(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    axis = int(node.attributes.get("axis", 0))
    if isinstance(inputs[0], np.ndarray) and isinstance(inputs[1], Tailed):
        return name_classes(inputs[0], inputs[1])
    index = constant_at(node, inputs, 1)
    if index is None or index.dtype.kind not in "iu":
        raise LoadError("Gather without constant indices")
    return relayout(_some(inputs), lambda a: np.take(a, index, axis))


@operator("Split", takes_tail=True)
def split(context: Context, node: Node, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
    value = _some(inputs)
    assert isinstance(value, Signal | Tailed)
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
def shape(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    value = _some(inputs)
    assert isinstance(value, Signal | Tailed)
    start, end = node.attributes.get("start", 0), node.attributes.get("end")
    return np.array(value.shape[start:end], dtype=np.int64)


@operator("Size", takes_tail=True)
def size(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    value = _some(inputs)
    assert isinstance(value, Signal | Tailed)
    return np.array(math.prod(value.shape), dtype=np.int64)


@operator("Cast", takes_tail=True)
def cast(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    value, target = _some(inputs), node.attributes.get("to", 0)
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
def dropout(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    value = signal_at(node, inputs, 0)
    training = constant_at(node, inputs, 2) if node.opset >= 12 else None
    is_training = bool(training is not None and training.size and training.ravel()[0])
    if is_training or (node.opset < 7 and not node.attributes.get("is_test", 0)):
        raise LoadError("Dropout in training mode makes the output random", remedy="export in evaluation mode")
    context.chain.note(f"{node.label} was dropped: it does nothing at inference")
    return value


# Affine operators


def legacy_operand(node: Node, operand: Array, rank: int) -> Array:
    """Before opset 7, `broadcast` and `axis` said where the second operand's axes go."""
    if node.opset >= 7 or not node.attributes.get("broadcast", 0) or "axis" not in node.attributes:
        return operand
    axis = int(node.attributes["axis"]) % max(rank, 1)
    return operand.reshape(operand.shape + (1,) * max(0, rank - axis - operand.ndim))


def _operands(node: Node, inputs: Sequence[Value | None]) -> tuple[Signal, Array, bool]:
    """The signal, the constant, and whether the constant comes first."""
    if len(inputs) != 2 or inputs[0] is None or inputs[1] is None:
        raise LoadError(f"{len(inputs)} inputs, 2 expected")
    first, second = inputs
    if isinstance(first, Signal) and isinstance(second, Signal):
        raise _joins(node)
    if isinstance(first, Signal):
        return first, legacy_operand(node, weight_at(node, inputs, 1), len(first.shape)), False
    return signal_at(node, inputs, 1), weight_at(node, inputs, 0), True


def _joins(node: Node) -> LoadError:
    return LoadError(
        f"joins two values that both depend on the input, {' and '.join(node.inputs)}: a residual or a branch",
        remedy="supported is one chain of layers",
    )


def _broadcasts(signal: Signal, constant: Array) -> None:
    try:
        np.broadcast_shapes(signal.shape, constant.shape)
    except ValueError:
        raise LoadError(f"shapes {list(signal.shape)} and {list(constant.shape)} do not broadcast") from None


@operator("Add", "Sub", takes_tail=True)
def add(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    for position, value in enumerate(inputs):
        if isinstance(value, Tailed):
            return complement(node, inputs, position)
    signal, constant, is_reversed = _operands(node, inputs)
    _broadcasts(signal, constant)
    constant = np.asarray(constant, dtype=np.float64)
    if node.op == "Add":
        return signal.shifted(constant)
    return signal.scaled(np.asarray(-1.0)).shifted(constant) if is_reversed else signal.shifted(-constant)


@operator("Sum", "Mean")
def sum_(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    signals = [value for value in inputs if isinstance(value, Signal)]
    if len(signals) != 1:
        raise _joins(node)
    result = signals[0]
    for position, value in enumerate(inputs):
        if isinstance(value, np.ndarray):
            _broadcasts(result, value)
            result = result.shifted(weight_at(node, inputs, position))
    return result.scaled(np.asarray(1.0 / len(inputs))) if node.op == "Mean" else result


@operator("Mul")
def mul(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    if len(inputs) == 2 and isinstance(inputs[0], Signal) and inputs[0] is inputs[1]:
        return context.chain.activate(inputs[0], "square", node.label)
    signal, constant, _ = _operands(node, inputs)
    _broadcasts(signal, constant)
    return signal.scaled(constant)


@operator("Div")
def div(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    signal, constant, is_reversed = _operands(node, inputs)
    _broadcasts(signal, constant)
    if is_reversed:
        raise LoadError("divides by a value that depends on the input")
    if not np.all(constant):
        raise LoadError(f"divides by {int(constant.size - np.count_nonzero(constant))} zeros in {node.inputs[1]}")
    return signal.scaled(1.0 / np.asarray(constant, dtype=np.float64))


@operator("Neg")
def neg(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    return signal_at(node, inputs, 0).scaled(np.asarray(-1.0))


@operator("Pow")
def pow_(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    signal, exponent = signal_at(node, inputs, 0), weight_at(node, inputs, 1)
    if exponent.size and np.all(exponent == 1):
        return signal.broadcast(np.broadcast_shapes(signal.shape, exponent.shape))
    if exponent.size and np.all(exponent == 2) and exponent.size <= signal.size:
        return context.chain.activate(signal, "square", node.label)
    raise LoadError(f"exponent {exponent.ravel()[:3].tolist()}; supported is 2")


@operator("MatMul")
def matmul(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    if len(inputs) == 2 and isinstance(inputs[0], Signal) and isinstance(inputs[1], Signal):
        raise LoadError(
            "multiplies two values that both depend on the input: attention or a bilinear layer",
            remedy="supported is one chain of layers",
        )
    signal, matrix, is_reversed = _operands(node, inputs)
    context.chain.weighted = True
    return linear.multiply_left(matrix, signal) if is_reversed else linear.multiply_right(signal, matrix)


@operator("Gemm")
def gemm(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    alpha, beta = (float(node.attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    if not (math.isfinite(alpha) and math.isfinite(beta)):
        raise LoadError(f"alpha {alpha}, beta {beta}")
    signal, matrix, is_reversed = _operands(node, inputs[:2])
    if len(signal.shape) != 2 or matrix.ndim != 2:
        raise LoadError(f"Gemm of shapes {list(signal.shape)} and {list(matrix.shape)}; both need 2 axes")
    flip_signal, flip_matrix = ("transB", "transA") if is_reversed else ("transA", "transB")
    if node.attributes.get(flip_signal, 0):
        signal = signal.selected(np.ascontiguousarray(signal.indices().T))
    if node.attributes.get(flip_matrix, 0):
        matrix = matrix.T
    context.chain.weighted = True
    product = linear.multiply_left(matrix, signal) if is_reversed else linear.multiply_right(signal, matrix)
    result = product.scaled(np.asarray(alpha))
    if constant_at(node, inputs, 2) is None or beta == 0:
        return result
    bias = np.asarray(weight_at(node, inputs, 2), dtype=np.float64) * beta
    _broadcasts(result, bias)
    return result.shifted(bias)


@operator("BatchNormalization")
def batch_normalization(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    signal = signal_at(node, inputs, 0)
    if node.attributes.get("training_mode", 0) or (node.opset < 7 and not node.attributes.get("is_test", 0)):
        raise LoadError("BatchNormalization in training mode", remedy="export in evaluation mode")
    scale, shift, mean, variance = (
        np.asarray(weight_at(node, inputs, position), dtype=np.float64).ravel() for position in (1, 2, 3, 4)
    )
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    if node.attributes.get("spatial", 1) == 0:
        shape = signal.shape[1:]
    else:
        shape = (signal.shape[1] if len(signal.shape) > 1 else 1, *[1] * (len(signal.shape) - 2))
    if any(array.size != math.prod(shape) for array in (scale, shift, mean, variance)):
        raise LoadError(f"parameters of {scale.size} entries for shape {list(signal.shape)}")
    if not np.all(variance + epsilon > 0):
        raise LoadError(f"tensor {node.inputs[4]}: variance + epsilon is not positive")
    gain = scale / np.sqrt(variance + epsilon)
    context.chain.weighted = True
    context.chain.note(f"{node.label} was folded")
    return signal.scaled(gain.reshape(shape)).shifted((shift - mean * gain).reshape(shape))


@operator("Scaler", domain="ai.onnx.ml")
def scaler(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    signal = signal_at(node, inputs, 0)
    offset = finite(np.asarray(node.attributes.get("offset", [0.0]), dtype=np.float64), "offset")
    scale = finite(np.asarray(node.attributes.get("scale", [1.0]), dtype=np.float64), "scale")
    _broadcasts(signal, offset)
    _broadcasts(signal, scale)
    context.chain.note(f"{node.label} was folded")
    return signal.shifted(-offset).scaled(scale)


def _geometry(node: Node, kernel: Sequence[int], spatial: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Strides, pads (starts then ends) and dilations, with auto_pad resolved."""
    axes = len(kernel)
    strides = integers(node.attributes.get("strides")) or [1] * axes
    dilations = integers(node.attributes.get("dilations")) or [1] * axes
    pads = integers(node.attributes.get("pads")) or [0] * (2 * axes)
    mode = node.attributes.get("auto_pad", "NOTSET")
    if not len(strides) == len(dilations) == axes == len(spatial) or len(pads) != 2 * axes or min(strides) < 1:
        raise LoadError(f"kernel {list(kernel)}, strides {strides}, dilations {dilations}, pads {pads}")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max(
                0, (-(-spatial[a] // strides[a]) - 1) * strides[a] + dilations[a] * (kernel[a] - 1) + 1 - spatial[a]
            )
            for a in range(axes)
        ]
        low = [total // 2 if mode == "SAME_UPPER" else total - total // 2 for total in totals]
        pads = [*low, *(total - start for total, start in zip(totals, low, strict=True))]
    elif mode == "VALID":
        pads = [0] * (2 * axes)
    elif mode not in ("NOTSET", ""):
        raise LoadError(f"auto_pad {mode!r}")
    return strides, pads, dilations


@operator("Conv", "ConvTranspose")
def conv(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    signal, weight = signal_at(node, inputs, 0), weight_at(node, inputs, 1)
    if weight.ndim < 3 or len(signal.shape) != weight.ndim:
        raise LoadError(f"weight of shape {list(weight.shape)} over a tensor of shape {list(signal.shape)}")
    kernel, spatial = weight.shape[2:], signal.shape[2:]
    groups = int(node.attributes.get("group", 1))
    strides, pads, dilations = _geometry(node, kernel, spatial)
    if node.op == "Conv":
        result = linear.convolve(signal, weight, strides=strides, pads=pads, dilations=dilations, groups=groups)
    else:
        if "output_shape" in node.attributes or node.attributes.get("auto_pad", "NOTSET") != "NOTSET":
            raise LoadError("ConvTranspose with output_shape or auto_pad", remedy="export with explicit pads")
        extra = integers(node.attributes.get("output_padding")) or [0] * len(kernel)
        result = linear.transpose_convolve(
            signal, weight, strides=strides, pads=pads, dilations=dilations, groups=groups, output_padding=extra
        )
    if constant_at(node, inputs, 2) is not None:
        bias = weight_at(node, inputs, 2)
        if bias.size != result.shape[1]:
            raise LoadError(f"bias of {bias.size} entries for {result.shape[1]} channels")
        result = result.shifted(bias.reshape(-1, *[1] * len(kernel)))
    context.chain.weighted = True
    context.chain.note(f"{node.label} was lowered to a dense layer of {result.size} x {signal.size}")
    return result


@operator("AveragePool")
def average_pool(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    signal = signal_at(node, inputs, 0)
    kernel = integers(node.attributes.get("kernel_shape")) or []
    if node.attributes.get("ceil_mode", 0):
        raise LoadError("AveragePool with ceil_mode", remedy="export with explicit pads")
    strides, pads, dilations = _geometry(node, kernel, signal.shape[2:])
    context.chain.note(f"{node.label} was folded")
    return linear.average_pool(
        signal,
        kernel,
        strides=strides,
        pads=pads,
        dilations=dilations,
        count_padding=bool(node.attributes.get("count_include_pad", 0)),
    )


@operator("GlobalAveragePool")
def global_average_pool(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    signal = signal_at(node, inputs, 0)
    return linear.reduce_axes(signal, range(2, len(signal.shape)), keep=True, mean=True)


@operator("ReduceMean", "ReduceSum")
def reduce(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    signal, axes = signal_at(node, inputs, 0), axes_of(node, inputs) or []
    if not axes and node.attributes.get("noop_with_empty_axes", 0):
        return signal
    keep = bool(node.attributes.get("keepdims", 1))
    return linear.reduce_axes(signal, axes, keep=keep, mean=node.op == "ReduceMean")


@operator("Pad")
def pad(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    signal = signal_at(node, inputs, 0)
    mode = node.attributes.get("mode", "constant")
    widths = axes_of(node, inputs, 1, "pads") or integers(node.attributes.get("paddings")) or []
    given = constant_at(node, inputs, 2)
    value = float(node.attributes.get("value", 0.0)) if given is None else float(given.ravel()[0])
    axes = axes_of(node, inputs, 3) or list(range(len(signal.shape)))
    if mode != "constant" or len(widths) != 2 * len(axes) or not math.isfinite(value):
        raise LoadError(f"Pad of mode {mode!r} with pads {widths}", remedy="supported is the constant mode")
    full = [(0, 0)] * len(signal.shape)
    for position, axis in enumerate(axes):
        full[axis] = (widths[position], widths[position + len(axes)])
    return linear.pad(signal, full, value)


@operator("Concat", takes_tail=True)
def concat(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    first, last = inputs[0], inputs[-1]
    if len(inputs) == 1 and first is not None:
        return first
    if (
        len(inputs) == 2
        and isinstance(first, Tailed)
        and isinstance(last, Tailed)
        and (first.function, last.function) == ("complement", "sigmoid")
        and first.logits is last.logits
        and first.logits.size == 1
        and int(node.attributes.get("axis", 1)) in (1, -1, len(first.shape) - 1)
    ):
        return Tailed(first.logits, "sigmoid_pair", np.arange(2).reshape(*first.shape[:-1], 2), first.made_by)
    raise _joins(node)


# Activations


@operator("Relu")
def relu(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    return context.chain.activate(signal_at(node, inputs, 0), "relu", node.label)


@operator("LeakyRelu", "PRelu")
def leaky_relu(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    signal = signal_at(node, inputs, 0)
    if node.op == "LeakyRelu":
        slope: Array = np.asarray(float(node.attributes.get("alpha", 0.01)))
    else:
        slope = np.asarray(weight_at(node, inputs, 1), dtype=np.float64)
        if node.opset < 7 and slope.ndim == 1 and len(signal.shape) > 1:
            slope = slope.reshape(-1, *[1] * (len(signal.shape) - 2))
    if not np.isfinite(slope).all():
        raise LoadError(f"slope {slope}")
    _broadcasts(signal, slope)
    if np.broadcast_shapes(signal.shape, slope.shape) != signal.shape:
        raise LoadError(f"slope of shape {list(slope.shape)} for a tensor of shape {list(signal.shape)}")
    context.chain.note(f"{node.label} was rewritten as {2 * signal.size} ReLU units: relu(x) - slope relu(-x)")
    return context.chain.activate_pieces(signal, [Piece(1.0, 0.0, 1.0), Piece(-1.0, 0.0, -slope)], 0.0, node.label)


@operator("Abs")
def abs_(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    signal = signal_at(node, inputs, 0)
    context.chain.note(f"{node.label} was rewritten as {2 * signal.size} ReLU units: relu(x) + relu(-x)")
    return context.chain.activate_pieces(signal, [Piece(1.0, 0.0, 1.0), Piece(-1.0, 0.0, 1.0)], 0.0, node.label)


@operator("Clip")
def clip(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    signal = signal_at(node, inputs, 0)
    low, high = (_bound(node, inputs, position, name) for position, name in ((1, "min"), (2, "max")))
    return clip_signal(context.chain, signal, low, high, node.label)


def _bound(node: Node, inputs: Sequence[Value | None], position: int, name: str) -> float | None:
    if name in node.attributes:
        value = float(node.attributes[name])
    else:
        given = constant_at(node, inputs, position)
        if given is None or not given.size:
            return None
        value = float(given.ravel()[0])
    if math.isnan(value):
        raise LoadError(f"{name} is NaN")
    return None if abs(value) >= float(np.finfo(np.float32).max) else value


def clip_signal(chain: Chain, signal: Signal, low: float | None, high: float | None, name: str) -> Signal:
    """min(max(x, low), high) as ReLU units; None leaves a side open."""
    if low is not None and high is not None and low >= high:
        raise LoadError(f"Clip to [{low}, {high}]", place="")
    if low == 0.0 and high is None:
        return chain.activate(signal, "relu", name)
    if low is None and high is None:
        return signal
    pieces = []
    if low is not None:
        pieces.append(Piece(1.0, -low, 1.0))
    if high is not None:
        pieces.append(Piece(1.0, -high, -1.0) if low is not None else Piece(-1.0, high, -1.0))
    constant = low if low is not None else high
    assert constant is not None
    chain.note(f"{name} was rewritten as {len(pieces) * signal.size} ReLU units")
    return chain.activate_pieces(signal, pieces, constant, name)


@operator("Max", "Min")
def extreme(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    if len(inputs) == 1:
        return signal_at(node, inputs, 0)
    signal, constant, _ = _operands(node, inputs)
    _broadcasts(signal, constant)
    signal = signal.broadcast(np.broadcast_shapes(signal.shape, constant.shape))
    bound = np.broadcast_to(np.asarray(constant, dtype=np.float64), signal.shape)
    sign = 1.0 if node.op == "Max" else -1.0
    if node.op == "Max" and not bound.any():
        return context.chain.activate(signal, "relu", node.label)
    context.chain.note(f"{node.label} was rewritten as {signal.size} ReLU units")
    return context.chain.activate_pieces(signal, [Piece(sign, -sign * bound, sign)], bound, node.label)


# Quantisation


@operator("QuantizeLinear", "DynamicQuantizeLinear")
@operator("Quant", "BipolarQuant", "Trunc", domain="qonnx.custom_op.general")
@operator("Quant", "BipolarQuant", "Trunc", domain="onnx.brevitas")
@operator("Quant", "BipolarQuant", "Trunc", domain="finn.custom_op.general")
def quantiser(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    raise LoadError(
        f"{node.op} quantises activations, so the network is not a ReLU network",
        remedy="quantised weights alone are dequantised exactly; export without activation quantisers",
    )


# Tails


def _spans_all(value: Signal | Tailed, axis: int, place: str) -> None:
    rank = len(value.shape)
    if not -rank <= axis < rank:
        raise LoadError(f"axis {axis} of shape {list(value.shape)}")
    if value.shape[axis] != math.prod(value.shape):
        raise LoadError(f"{place} over axis {axis} of shape {list(value.shape)}: several groups a row")


@operator("Softmax", "LogSoftmax")
def softmax(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    signal = signal_at(node, inputs, 0)
    axis = int(node.attributes.get("axis", -1 if node.opset >= 13 else 1))
    if node.opset >= 13:
        _spans_all(signal, axis, node.op)
    elif math.prod(signal.shape[axis:]) != signal.size:
        raise LoadError(f"{node.op} over axes from {axis} of shape {list(signal.shape)}: several groups a row")
    function = "softmax" if node.op == "Softmax" else "log_softmax"
    return Tailed(signal, function, signal.indices(), node.label)  # type: ignore[arg-type]


@operator("Sigmoid")
def sigmoid(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    signal = signal_at(node, inputs, 0)
    return Tailed(signal, "sigmoid", signal.indices(), node.label)


def complement(node: Node, inputs: Sequence[Value | None], position: int) -> Value:
    """1 - sigmoid, half of the pair that scikit-learn exports; nothing else may be added to a tail."""
    value, other = inputs[position], inputs[1 - position]
    assert isinstance(value, Tailed)
    is_one = isinstance(other, np.ndarray) and other.size == 1 and float(other.ravel()[0]) == 1.0
    if node.op == "Sub" and position == 1 and is_one and value.function == "sigmoid" and value.rule is None:
        return Tailed(value.logits, "complement", value.columns, value.made_by)
    raise LoadError(
        f"takes the result of {value.made_by}: {value.function} in the middle of a network is not a ReLU",
        remedy="supported between layers: Relu, LeakyRelu, PRelu, Clip, Abs, Max, Min, x*x",
    )


@operator("ArgMax", "ArgMin", takes_tail=True)
def arg_extreme(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    value = _some(inputs)
    assert isinstance(value, Signal | Tailed)
    axis = int(node.attributes.get("axis", 0))
    _spans_all(value, axis, node.op)
    rule = "argmax" if node.op == "ArgMax" else "argmin"
    if isinstance(value, Tailed):
        if value.rule is not None or value.columns.size != value.n_values:
            raise LoadError(f"{node.op} of a part of the result of {value.made_by}")
        origin, function = value.logits, value.function
    else:
        origin, function = value, "none"
    context.chain.note(f"{node.label} was stripped into the decision rule {rule}")
    keep = int(node.attributes.get("keepdims", 1))
    shape = [1] * (len(value.shape) if keep else len(value.shape) - 1)
    return Tailed(origin, function, np.zeros(shape, dtype=np.int64), node.label, rule=rule)  # type: ignore[arg-type]


def name_classes(names: Array, label: Tailed) -> Value:
    """A lookup of class names by label."""
    if label.rule is None:
        raise LoadError("looks up a table by a number that is no label")
    classes = tuple(item.decode() if isinstance(item, bytes) else _plain(item) for item in names.ravel().tolist())
    return Tailed(label.logits, label.function, label.columns, label.made_by, label.rule, classes)


def _plain(item: object) -> str | int:
    return int(item) if isinstance(item, int | float) else str(item)


@operator("ArrayFeatureExtractor", domain="ai.onnx.ml", takes_tail=True)
def array_feature_extractor(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    if isinstance(inputs[0], np.ndarray) and isinstance(inputs[1], Tailed):
        return name_classes(inputs[0], inputs[1])
    index = constant_at(node, inputs, 1)
    if index is None or index.dtype.kind not in "iu":
        raise LoadError("ArrayFeatureExtractor without constant indices")
    return relayout(_some(inputs), lambda a: np.take(a, index.ravel(), -1))


@operator("ZipMap", domain="ai.onnx.ml", takes_tail=True)
def zip_map(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    value = _some(inputs)
    labels = node.attributes.get("classlabels_int64s") or node.attributes.get("classlabels_strings") or []
    if isinstance(value, Signal):
        value = Tailed(value, "none", value.indices(), node.label)
    assert isinstance(value, Tailed)
    if len(labels) != value.columns.size:
        raise LoadError(f"{len(labels)} class labels for {value.columns.size} values")
    return Tailed(value.logits, value.function, value.columns, value.made_by, value.rule, tuple(labels))


@operator("Log", takes_tail=True)
def log(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    value = _some(inputs)
    if isinstance(value, Tailed) and value.function == "softmax" and value.rule is None:
        return Tailed(value.logits, "log_softmax", value.columns, value.made_by, classes=value.classes)
    raise LoadError("Log is not a ReLU")


@operator("Greater", "GreaterOrEqual", takes_tail=True)
def greater(context: Context, node: Node, inputs: Sequence[Value | None]) -> Value:
    value, threshold = _some(inputs), constant_at(node, inputs, 1)
    assert isinstance(value, Signal | Tailed)
    bound = float(threshold.ravel()[0]) if threshold is not None and threshold.size == 1 else math.nan
    if isinstance(value, Tailed):
        origin, function, expected = value.logits, value.function, 0.5
    else:
        origin, function, expected = value, "none", 0.0
    if function not in ("none", "sigmoid") or origin.size != 1 or bound != expected:
        raise LoadError(f"a comparison with {bound}; supported is one sigmoid > 0.5 or one logit > 0")
    context.chain.note(f"{node.label} was stripped into the decision rule sign")
    return Tailed(origin, function, value.indices(), node.label, rule="sign")
