"""Affine operators over windows and axes: convolution, pooling, reduction, padding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from deploy.errors import LoadError
from deploy.loaders import linear
from deploy.loaders.onnx.affine import joins
from deploy.loaders.onnx.graph import Node
from deploy.loaders.onnx.table import (
    Context,
    Inputs,
    Value,
    axes_of,
    constant_at,
    integers,
    operator,
    signal_at,
    weight_at,
)
from deploy.loaders.tails import Tailed

__all__: list[str] = []


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
def conv(context: Context, node: Node, inputs: Inputs) -> Value:
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
    return result.named(node.short)


@operator("AveragePool")
def average_pool(context: Context, node: Node, inputs: Inputs) -> Value:
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
def global_average_pool(context: Context, node: Node, inputs: Inputs) -> Value:
    signal = signal_at(node, inputs, 0)
    return linear.reduce_axes(signal, range(2, len(signal.shape)), keep=True, mean=True)


@operator("ReduceMean", "ReduceSum")
def reduce(context: Context, node: Node, inputs: Inputs) -> Value:
    signal, axes = signal_at(node, inputs, 0), axes_of(node, inputs) or []
    if not axes and node.attributes.get("noop_with_empty_axes", 0):
        return signal
    keep = bool(node.attributes.get("keepdims", 1))
    return linear.reduce_axes(signal, axes, keep=keep, mean=node.op == "ReduceMean")


@operator("Pad")
def pad(context: Context, node: Node, inputs: Inputs) -> Value:
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
def concat(context: Context, node: Node, inputs: Inputs) -> Value:
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
        return Tailed(first.logits, "sigmoid_pair", np.arange(2).reshape(*first.shape[:-1], 2), last.made_by)
    raise joins(context, node)
