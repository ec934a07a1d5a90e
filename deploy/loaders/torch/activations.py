"""ATen activations: ReLU, and what is written as ReLU units."""

from __future__ import annotations

import math

import numpy as np

from deploy.errors import LoadError
from deploy.loaders import activations
from deploy.loaders.torch.affine import pair_of
from deploy.loaders.torch.table import Arguments, Context, Value, operator, signal_at, weight_at

__all__: list[str] = []


@operator("relu")
def _relu(context: Context, arguments: Arguments) -> Value:
    return context.chain.activate(signal_at(arguments, "self", "input"), "relu", context.label)


@operator("leaky_relu")
def _leaky_relu(context: Context, arguments: Arguments) -> Value:
    slope = float(arguments.get("negative_slope", 0.01))
    return activations.leaky_relu(context.chain, signal_at(arguments, "self"), slope, context.label)


@operator("prelu", "_prelu_kernel")
def _prelu(context: Context, arguments: Arguments) -> Value:
    signal, slope = signal_at(arguments, "self"), weight_at(arguments, "weight")
    if slope.ndim == 1 and len(signal.shape) > 1:
        slope = slope.reshape(-1, *[1] * (len(signal.shape) - 2))
    return activations.leaky_relu(context.chain, signal, slope, context.label)


@operator("hardtanh", "clamp", "clip", "relu6", "clamp_min", "clamp_max")
def _clamp(context: Context, arguments: Arguments) -> Value:
    low, high = (arguments.get(f"{name}_val", arguments.get(name)) for name in ("min", "max"))
    if context.op == "relu6":
        low, high = 0.0, 6.0
    signal = signal_at(arguments, "self")
    bounds = [None if bound is None or math.isinf(float(bound)) else float(bound) for bound in (low, high)]
    return activations.clip(context.chain, signal, bounds[0], bounds[1], context.label)


@operator("abs")
def _abs(context: Context, arguments: Arguments) -> Value:
    return activations.absolute(context.chain, signal_at(arguments, "self"), context.label)


@operator("maximum", "minimum", "max", "min")
def _extreme(context: Context, arguments: Arguments) -> Value:
    if "other" not in arguments:
        raise LoadError("the largest or smallest entry of a value that depends on the input")
    signal, bound, _ = pair_of(arguments)
    change = activations.maximum if context.op.startswith("max") else activations.minimum
    return change(context.chain, signal, bound, context.label)


@operator("threshold")
def _threshold(context: Context, arguments: Arguments) -> Value:
    if float(arguments["threshold"]) != 0.0 or float(arguments["value"]) != 0.0:
        raise LoadError("a threshold other than 0 jumps, which no ReLU does")
    return context.chain.activate(signal_at(arguments, "self"), "relu", context.label)


@operator("square")
def _square(context: Context, arguments: Arguments) -> Value:
    return context.chain.activate(signal_at(arguments, "self"), "square", context.label)


@operator("pow")
def _pow(context: Context, arguments: Arguments) -> Value:
    exponent = float(np.asarray(arguments["exponent"]).ravel()[0])
    if exponent != 2:
        raise LoadError(f"exponent {exponent:g}; supported is 2")
    return context.chain.activate(signal_at(arguments, "self"), "square", context.label)
