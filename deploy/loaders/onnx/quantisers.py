"""Quantisers: dequantised exactly where they act on weights, refused by name where they act on activations.

The QONNX operators follow the published QONNX definitions (github.com/fastmachinelearning/qonnx): scale, shift,
clamp, round, and back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders.onnx.folding import fold
from deploy.loaders.onnx.graph import Node
from deploy.loaders.onnx.table import Context, Inputs, Value, constant_at, operator, weight_at

__all__: list[str] = []

_QONNX = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")

_ROUNDING: Mapping[str, Callable[[Array], Array]] = {
    "ROUND": np.round,
    "HALF_EVEN": np.round,
    "CEIL": np.ceil,
    "FLOOR": np.floor,
    "UP": lambda y: np.sign(y) * np.ceil(np.abs(y)),
    "DOWN": np.trunc,
    "ROUND_TO_ZERO": np.trunc,
    "HALF_UP": lambda y: np.sign(y) * np.floor(np.abs(y) + 0.5),
    "HALF_DOWN": lambda y: np.sign(y) * np.ceil(np.abs(y) - 0.5),
}


def _refuse_activations(node: Node, inputs: Inputs) -> None:
    if any(value is not None and not isinstance(value, np.ndarray) for value in inputs):
        raise LoadError(
            f"{node.op} quantises activations, so the network is not a ReLU network",
            remedy="quantised weights alone are dequantised exactly; export without activation quantisers",
        )


@operator("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", folds=True)
def quantise_linear(context: Context, node: Node, inputs: Inputs) -> Value | tuple[Value, ...]:
    _refuse_activations(node, inputs)
    context.chain.note("quantised weights were dequantised")
    return fold(node, [constant_at(node, inputs, position) for position in range(len(inputs))])


def quant(context: Context, node: Node, inputs: Inputs) -> Value:
    _refuse_activations(node, inputs)
    weight, scale, zero, bits = (weight_at(node, inputs, position) for position in range(4))
    if bits.size != 1 or not 1 <= float(bits.ravel()[0]) <= 32:
        raise LoadError(f"bit width {bits.ravel()[:3].tolist()}", remedy="supported is one width of 1 to 32 bits")
    context.chain.note("quantised weights were dequantised")
    width, is_signed = float(bits.ravel()[0]), bool(node.attributes.get("signed", 1))
    is_narrow = bool(node.attributes.get("narrow", 0))
    mode = str(node.attributes.get("rounding_mode", "ROUND")).upper()
    if mode not in _ROUNDING or not np.all(scale):
        raise LoadError(f"rounding mode {mode}, {int(scale.size - np.count_nonzero(scale))} scales of zero")
    y = weight / scale + zero
    if width == 1 and is_signed:
        y = np.where(y >= 0, 1.0, -1.0)
    else:
        high = 2 ** (width - 1) - 1 if is_signed else 2**width - 1 - is_narrow
        low = -(2 ** (width - 1)) + is_narrow if is_signed else 0.0
        y = _ROUNDING[mode](np.clip(y, low, high))
    return np.asarray((y - zero) * scale)


def bipolar_quant(context: Context, node: Node, inputs: Inputs) -> Value:
    _refuse_activations(node, inputs)
    weight, scale = weight_at(node, inputs, 0), weight_at(node, inputs, 1)
    context.chain.note("quantised weights were dequantised")
    return np.asarray(np.where(weight >= 0, 1.0, -1.0).astype(scale.dtype) * scale)


def trunc(context: Context, node: Node, inputs: Inputs) -> Value:
    _refuse_activations(node, inputs)
    raise LoadError("Trunc of weights", remedy="export the truncated weights")


for _domain in _QONNX:
    operator("Quant", "IntQuant", domain=_domain, folds=True)(quant)
    operator("BipolarQuant", domain=_domain, folds=True)(bipolar_quant)
    operator("Trunc", domain=_domain, folds=True)(trunc)
