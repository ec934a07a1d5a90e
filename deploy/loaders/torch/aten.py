"""What each ATen operator means for signals: a table from name to lowering, by PyTorch's own argument names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders import activations, linear
from deploy.loaders.chain import Chain
from deploy.loaders.relayout import one_row
from deploy.loaders.relayout import relayout as relayout_moved
from deploy.loaders.signal import Signal
from deploy.loaders.tails import Tailed, decide, end_network, span_one_group
from deploy.loaders.weights import check_broadcast, check_finite, check_size

__all__ = ["OPERATORS", "TAIL_OPERATORS", "Context", "Value"]

Value = Any
"""A constant array, a signal, a tail, a number, or a list of these."""

Arguments = Mapping[str, Any]


@dataclass(slots=True)
class Context:
    """The layers so far, the batch that the file fixes, and the call that is being lowered."""

    chain: Chain
    batch: int
    label: str = ""

    @property
    def name(self) -> str:
        """How a layer is named after the call."""
        return self.label.split(" ")[1] if " " in self.label else self.label


Lower = Callable[[Context, Arguments], Value]
OPERATORS: dict[str, Lower] = {}
TAIL_OPERATORS: set[str] = set()


def operator(*names: str, takes_tail: bool = False) -> Callable[[Lower], Lower]:
    """Enter a lowering into the table, under each name and its in-place form."""

    def enter(lower: Lower) -> Lower:
        for name in names:
            for spelling in (name, f"{name}_"):
                OPERATORS[spelling] = lower
                if takes_tail:
                    TAIL_OPERATORS.add(spelling)
        return lower

    return enter


def _signal(arguments: Arguments, *names: str) -> Signal:
    for name in names:
        if isinstance(arguments.get(name), Signal):
            signal: Signal = arguments[name]
            return signal
    raise LoadError(f"{names[0]} is a constant; supported is a value that depends on the network's input")


def _constant(arguments: Arguments, name: str) -> Array | None:
    value = arguments.get(name)
    if value is None:
        return None
    if isinstance(value, Signal | Tailed):
        raise LoadError(f"{name} depends on the network's input; supported is a constant there")
    return check_finite(np.asarray(value), name)


def _weight(arguments: Arguments, name: str) -> Array:
    value = _constant(arguments, name)
    if value is None:
        raise LoadError(f"{name} is missing")
    return value


def _numbers(value: object, axes: int, default: int) -> list[int]:
    if value is None or (isinstance(value, list | tuple) and not value):
        return [default] * axes
    items = [int(item) for item in value] if isinstance(value, list | tuple) else [int(str(value))]
    return items * axes if len(items) == 1 else items


# Relayout


def relayout(value: Value, change: Callable[[Array], Array]) -> Value:
    """A relayout of a constant, or of a value that depends on the input."""
    return change(value) if isinstance(value, np.ndarray) else relayout_moved(value, change)


@operator("alias", "contiguous", "clone", "detach", "lift_fresh_copy", "lift_fresh", "to", "_to_copy", "type_as")
@operator("float", "double", "half", "bfloat16", "requires_grad", "identity")
def _same(context: Context, arguments: Arguments) -> Value:
    return arguments.get("self", arguments.get("input"))


TAIL_OPERATORS.update({"alias", "contiguous", "clone", "detach", "to", "_to_copy"})


@operator("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout")
def _dropout(context: Context, arguments: Arguments) -> Value:
    if arguments.get("train"):
        raise LoadError(
            "Dropout in training mode makes the output random", remedy="call module.eval() before export"
        )
    context.chain.note(f"{context.label} was dropped: it does nothing at inference")
    return _signal(arguments, "input", "self")


@operator("view", "reshape", "_unsafe_view", "view_copy", takes_tail=True)
def _reshape(context: Context, arguments: Arguments) -> Value:
    shape = [int(length) for length in arguments.get("size", arguments.get("shape", ()))]
    return relayout(arguments["self"], lambda a: a.reshape(one_row(shape, a.size, context.batch)))


@operator("flatten", takes_tail=True)
def _flatten(context: Context, arguments: Arguments) -> Value:
    start, end = int(arguments.get("start_dim", 0)), int(arguments.get("end_dim", -1))

    def change(a: Array) -> Array:
        first, last = start % a.ndim, end % a.ndim
        return a.reshape(*a.shape[:first], math.prod(a.shape[first : last + 1]), *a.shape[last + 1 :])

    return relayout(arguments["self"], change)


@operator("squeeze", takes_tail=True)
def _squeeze(context: Context, arguments: Arguments) -> Value:
    dims = arguments.get("dim")
    axes = None if dims is None else [int(axis) for axis in (dims if isinstance(dims, list) else [dims])]

    def change(a: Array) -> Array:
        gone = [axis % a.ndim for axis in axes] if axes is not None else list(range(a.ndim))
        return np.squeeze(a, tuple(axis for axis in gone if a.shape[axis] == 1))

    return relayout(arguments["self"], change)


@operator("unsqueeze", takes_tail=True)
def _unsqueeze(context: Context, arguments: Arguments) -> Value:
    return relayout(arguments["self"], lambda a: np.expand_dims(a, int(arguments["dim"])))


@operator("permute")
def _permute(context: Context, arguments: Arguments) -> Value:
    return relayout(arguments["self"], lambda a: np.transpose(a, [int(axis) for axis in arguments["dims"]]))


@operator("transpose")
def _transpose(context: Context, arguments: Arguments) -> Value:
    return relayout(arguments["self"], lambda a: np.swapaxes(a, int(arguments["dim0"]), int(arguments["dim1"])))


@operator("t", "numpy_T")
def _t(context: Context, arguments: Arguments) -> Value:
    return relayout(arguments["self"], np.transpose)


@operator("size", "sym_size", takes_tail=True)
def _size(context: Context, arguments: Arguments) -> Value:
    shape = list(arguments["self"].shape)
    return shape if arguments.get("dim") is None else shape[int(arguments["dim"])]


@operator("ListConstruct", "TupleConstruct", takes_tail=True)
def _list(context: Context, arguments: Arguments) -> Value:
    return (list(arguments.values()),)


@operator("getitem", takes_tail=True)
def _getitem(context: Context, arguments: Arguments) -> Value:
    source, index = arguments.values()
    if int(index) != 0:
        raise LoadError(f"result {index} of an operator; supported is the first")
    return source


@operator("NumToTensor", "Int", "ScalarImplicit", "item", "detach_int")
def _number(context: Context, arguments: Arguments) -> Value:
    return next(iter(arguments.values()))


@operator("dim", takes_tail=True)
def _rank(context: Context, arguments: Arguments) -> Value:
    return len(arguments["self"].shape)


@operator("len")
def _length(context: Context, arguments: Arguments) -> Value:
    return len(next(iter(arguments.values())))


@operator("__getitem__")
def _item(context: Context, arguments: Arguments) -> Value:
    items, index = arguments.values()
    return items[int(index)]


def _compare(choose: Callable[[Any, Any], bool]) -> Lower:
    def lower(context: Context, arguments: Arguments) -> Value:
        first, second = arguments.values()
        if not all(isinstance(value, int | float | str | None) for value in (first, second)):
            raise LoadError("compares values that depend on the network's input")
        return choose(first, second)

    return lower


for _name, _choose in {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "__and__": lambda a, b: a and b,
    "__or__": lambda a, b: a or b,
    "__is__": lambda a, b: a is b,
    "__isnot__": lambda a, b: a is not b,
}.items():
    OPERATORS[_name] = _compare(_choose)


@operator("__not__")
def _not(context: Context, arguments: Arguments) -> Value:
    return not next(iter(arguments.values()))


@operator("zeros", "ones", "full", "zeros_like", "ones_like", "scalar_tensor")
def _filled(context: Context, arguments: Arguments) -> Value:
    like = arguments.get("self")
    size = list(like.shape) if like is not None else [int(n) for n in arguments.get("size", ())]
    check_size(math.prod(size), context.chain.limit, "the constant")
    default = 1.0 if "(ones" in context.label else 0.0
    return np.full(size, float(arguments.get("fill_value", arguments.get("s", default))))


@operator("slice")
def _slice(context: Context, arguments: Arguments) -> Value:
    axis, step = int(arguments.get("dim", 0)), int(arguments.get("step", 1))
    start, end = arguments.get("start"), arguments.get("end")

    def change(a: Array) -> Array:
        return a[(slice(None),) * (axis % a.ndim) + (slice(start, end, step),)]

    return relayout(arguments["self"], change)


# Affine operators


@operator("linear")
def _linear(context: Context, arguments: Arguments) -> Value:
    weight, bias = _weight(arguments, "weight"), _constant(arguments, "bias")
    context.chain.weighted = True
    result = linear.multiply_right(_signal(arguments, "input"), weight.T)
    return (result if bias is None else _shift(result, bias)).named(context.name)


def _shift(signal: Signal, constant: Array) -> Signal:
    check_broadcast(signal.shape, constant)
    return signal.shifted(constant)


@operator("addmm")
def _addmm(context: Context, arguments: Arguments) -> Value:
    context.chain.weighted = True
    product = _multiply(arguments, "mat1", "mat2").scaled(np.asarray(float(arguments.get("alpha", 1))))
    return _shift(product, _weight(arguments, "self") * float(arguments.get("beta", 1))).named(context.name)


@operator("mm", "matmul", "bmm", "mv")
def _matmul(context: Context, arguments: Arguments) -> Value:
    context.chain.weighted = True
    names = [name for name in ("self", "mat1", "mat2", "other", "vec") if name in arguments]
    return _multiply(arguments, names[0], names[1]).named(context.name)


def _multiply(arguments: Arguments, first: str, second: str) -> Signal:
    left, right = arguments[first], arguments[second]
    if isinstance(left, Signal) and isinstance(right, Signal):
        raise LoadError(
            "multiplies two values that both depend on the input: attention or a bilinear layer",
            remedy="supported is one chain of layers",
        )
    if isinstance(left, Signal):
        return linear.multiply_right(left, _weight(arguments, second))
    return linear.multiply_left(_weight(arguments, first), _signal(arguments, second))


def _pair(arguments: Arguments) -> tuple[Signal, Array, bool]:
    """The signal and the constant of an elementwise operator, and whether the constant comes first."""
    first, second = arguments["self"], arguments["other"]
    if isinstance(first, Signal) and isinstance(second, Signal):
        raise LoadError(
            "joins two values that both depend on the input: a residual or a branch",
            remedy="supported is one chain of layers",
        )
    if isinstance(first, Signal):
        constant = _weight(arguments, "other")
        check_broadcast(first.shape, constant)
        return first, constant, False
    constant, signal = _weight(arguments, "self"), _signal(arguments, "other")
    check_broadcast(signal.shape, constant)
    return signal, constant, True


def _is_plain(arguments: Arguments) -> bool:
    return not any(isinstance(value, Signal | Tailed) for value in arguments.values())


@operator("add", "sub", "rsub")
def _add(context: Context, arguments: Arguments) -> Value:
    alpha = float(arguments.get("alpha", 1))
    if _is_plain(arguments):
        sign = alpha if context.label.endswith("(add)") else -alpha
        return arguments["self"] + (int(sign) if sign == int(sign) else sign) * arguments["other"]
    signal, constant, is_reversed = _pair(arguments)
    op = context.label.rpartition("(")[2].rstrip(")_")
    constant = np.asarray(constant, dtype=np.float64)
    first, second = {"add": (1.0, alpha), "sub": (1.0, -alpha), "rsub": (-alpha, 1.0)}[op]
    own, other = (second, first) if is_reversed else (first, second)
    return signal.scaled(np.asarray(own)).shifted(constant * other)


@operator("mul")
def _mul(context: Context, arguments: Arguments) -> Value:
    if _is_plain(arguments):
        return arguments["self"] * arguments["other"]
    if isinstance(arguments["self"], Signal) and arguments["self"] is arguments["other"]:
        return context.chain.activate(arguments["self"], "square", context.label)
    signal, constant, _ = _pair(arguments)
    return signal.scaled(constant)


@operator("div", "true_divide", "floor_divide")
def _div(context: Context, arguments: Arguments) -> Value:
    if _is_plain(arguments):
        return arguments["self"] // arguments["other"]
    signal, constant, is_reversed = _pair(arguments)
    if is_reversed or arguments.get("rounding_mode") or not np.all(constant):
        raise LoadError("a division that is not by constants other than 0")
    return signal.scaled(1.0 / np.asarray(constant, dtype=np.float64))


@operator("neg")
def _neg(context: Context, arguments: Arguments) -> Value:
    return _signal(arguments, "self").scaled(np.asarray(-1.0))


@operator("batch_norm", "_native_batch_norm_legit_no_training", "native_batch_norm", "_batch_norm_no_update")
def _batch_norm(context: Context, arguments: Arguments) -> Value:
    if arguments.get("training"):
        raise LoadError("batch normalisation in training mode", remedy="call module.eval() before export")
    signal = _signal(arguments, "input")
    mean, variance = _constant(arguments, "running_mean"), _constant(arguments, "running_var")
    if mean is None or variance is None:
        raise LoadError("batch normalisation without running statistics uses those of the batch")
    scale, shift = _constant(arguments, "weight"), _constant(arguments, "bias")
    scale = np.ones(mean.size) if scale is None else scale
    shift = np.zeros(mean.size) if shift is None else shift
    shape = (signal.shape[1] if len(signal.shape) > 1 else 1, *[1] * (len(signal.shape) - 2))
    context.chain.note(f"{context.label} was folded")
    context.chain.weighted = True
    result = linear.normalise(signal, shape, scale, shift, mean, variance, epsilon=float(arguments["eps"]))
    return (result.named(context.name),)


@operator("conv1d", "conv2d", "conv3d", "convolution", "_convolution", "_convolution_mode")
def _convolve(context: Context, arguments: Arguments) -> Value:
    signal, weight = _signal(arguments, "input"), _weight(arguments, "weight")
    axes = weight.ndim - 2
    if arguments.get("transposed"):
        raise LoadError("a transposed convolution", remedy="export it as ONNX")
    if axes < 1 or len(signal.shape) != weight.ndim:
        raise LoadError(f"weight of shape {list(weight.shape)} over a tensor of shape {list(signal.shape)}")
    strides, dilations = (_numbers(arguments.get(name), axes, 1) for name in ("stride", "dilation"))
    pads = _pads(arguments.get("padding"), weight.shape[2:], dilations)
    groups = int(arguments.get("groups", 1))
    result = linear.convolve(signal, weight, strides=strides, pads=pads, dilations=dilations, groups=groups)
    bias = _constant(arguments, "bias")
    if bias is not None:
        result = _shift(result, bias.reshape(-1, *[1] * axes))
    context.chain.weighted = True
    context.chain.note(f"{context.label} was lowered to a dense layer of {result.size} x {signal.size}")
    return result.named(context.name)


def _pads(padding: object, kernel: Sequence[int], dilations: Sequence[int]) -> list[int]:
    if padding == "valid":
        return [0] * (2 * len(kernel))
    if padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilations, strict=True)]
        return [*(total // 2 for total in totals), *(total - total // 2 for total in totals)]
    return _numbers(padding, len(kernel), 0) * 2


@operator("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _average_pool(context: Context, arguments: Arguments) -> Value:
    signal = _signal(arguments, "self", "input")
    axes = len(signal.shape) - 2
    if arguments.get("ceil_mode") or arguments.get("divisor_override"):
        raise LoadError("average pooling with ceil_mode or divisor_override")
    kernel = _numbers(arguments["kernel_size"], axes, 1)
    stride = arguments.get("stride")
    strides = _numbers(stride, axes, 1) if stride else kernel
    return linear.average_pool(
        signal,
        kernel,
        strides=strides,
        pads=_numbers(arguments.get("padding"), axes, 0) * 2,
        dilations=[1] * axes,
        count_padding=bool(arguments.get("count_include_pad", True)),
    )


@operator("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d")
def _adaptive_pool(context: Context, arguments: Arguments) -> Value:
    signal = _signal(arguments, "self", "input")
    axes = len(signal.shape) - 2
    target = _numbers(arguments["output_size"], axes, 1)
    if any(n % k for n, k in zip(signal.shape[2:], target, strict=True)):
        raise LoadError(f"adaptive pooling of {list(signal.shape[2:])} to {target}", remedy="use average pooling")
    kernel = [n // k for n, k in zip(signal.shape[2:], target, strict=True)]
    zeros, ones = [0] * (2 * axes), [1] * axes
    return linear.average_pool(signal, kernel, strides=kernel, pads=zeros, dilations=ones, count_padding=True)


@operator("mean", "sum")
def _reduce(context: Context, arguments: Arguments) -> Value:
    dims = arguments.get("dim") or []
    axes = [int(axis) for axis in (dims if isinstance(dims, list) else [dims])]
    keep, is_mean = bool(arguments.get("keepdim", False)), "(mean" in context.label
    return linear.reduce_axes(_signal(arguments, "self"), axes, keep=keep, mean=is_mean)


@operator("constant_pad_nd", "pad")
def _pad(context: Context, arguments: Arguments) -> Value:
    if arguments.get("mode", "constant") != "constant":
        raise LoadError(f"padding of mode {arguments['mode']}")
    signal, given = _signal(arguments, "self"), [int(width) for width in arguments["pad"]]
    widths = [(given[at], given[at + 1]) for at in range(0, len(given), 2)][::-1]
    full = [(0, 0)] * (len(signal.shape) - len(widths)) + widths
    return linear.pad(signal, full, float(arguments.get("value") or 0.0))


# Activations


@operator("relu")
def _relu(context: Context, arguments: Arguments) -> Value:
    return context.chain.activate(_signal(arguments, "self", "input"), "relu", context.label)


@operator("leaky_relu")
def _leaky_relu(context: Context, arguments: Arguments) -> Value:
    slope = float(arguments.get("negative_slope", 0.01))
    return activations.leaky_relu(context.chain, _signal(arguments, "self"), slope, context.label)


@operator("prelu", "_prelu_kernel")
def _prelu(context: Context, arguments: Arguments) -> Value:
    signal, slope = _signal(arguments, "self"), _weight(arguments, "weight")
    if slope.ndim == 1 and len(signal.shape) > 1:
        slope = slope.reshape(-1, *[1] * (len(signal.shape) - 2))
    return activations.leaky_relu(context.chain, signal, slope, context.label)


@operator("hardtanh", "clamp", "clip", "relu6", "clamp_min", "clamp_max")
def _clamp(context: Context, arguments: Arguments) -> Value:
    low, high = (arguments.get(f"{name}_val", arguments.get(name)) for name in ("min", "max"))
    if "(relu6" in context.label:
        low, high = 0.0, 6.0
    signal = _signal(arguments, "self")
    bounds = [None if bound is None or math.isinf(float(bound)) else float(bound) for bound in (low, high)]
    return activations.clip(context.chain, signal, bounds[0], bounds[1], context.label)


@operator("abs")
def _abs(context: Context, arguments: Arguments) -> Value:
    return activations.absolute(context.chain, _signal(arguments, "self"), context.label)


@operator("maximum", "minimum", "max", "min")
def _extreme(context: Context, arguments: Arguments) -> Value:
    if "other" not in arguments:
        raise LoadError("the largest or smallest entry of a value that depends on the input")
    signal, bound, _ = _pair(arguments)
    change = activations.maximum if "(max" in context.label else activations.minimum
    return change(context.chain, signal, bound, context.label)


@operator("threshold")
def _threshold(context: Context, arguments: Arguments) -> Value:
    if float(arguments["threshold"]) != 0.0 or float(arguments["value"]) != 0.0:
        raise LoadError("a threshold other than 0 jumps, which no ReLU does")
    return context.chain.activate(_signal(arguments, "self"), "relu", context.label)


@operator("square")
def _square(context: Context, arguments: Arguments) -> Value:
    return context.chain.activate(_signal(arguments, "self"), "square", context.label)


@operator("pow")
def _pow(context: Context, arguments: Arguments) -> Value:
    exponent = float(np.asarray(arguments["exponent"]).ravel()[0])
    if exponent != 2:
        raise LoadError(f"exponent {exponent:g}; supported is 2")
    return context.chain.activate(_signal(arguments, "self"), "square", context.label)


# Tails


@operator("softmax", "_softmax", "log_softmax", "_log_softmax")
def _softmax(context: Context, arguments: Arguments) -> Value:
    signal = _signal(arguments, "self", "input")
    span_one_group(signal, int(arguments["dim"]))
    return end_network(signal, "log_softmax" if "log_softmax" in context.label else "softmax", context.label)


@operator("sigmoid")
def _sigmoid(context: Context, arguments: Arguments) -> Value:
    return end_network(_signal(arguments, "self"), "sigmoid", context.label)


@operator("argmax", "argmin", takes_tail=True)
def _arg_extreme(context: Context, arguments: Arguments) -> Value:
    value = arguments["self"]
    axis = arguments.get("dim")
    span_one_group(value, len(value.shape) - 1 if axis is None else int(axis))
    rule = "argmax" if "(argmax" in context.label else "argmin"
    context.chain.note(f"{context.label} was stripped into the decision rule {rule}")
    return decide(value, "argmax" if rule == "argmax" else "argmin", (1,), context.label)
