"""Affine operators: products and sums with constants, normalisation."""

from __future__ import annotations

import math

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders import linear
from deploy.loaders.onnx.endings import complement
from deploy.loaders.onnx.graph import Node
from deploy.loaders.onnx.table import Context, Inputs, Value, constant_at, operator, signal_at, weight_at
from deploy.loaders.signal import Signal
from deploy.loaders.tails import Tailed
from deploy.loaders.weights import check_broadcast, check_finite

__all__ = ["joins", "operands"]


def legacy_operand(node: Node, operand: Array, rank: int) -> Array:
    """Before opset 7, `broadcast` and `axis` said where the second operand's axes go."""
    if node.opset >= 7 or not node.attributes.get("broadcast", 0) or "axis" not in node.attributes:
        return operand
    axis = int(node.attributes["axis"]) % max(rank, 1)
    return operand.reshape(operand.shape + (1,) * max(0, rank - axis - operand.ndim))


def operands(context: Context, node: Node, inputs: Inputs) -> tuple[Signal, Array, bool]:
    """The signal, the constant, and whether the constant comes first."""
    if len(inputs) != 2 or inputs[0] is None or inputs[1] is None:
        raise LoadError(f"{len(inputs)} inputs, 2 expected")
    first, second = inputs
    if isinstance(first, Signal) and isinstance(second, Signal):
        raise joins(context, node)
    if isinstance(first, Signal):
        return first, legacy_operand(node, weight_at(node, inputs, 1), len(first.shape)), False
    return signal_at(node, inputs, 1), weight_at(node, inputs, 0), True


def joins(context: Context, node: Node) -> LoadError:
    """Why two values that depend on the input may not meet."""
    names = " and ".join(node.inputs)
    if not context.has_weights:
        return LoadError(f"joins {names}, and the graph has no affine layer (Gemm, MatMul, Conv)")
    return LoadError(
        f"joins two values that both depend on the input, {names}: a residual or a branch",
        remedy="supported is one chain of layers",
    )


@operator("Add", "Sub", takes_tail=True)
def add(context: Context, node: Node, inputs: Inputs) -> Value:
    for position, value in enumerate(inputs):
        if isinstance(value, Tailed):
            return complement(node, inputs, position)
    signal, constant, is_reversed = operands(context, node, inputs)
    check_broadcast(signal.shape, constant)
    note_front(context, node, signal)
    constant = np.asarray(constant, dtype=np.float64)
    if node.op == "Add":
        return signal.shifted(constant)
    return signal.scaled(np.asarray(-1.0)).shifted(constant) if is_reversed else signal.shifted(-constant)


def note_front(context: Context, node: Node, signal: Signal) -> None:
    """Say that a normalisation in front of the first layer was folded into it."""
    if signal.level == 0 and not signal.name:
        context.chain.note(f"{node.label} before the first layer was folded into it")


@operator("Sum", "Mean")
def sum_(context: Context, node: Node, inputs: Inputs) -> Value:
    signals = [value for value in inputs if isinstance(value, Signal)]
    if len(signals) != 1:
        raise joins(context, node)
    result = signals[0]
    for position, value in enumerate(inputs):
        if isinstance(value, np.ndarray):
            check_broadcast(result.shape, value)
            result = result.shifted(weight_at(node, inputs, position))
    return result.scaled(np.asarray(1.0 / len(inputs))) if node.op == "Mean" else result


@operator("Mul")
def mul(context: Context, node: Node, inputs: Inputs) -> Value:
    if len(inputs) == 2 and isinstance(inputs[0], Signal) and inputs[0] is inputs[1]:
        return context.chain.activate(inputs[0], "square", node.label)
    signal, constant, _ = operands(context, node, inputs)
    check_broadcast(signal.shape, constant)
    note_front(context, node, signal)
    return signal.scaled(constant)


@operator("Div")
def div(context: Context, node: Node, inputs: Inputs) -> Value:
    signal, constant, is_reversed = operands(context, node, inputs)
    check_broadcast(signal.shape, constant)
    if is_reversed:
        raise LoadError("divides by a value that depends on the input")
    if not np.all(constant):
        raise LoadError(f"divides by {int(constant.size - np.count_nonzero(constant))} zeros in {node.inputs[1]}")
    note_front(context, node, signal)
    return signal.scaled(1.0 / np.asarray(constant, dtype=np.float64))


