"""What files do with the logits: probabilities, labels, dictionaries."""

from __future__ import annotations

import math

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders.onnx.graph import Node
from deploy.loaders.onnx.table import Context, Inputs, Value, constant_at, moved_at, operator, signal_at
from deploy.loaders.relayout import relayout
from deploy.loaders.signal import Signal
from deploy.loaders.tails import (
    Tailed,
    decide,
    end_network,
    mid_network,
    name_classes,
    span_one_group,
    stripped_decision,
)

__all__ = ["complement", "look_up"]


@operator("Softmax", "LogSoftmax")
def softmax(context: Context, node: Node, inputs: Inputs) -> Value:
    signal = signal_at(node, inputs, 0)
    axis = int(node.attributes.get("axis", -1 if node.opset >= 13 else 1))
    if node.opset >= 13:
        span_one_group(signal, axis)
    elif math.prod(signal.shape[axis:]) != signal.size:
        raise LoadError(f"over axes from {axis} of shape {list(signal.shape)}: several groups a row")
    return end_network(signal, "softmax" if node.op == "Softmax" else "log_softmax", node.label)


@operator("Sigmoid")
def sigmoid(context: Context, node: Node, inputs: Inputs) -> Value:
    return end_network(signal_at(node, inputs, 0), "sigmoid", node.label)


def complement(node: Node, inputs: Inputs, position: int) -> Value:
    """1 - sigmoid, half of the pair that scikit-learn exports; nothing else may be added to a tail."""
    value, other = inputs[position], inputs[1 - position]
    assert isinstance(value, Tailed)
    is_one = isinstance(other, np.ndarray) and other.size == 1 and float(other.ravel()[0]) == 1.0
    if node.op == "Sub" and position == 1 and is_one and value.function == "sigmoid" and value.rule is None:
        return Tailed(value.logits, "complement", value.columns, value.made_by)
    raise mid_network(value)


@operator("ArgMax", "ArgMin", takes_tail=True)
def arg_extreme(context: Context, node: Node, inputs: Inputs) -> Value:
    value = moved_at(node, inputs, 0)
    span_one_group(value, int(node.attributes.get("axis", 0)))
    context.chain.note(stripped_decision(node.label))
    rank = len(value.shape) if int(node.attributes.get("keepdims", 1)) else len(value.shape) - 1
    return decide(value, "argmax" if node.op == "ArgMax" else "argmin", (1,) * rank, node.label)


def look_up(names: Array, value: Tailed) -> Value:
    """A table of class names, read by a label."""
    if value.rule is None:
        raise LoadError("looks up a table by a number that is no label")
    return name_classes(value, names.ravel().tolist())


@operator("ArrayFeatureExtractor", domain="ai.onnx.ml", takes_tail=True)
def array_feature_extractor(context: Context, node: Node, inputs: Inputs) -> Value:
    if isinstance(inputs[0], np.ndarray) and isinstance(inputs[1], Tailed):
        return look_up(inputs[0], inputs[1])
    index = constant_at(node, inputs, 1)
    if index is None or index.dtype.kind not in "iu":
        raise LoadError("ArrayFeatureExtractor without constant indices")
    return relayout(moved_at(node, inputs, 0), lambda a: np.take(a, index.ravel(), -1))


@operator("ZipMap", domain="ai.onnx.ml", takes_tail=True)
def zip_map(context: Context, node: Node, inputs: Inputs) -> Value:
    value = moved_at(node, inputs, 0)
    labels = node.attributes.get("classlabels_int64s") or node.attributes.get("classlabels_strings") or []
    tailed = end_network(value, "none", node.label) if isinstance(value, Signal) else value
    if len(labels) != tailed.columns.size:
        raise LoadError(f"{len(labels)} class labels for {tailed.columns.size} values")
    return name_classes(tailed, labels)


@operator("Log", takes_tail=True)
def log(context: Context, node: Node, inputs: Inputs) -> Value:
    value = moved_at(node, inputs, 0)
    if isinstance(value, Tailed) and value.function == "softmax" and value.rule is None:
        return Tailed(value.logits, "log_softmax", value.columns, value.made_by, classes=value.classes)
    raise LoadError("Log is not a ReLU")


@operator("Greater", "GreaterOrEqual", takes_tail=True)
def greater(context: Context, node: Node, inputs: Inputs) -> Value:
    value, threshold = moved_at(node, inputs, 0), constant_at(node, inputs, 1)
    bound = float(threshold.ravel()[0]) if threshold is not None and threshold.size == 1 else math.nan
    function, expected = (value.function, 0.5) if isinstance(value, Tailed) else ("none", 0.0)
    if function not in ("none", "sigmoid") or value.indices().size != 1 or bound != expected:
        raise LoadError(f"a comparison with {bound}; supported is one sigmoid > 0.5 or one logit > 0")
    context.chain.note(stripped_decision(node.label))
    return decide(value, "sign", value.shape, node.label)


@operator("LabelEncoder", domain="ai.onnx.ml", takes_tail=True)
def label_encoder(context: Context, node: Node, inputs: Inputs) -> Value:
    value = moved_at(node, inputs, 0)
    keys = node.attributes.get("keys_int64s") or []
    names = node.attributes.get("values_strings") or node.attributes.get("values_int64s") or []
    if not isinstance(value, Tailed) or value.rule is None or len(keys) != len(names):
        raise LoadError("LabelEncoder of something that is no label")
    order = dict(zip(keys, names, strict=True))
    current = value.classes or tuple(range(len(keys)))
    if any(label not in order for label in current):
        raise LoadError(f"LabelEncoder knows {sorted(order)}, the labels are {list(current)}")
    return name_classes(value, [order[label] for label in current])
