"""Activations: ReLU, and what is written as ReLU units."""

from __future__ import annotations

import math

import numpy as np

from deploy.errors import LoadError
from deploy.loaders import activations
from deploy.loaders.onnx.affine import operands
from deploy.loaders.onnx.graph import Node
from deploy.loaders.onnx.table import Context, Inputs, Value, constant_at, operator, signal_at, weight_at

__all__: list[str] = []


@operator("Relu")
def relu(context: Context, node: Node, inputs: Inputs) -> Value:
    return context.chain.activate(signal_at(node, inputs, 0), "relu", node.label)


@operator("LeakyRelu")
def leaky_relu(context: Context, node: Node, inputs: Inputs) -> Value:
    slope = float(node.attributes.get("alpha", 0.01))
    return activations.leaky_relu(context.chain, signal_at(node, inputs, 0), slope, node.label)


@operator("PRelu")
def prelu(context: Context, node: Node, inputs: Inputs) -> Value:
    signal, slope = signal_at(node, inputs, 0), weight_at(node, inputs, 1)
    if node.opset < 7 and slope.ndim == 1 and len(signal.shape) > 1:
        slope = slope.reshape(-1, *[1] * (len(signal.shape) - 2))
    return activations.leaky_relu(context.chain, signal, slope, node.label)


@operator("Abs")
def absolute(context: Context, node: Node, inputs: Inputs) -> Value:
    return activations.absolute(context.chain, signal_at(node, inputs, 0), node.label)


@operator("Clip")
def clip(context: Context, node: Node, inputs: Inputs) -> Value:
    low, high = _bound(node, inputs, 1, "min"), _bound(node, inputs, 2, "max")
    return activations.clip(context.chain, signal_at(node, inputs, 0), low, high, node.label)


def _bound(node: Node, inputs: Inputs, position: int, name: str) -> float | None:
    """A bound of Clip, as an attribute (before opset 11) or an input; None where there is none."""
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


@operator("Max", "Min")
def extreme(context: Context, node: Node, inputs: Inputs) -> Value:
    if len(inputs) == 1:
        return signal_at(node, inputs, 0)
    signal, bound, _ = operands(context, node, inputs)
    change = activations.maximum if node.op == "Max" else activations.minimum
    return change(context.chain, signal, bound, node.label)


@operator("HardSigmoid")
def hard_sigmoid(context: Context, node: Node, inputs: Inputs) -> Value:
    alpha, beta = float(node.attributes.get("alpha", 0.2)), float(node.attributes.get("beta", 0.5))
    signal = signal_at(node, inputs, 0).scaled(np.asarray(alpha)).shifted(np.asarray(beta))
    return activations.clip(context.chain, signal, 0.0, 1.0, node.label)


@operator("ThresholdedRelu")
def thresholded_relu(context: Context, node: Node, inputs: Inputs) -> Value:
    if float(node.attributes.get("alpha", 1.0)) != 0.0:
        raise LoadError("ThresholdedRelu jumps at its threshold, which no ReLU does")
    return context.chain.activate(signal_at(node, inputs, 0), "relu", node.label)