@operator("Neg")
def neg(context: Context, node: Node, inputs: Inputs) -> Value:
    return signal_at(node, inputs, 0).scaled(np.asarray(-1.0))


@operator("Pow")
def pow_(context: Context, node: Node, inputs: Inputs) -> Value:
    signal, exponent = signal_at(node, inputs, 0), weight_at(node, inputs, 1)
    if exponent.size and np.all(exponent == 1):
        return signal.broadcast(np.broadcast_shapes(signal.shape, exponent.shape))
    if exponent.size and np.all(exponent == 2) and exponent.size <= signal.size:
        return context.chain.activate(signal, "square", node.label)
    raise LoadError(f"exponent {exponent.ravel()[:3].tolist()}; supported is 2")


@operator("MatMul")
def matmul(context: Context, node: Node, inputs: Inputs) -> Value:
    if len(inputs) == 2 and isinstance(inputs[0], Signal) and isinstance(inputs[1], Signal):
        raise LoadError(
            "multiplies two values that both depend on the input: attention or a bilinear layer",
            remedy="supported is one chain of layers",
        )
    signal, matrix, is_reversed = operands(context, node, inputs)
    context.chain.weighted = True
    product = linear.multiply_left(matrix, signal) if is_reversed else linear.multiply_right(signal, matrix)
    return product.named(node.short)


@operator("Gemm")
def gemm(context: Context, node: Node, inputs: Inputs) -> Value:
    alpha, beta = (float(node.attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    if not (math.isfinite(alpha) and math.isfinite(beta)):
        raise LoadError(f"alpha {alpha}, beta {beta}")
    signal, matrix, is_reversed = operands(context, node, inputs[:2])
    if len(signal.shape) != 2 or matrix.ndim != 2:
        raise LoadError(f"Gemm of shapes {list(signal.shape)} and {list(matrix.shape)}; both need 2 axes")
    flip_signal, flip_matrix = ("transB", "transA") if is_reversed else ("transA", "transB")
    if node.attributes.get(flip_signal, 0):
        signal = signal.selected(np.ascontiguousarray(signal.indices().T))
    if node.attributes.get(flip_matrix, 0):
        matrix = matrix.T
    context.chain.weighted = True
    product = linear.multiply_left(matrix, signal) if is_reversed else linear.multiply_right(signal, matrix)
    result = product.scaled(np.asarray(alpha)).named(node.short)
    if constant_at(node, inputs, 2) is None or beta == 0:
        return result
    bias = np.asarray(weight_at(node, inputs, 2), dtype=np.float64) * beta
    check_broadcast(result.shape, bias)
    return result.shifted(bias)


@operator("BatchNormalization")
def batch_normalization(context: Context, node: Node, inputs: Inputs) -> Value:
    signal = signal_at(node, inputs, 0)
    if node.attributes.get("training_mode", 0) or (node.opset < 7 and not node.attributes.get("is_test", 0)):
        raise LoadError("BatchNormalization in training mode", remedy="export in evaluation mode")
    parameters = [weight_at(node, inputs, position).ravel() for position in (1, 2, 3, 4)]
    rank = len(signal.shape)
    if node.attributes.get("spatial", 1) == 0:
        shape = signal.shape[1:]
    else:
        shape = (signal.shape[1] if rank > 1 else 1, *[1] * (rank - 2))
    context.chain.weighted = True
    context.chain.note(f"{node.label} was folded")
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    return linear.normalise(signal, shape, *parameters, epsilon=epsilon).named(node.short)


@operator("Scaler", domain="ai.onnx.ml")
def scaler(context: Context, node: Node, inputs: Inputs) -> Value:
    signal = signal_at(node, inputs, 0)
    offset = check_finite(np.asarray(node.attributes.get("offset", [0.0]), dtype=np.float64), "offset")
    scale = check_finite(np.asarray(node.attributes.get("scale", [1.0]), dtype=np.float64), "scale")
    check_broadcast(signal.shape, offset)
    check_broadcast(signal.shape, scale)
    context.chain.note(f"{node.label} was folded")
    return signal.shifted(-offset).scaled(scale)
