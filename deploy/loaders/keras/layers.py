"""What each Keras layer means for the chain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders import activations, linear
from deploy.loaders.chain import Chain, Piece
from deploy.loaders.keras.file import KerasFile, Layer
from deploy.loaders.keras.isolated import read_isolated
from deploy.loaders.relayout import relayout
from deploy.loaders.result import Loaded, Settings
from deploy.loaders.signal import Signal
from deploy.loaders.tails import Tailed, close_tail, end_network, mid_network, span_one_group
from deploy.loaders.weights import check_broadcast, check_finite

__all__ = ["load_keras"]

Value = Signal | Tailed

_NOTHING = frozenset(
    {
        *("InputLayer", "Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "GaussianNoise"),
        *("GaussianDropout", "AlphaDropout", "ActivityRegularization", "Identity"),
    }
)
"""Layers that do nothing at inference."""


def load_keras(path: Path, settings: Settings, *, is_archive: bool) -> Loaded:
    """Read a .keras archive or a .h5 file into layers, naming the layer that cannot be read."""
    file = read_isolated(path, settings.max_parameters, is_archive=is_archive)
    shape = settings.input_shape or _row_shape(file)
    chain = Chain(limit=settings.max_parameters)
    value: Value = chain.input((1, *shape))
    for layer in file.layers:
        try:
            value = _apply(chain, value, layer)
        except LoadError as error:
            raise error.at(f"layer {layer.name} ({layer.kind})") from None
    ending = close_tail([("output", value)])
    chain.finish(ending.logits, "output")
    return Loaded(chain, ending, shape)


def _row_shape(file: KerasFile) -> tuple[int, ...]:
    stated = file.input_shape
    if stated is not None and all(isinstance(length, int) for length in stated):
        return tuple(int(length) for length in stated if length is not None)
    first = next((layer for layer in file.layers if layer.kind not in _NOTHING), None)
    if first is not None and first.kind == "Dense" and first.weights:
        return (int(first.weights[0].shape[0]),)
    raise LoadError(
        f"the input shape {stated} is not fixed", remedy="give it: --input-shape 28x28 (input_shape=(28, 28))"
    )


def _apply(chain: Chain, value: Value, layer: Layer) -> Value:
    if layer.kind in _NOTHING:
        if layer.kind not in ("InputLayer", "Identity"):
            chain.note(f"layer {layer.name} ({layer.kind}) was dropped: it does nothing at inference")
        return value
    if layer.kind not in _LAYERS:
        raise LoadError(f"{layer.kind} is not supported", remedy=f"supported are {', '.join(sorted(_LAYERS))}")
    if isinstance(value, Tailed):
        raise mid_network(value)
    return _LAYERS[layer.kind](chain, value, layer)


def _activate(chain: Chain, signal: Signal, activation: object, name: str) -> Value:
    """An activation by its name, or by the object that a configuration holds."""
    settings: Mapping[str, Any] = {}
    if isinstance(activation, dict):
        inner = activation.get("config")
        settings = inner if isinstance(inner, dict) else {}
        activation = inner if isinstance(inner, str) else activation.get("class_name")
    word = str(activation or "linear").lower().replace("_", "")
    if word in ("linear", "identity"):
        return signal
    if word == "relu":
        return _relu(chain, signal, settings, name)
    if word == "relu6":
        return activations.clip(chain, signal, 0.0, 6.0, name)
    if word == "leakyrelu":
        return activations.leaky_relu(chain, signal, _slope(settings, 0.2), name)
    if word in ("softmax", "logsoftmax"):
        span_one_group(signal, -1)
        return end_network(signal, "softmax" if word == "softmax" else "log_softmax", f"layer {name} ({word})")
    if word == "sigmoid":
        return end_network(signal, "sigmoid", f"layer {name} (sigmoid)")
    raise LoadError(
        f"activation {activation} is not a ReLU", remedy="supported are relu, relu6, leaky_relu, softmax, sigmoid"
    )


def _slope(settings: Mapping[str, Any], default: float) -> float:
    return float(settings.get("negative_slope", settings.get("alpha", default)) or 0.0)


def _relu(chain: Chain, signal: Signal, settings: Mapping[str, Any], name: str) -> Signal:
    slope, top = _slope(settings, 0.0), settings.get("max_value")
    if float(settings.get("threshold") or 0.0) != 0.0:
        raise LoadError("a threshold makes ReLU jump, which no ReLU network does")
    if top is None:
        return activations.leaky_relu(chain, signal, slope, name)
    if not slope:
        return activations.clip(chain, signal, 0.0, float(top), name)
    chain.note(f"{name} was rewritten as {3 * signal.size} ReLU units")
    pieces = [Piece(1.0, 0.0, 1.0), Piece(-1.0, 0.0, -slope), Piece(1.0, -float(top), -1.0)]
    return chain.activate_pieces(signal, pieces, 0.0, name)


def _need(layer: Layer, count: int) -> list[Array]:
    if len(layer.weights) < count:
        raise LoadError(f"{len(layer.weights)} arrays of weights, {count} expected")
    return [
        np.asarray(check_finite(array, f"{layer.name} {index}"), dtype=np.float64)
        for index, array in enumerate(layer.weights)
    ]


def _dense(chain: Chain, signal: Signal, layer: Layer) -> Value:
    has_bias = bool(layer.config.get("use_bias", True))
    kernel, *rest = _need(layer, 1 + has_bias)
    if kernel.ndim != 2:
        raise LoadError(f"kernel of shape {list(kernel.shape)}")
    chain.weighted = True
    result = linear.multiply_right(signal, kernel)
    if has_bias:
        check_broadcast(result.shape, rest[0])
        result = result.shifted(rest[0])
    return _activate(chain, result.named(layer.name), layer.config.get("activation"), layer.name)


def _flatten(chain: Chain, signal: Signal, layer: Layer) -> Value:
    if layer.config.get("data_format") == "channels_first" and len(signal.shape) > 2:
        signal = signal.selected(np.moveaxis(signal.indices(), 1, -1))
    return signal.reshaped((1, signal.size))


def _reshape(chain: Chain, signal: Signal, layer: Layer) -> Value:
    target = [1, *(int(length) for length in layer.config.get("target_shape", ()))]
    return relayout(signal, lambda a: a.reshape(target))


def _permute(chain: Chain, signal: Signal, layer: Layer) -> Value:
    dims = [0, *(int(axis) for axis in layer.config.get("dims", ()))]
    return relayout(signal, lambda a: np.transpose(a, dims))


def _normalise_batch(chain: Chain, signal: Signal, layer: Layer) -> Value:
    has_scale, has_shift = bool(layer.config.get("scale", True)), bool(layer.config.get("center", True))
    arrays = _need(layer, 2 + has_scale + has_shift)
    mean, variance = arrays[has_scale + has_shift], arrays[has_scale + has_shift + 1]
    scale = arrays[0] if has_scale else np.ones(mean.size)
    shift = arrays[int(has_scale)] if has_shift else np.zeros(mean.size)
    axis = layer.config.get("axis", -1)
    axis = int(axis[0] if isinstance(axis, list) else axis)
    if not -len(signal.shape) <= axis < len(signal.shape):
        raise LoadError(f"axis {axis} of shape {list(signal.shape)}")
    shape = [1] * len(signal.shape)
    shape[axis] = signal.shape[axis]
    chain.weighted = True
    chain.note(f"layer {layer.name} (BatchNormalization) was folded")
    epsilon = float(layer.config.get("epsilon", 1e-3))
    return linear.normalise(signal, shape, scale, shift, mean, variance, epsilon=epsilon).named(layer.name)


def _normalise(chain: Chain, signal: Signal, layer: Layer) -> Value:
    """(x - mean) / max(sqrt(variance), 1e-7), from the weights or the configuration."""
    if layer.config.get("invert"):
        raise LoadError("Normalization with invert=True")
    stated = [layer.config.get("mean"), layer.config.get("variance")]
    mean, variance = (np.asarray(array, dtype=np.float64) for array in (*layer.weights, *stated)[:2])
    check_finite(mean, "mean")
    check_finite(variance, "variance")
    if not np.all(variance >= 0):
        raise LoadError("a negative variance")
    gain = 1.0 / np.maximum(np.sqrt(variance), 1e-7)
    check_broadcast(signal.shape, mean)
    check_broadcast(signal.shape, gain)
    chain.note(f"layer {layer.name} (Normalization) was folded")
    return signal.shifted(-mean).scaled(gain)


def _rescale(chain: Chain, signal: Signal, layer: Layer) -> Value:
    scale, offset = (np.asarray(layer.config.get(n, d), dtype=np.float64) for n, d in (("scale", 1), ("offset", 0)))
    check_broadcast(signal.shape, check_finite(scale, "scale"))
    check_broadcast(signal.shape, check_finite(offset, "offset"))
    chain.note(f"layer {layer.name} (Rescaling) was folded")
    return signal.scaled(scale).shifted(offset)


def _channels_first(signal: Signal, layer: Layer) -> tuple[Signal, bool]:
    """The signal with channels on axis 1, and whether they have to go back to the end."""
    is_last = layer.config.get("data_format", "channels_last") != "channels_first"
    return (signal.selected(np.moveaxis(signal.indices(), -1, 1)) if is_last else signal), is_last


def _back(signal: Signal, is_last: bool) -> Signal:
    return signal.selected(np.moveaxis(signal.indices(), 1, -1)) if is_last else signal


def _sizes(value: object, axes: int) -> list[int]:
    sizes = [int(item) for item in value] if isinstance(value, list | tuple) else [int(str(value))] * axes
    if len(sizes) != axes:
        raise LoadError(f"{sizes} for {axes} axes")
    return sizes


def _pads(
    mode: object, spatial: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    if mode == "valid":
        return [0] * (2 * len(kernel))
    if mode != "same" or min(strides) < 1:
        raise LoadError(f"padding {mode!r} with strides {list(strides)}", remedy="supported are valid and same")
    totals = [
        max(0, (-(-n // s) - 1) * s + d * (k - 1) + 1 - n)
        for n, s, k, d in zip(spatial, strides, kernel, dilations, strict=True)
    ]
    return [*(total // 2 for total in totals), *(total - total // 2 for total in totals)]


def _convolve(chain: Chain, signal: Signal, layer: Layer) -> Value:
    has_bias = bool(layer.config.get("use_bias", True))
    kernel, *rest = _need(layer, 1 + has_bias)
    first, is_last = _channels_first(signal, layer)
    axes = kernel.ndim - 2
    if axes < 1 or len(first.shape) != kernel.ndim:
        raise LoadError(f"kernel of shape {list(kernel.shape)} over a tensor of shape {list(signal.shape)}")
    groups = int(layer.config.get("groups", 1))
    if layer.kind == "DepthwiseConv2D":
        groups = kernel.shape[-2]
        kernel = kernel.reshape(*kernel.shape[:-2], 1, -1)
    weight = np.moveaxis(kernel, (-1, -2), (0, 1))
    strides = _sizes(layer.config.get("strides", 1), axes)
    dilations = _sizes(layer.config.get("dilation_rate", 1), axes)
    pads = _pads(layer.config.get("padding", "valid"), first.shape[2:], weight.shape[2:], strides, dilations)
    result = linear.convolve(first, weight, strides=strides, pads=pads, dilations=dilations, groups=groups)
    if has_bias:
        if rest[0].size != result.shape[1]:
            raise LoadError(f"bias of {rest[0].size} entries for {result.shape[1]} channels")
        result = result.shifted(rest[0].reshape(-1, *[1] * axes))
    chain.weighted = True
    chain.note(f"layer {layer.name} ({layer.kind}) was lowered to a dense layer of {result.size} x {signal.size}")
    result = _back(result, is_last).named(layer.name)
    return _activate(chain, result, layer.config.get("activation"), layer.name)


def _pool(chain: Chain, signal: Signal, layer: Layer) -> Value:
    first, is_last = _channels_first(signal, layer)
    axes = len(first.shape) - 2
    kernel = _sizes(layer.config.get("pool_size", 2), axes)
    strides = _sizes(layer.config.get("strides") or kernel, axes)
    ones = [1] * axes
    pads = _pads(layer.config.get("padding", "valid"), first.shape[2:], kernel, strides, ones)
    result = linear.average_pool(first, kernel, strides=strides, pads=pads, dilations=ones, count_padding=False)
    return _back(result, is_last)


def _pool_all(chain: Chain, signal: Signal, layer: Layer) -> Value:
    first, is_last = _channels_first(signal, layer)
    keep = bool(layer.config.get("keepdims", False))
    result = linear.reduce_axes(first, range(2, len(first.shape)), keep=keep, mean=True)
    return _back(result, is_last and keep)


def _pad(chain: Chain, signal: Signal, layer: Layer) -> Value:
    first, is_last = _channels_first(signal, layer)
    axes = len(first.shape) - 2
    given = layer.config.get("padding", 1)
    given = given if isinstance(given, list) else [given] * axes
    if axes == 1 and len(given) == 2:
        given = [given]
    widths = [(int(w[0]), int(w[1])) if isinstance(w, list) else (int(w), int(w)) for w in given]
    if len(widths) != axes:
        raise LoadError(f"padding {given} for {axes} axes")
    return _back(linear.pad(first, [(0, 0), (0, 0), *widths], 0.0), is_last)


def _leaky(chain: Chain, signal: Signal, layer: Layer) -> Value:
    return activations.leaky_relu(chain, signal, _slope(layer.config, 0.3), layer.name)


def _prelu(chain: Chain, signal: Signal, layer: Layer) -> Value:
    (slope, *_) = _need(layer, 1)
    return activations.leaky_relu(chain, signal, slope, layer.name)


def _softmax(chain: Chain, signal: Signal, layer: Layer) -> Value:
    axis = layer.config.get("axis", -1)
    span_one_group(signal, int(axis[0] if isinstance(axis, list) else axis))
    return end_network(signal, "softmax", f"layer {layer.name} (Softmax)")


_LAYERS: Mapping[str, Callable[[Chain, Signal, Layer], Value]] = {
    "Dense": _dense,
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Permute": _permute,
    "BatchNormalization": _normalise_batch,
    "Normalization": _normalise,
    "Rescaling": _rescale,
    "Activation": lambda chain, signal, layer: _activate(chain, signal, layer.config.get("activation"), layer.name),
    "ReLU": lambda chain, signal, layer: _relu(chain, signal, layer.config, layer.name),
    "LeakyReLU": _leaky,
    "PReLU": _prelu,
    "Softmax": _softmax,
    "Conv1D": _convolve,
    "Conv2D": _convolve,
    "Conv3D": _convolve,
    "DepthwiseConv2D": _convolve,
    "AveragePooling1D": _pool,
    "AveragePooling2D": _pool,
    "AveragePooling3D": _pool,
    "GlobalAveragePooling1D": _pool_all,
    "GlobalAveragePooling2D": _pool_all,
    "ZeroPadding1D": _pad,
    "ZeroPadding2D": _pad,
    "ZeroPadding3D": _pad,
}
