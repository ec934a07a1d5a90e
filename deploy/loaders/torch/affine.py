"""Affine ATen operators: products and sums with constants, normalisation, convolution, pooling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders import linear
from deploy.loaders.signal import Signal
from deploy.loaders.tails import Tailed
from deploy.loaders.torch.table import (
    Arguments,
    Context,
    Value,
    constant_at,
    numbers,
    operator,
    signal_at,
    weight_at,
)
from deploy.loaders.weights import check_broadcast

__all__ = ["pair_of"]


@operator("linear")
def _linear(context: Context, arguments: Arguments) -> Value:
    weight, bias = weight_at(arguments, "weight"), constant_at(arguments, "bias")
    context.chain.weighted = True
    result = linear.multiply_right(signal_at(arguments, "input"), weight.T)
    return (result if bias is None else _shift(result, bias)).named(context.name)


def _shift(signal: Signal, constant: Array) -> Signal:
    check_broadcast(signal.shape, constant)
    return signal.shifted(constant)


@operator("addmm")
def _addmm(context: Context, arguments: Arguments) -> Value:
    context.chain.weighted = True
    product = _multiply(arguments, "mat1", "mat2").scaled(np.asarray(float(arguments.get("alpha", 1))))
    return _shift(product, weight_at(arguments, "self") * float(arguments.get("beta", 1))).named(context.name)


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
        return linear.multiply_right(left, weight_at(arguments, second))
    return linear.multiply_left(weight_at(arguments, first), signal_at(arguments, second))


def pair_of(arguments: Arguments) -> tuple[Signal, Array, bool]:
    """The signal and the constant of an elementwise operator, and whether the constant comes first."""
    first, second = arguments["self"], arguments["other"]
    if isinstance(first, Signal) and isinstance(second, Signal):
        raise LoadError(
            "joins two values that both depend on the input: a residual or a branch",
            remedy="supported is one chain of layers",
        )
    if isinstance(first, Signal):
        constant = weight_at(arguments, "other")
        check_broadcast(first.shape, constant)
        return first, constant, False
    constant, signal = weight_at(arguments, "self"), signal_at(arguments, "other")
    check_broadcast(signal.shape, constant)
    return signal, constant, True


def _is_plain(arguments: Arguments) -> bool:
    return not any(isinstance(value, Signal | Tailed) for value in arguments.values())


@operator("add", "sub", "rsub")
def _add(context: Context, arguments: Arguments) -> Value:
    alpha = float(arguments.get("alpha", 1))
    if _is_plain(arguments):
        sign = alpha if context.op == "add" else -alpha
        return arguments["self"] + (int(sign) if sign == int(sign) else sign) * arguments["other"]
    signal, constant, is_reversed = pair_of(arguments)
    constant = np.asarray(constant, dtype=np.float64)
    first, second = {"add": (1.0, alpha), "sub": (1.0, -alpha), "rsub": (-alpha, 1.0)}[context.op]
    own, other = (second, first) if is_reversed else (first, second)
    return signal.scaled(np.asarray(own)).shifted(constant * other)


@operator("mul")
def _mul(context: Context, arguments: Arguments) -> Value:
    if _is_plain(arguments):
        return arguments["self"] * arguments["other"]
    if isinstance(arguments["self"], Signal) and arguments["self"] is arguments["other"]:
        return context.chain.activate(arguments["self"], "square", context.label)
    signal, constant, _ = pair_of(arguments)
    return signal.scaled(constant)


@operator("div", "true_divide", "floor_divide")
def _div(context: Context, arguments: Arguments) -> Value:
    if _is_plain(arguments):
        return arguments["self"] // arguments["other"]
    signal, constant, is_reversed = pair_of(arguments)
    if is_reversed or arguments.get("rounding_mode") or not np.all(constant):
        raise LoadError("a division that is not by constants other than 0")
    return signal.scaled(1.0 / np.asarray(constant, dtype=np.float64))


@operator("neg")
def _neg(context: Context, arguments: Arguments) -> Value:
    return signal_at(arguments, "self").scaled(np.asarray(-1.0))


@operator("batch_norm", "_native_batch_norm_legit_no_training", "native_batch_norm", "_batch_norm_no_update")
def _batch_norm(context: Context, arguments: Arguments) -> Value:
    if arguments.get("training"):
        raise LoadError("batch normalisation in training mode", remedy="call module.eval() before export")
    signal = signal_at(arguments, "input")
    mean, variance = constant_at(arguments, "running_mean"), constant_at(arguments, "running_var")
    if mean is None or variance is None:
        raise LoadError("batch normalisation without running statistics uses those of the batch")
    scale, shift = constant_at(arguments, "weight"), constant_at(arguments, "bias")
    scale = np.ones(mean.size) if scale is None else scale
    shift = np.zeros(mean.size) if shift is None else shift
    shape = (signal.shape[1] if len(signal.shape) > 1 else 1, *[1] * (len(signal.shape) - 2))
    context.chain.note(f"{context.label} was folded")
    context.chain.weighted = True
    result = linear.normalise(signal, shape, scale, shift, mean, variance, epsilon=float(arguments["eps"]))
    return (result.named(context.name),)


@operator("conv1d", "conv2d", "conv3d", "convolution", "_convolution", "_convolution_mode")
def _convolve(context: Context, arguments: Arguments) -> Value:
    signal, weight = signal_at(arguments, "input"), weight_at(arguments, "weight")
    axes = weight.ndim - 2
    if arguments.get("transposed"):
        raise LoadError("a transposed convolution", remedy="export it as ONNX")
    if axes < 1 or len(signal.shape) != weight.ndim:
        raise LoadError(f"weight of shape {list(weight.shape)} over a tensor of shape {list(signal.shape)}")
    strides, dilations = (numbers(arguments.get(name), axes, 1) for name in ("stride", "dilation"))
    pads = _pads(arguments.get("padding"), weight.shape[2:], dilations)
    groups = int(arguments.get("groups", 1))
    result = linear.convolve(signal, weight, strides=strides, pads=pads, dilations=dilations, groups=groups)
    bias = constant_at(arguments, "bias")
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
    return numbers(padding, len(kernel), 0) * 2


@operator("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _average_pool(context: Context, arguments: Arguments) -> Value:
    signal = signal_at(arguments, "self", "input")
    axes = len(signal.shape) - 2
    if arguments.get("ceil_mode") or arguments.get("divisor_override"):
        raise LoadError("average pooling with ceil_mode or divisor_override")
    kernel = numbers(arguments["kernel_size"], axes, 1)
    stride = arguments.get("stride")
    strides = numbers(stride, axes, 1) if stride else kernel
    return linear.average_pool(
        signal,
        kernel,
        strides=strides,
        pads=numbers(arguments.get("padding"), axes, 0) * 2,
        dilations=[1] * axes,
        count_padding=bool(arguments.get("count_include_pad", True)),
    )


@operator("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d")
def _adaptive_pool(context: Context, arguments: Arguments) -> Value:
    signal = signal_at(arguments, "self", "input")
    axes = len(signal.shape) - 2
    target = numbers(arguments["output_size"], axes, 1)
    if any(n % k for n, k in zip(signal.shape[2:], target, strict=True)):
        raise LoadError(f"adaptive pooling of {list(signal.shape[2:])} to {target}", remedy="use average pooling")
    kernel = [n // k for n, k in zip(signal.shape[2:], target, strict=True)]
    zeros, ones = [0] * (2 * axes), [1] * axes
    return linear.average_pool(signal, kernel, strides=kernel, pads=zeros, dilations=ones, count_padding=True)


@operator("mean", "sum")
def _reduce(context: Context, arguments: Arguments) -> Value:
    dims = arguments.get("dim") or []
    axes = [int(axis) for axis in (dims if isinstance(dims, list) else [dims])]
    keep, is_mean = bool(arguments.get("keepdim", False)), context.op == "mean"
    return linear.reduce_axes(signal_at(arguments, "self"), axes, keep=keep, mean=is_mean)


@operator("constant_pad_nd", "pad")
def _pad(context: Context, arguments: Arguments) -> Value:
    if arguments.get("mode", "constant") != "constant":
        raise LoadError(f"padding of mode {arguments['mode']}")
    signal, given = signal_at(arguments, "self"), [int(width) for width in arguments["pad"]]
    widths = [(given[at], given[at + 1]) for at in range(0, len(given), 2)][::-1]
    full = [(0, 0)] * (len(signal.shape) - len(widths)) + widths
    return linear.pad(signal, full, float(arguments.get("value") or 0.0))
