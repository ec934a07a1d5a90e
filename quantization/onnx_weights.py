"""Float models with packed weights, in the two forms that onnxruntime runs on its two-bit kernel.

``dequantize``   standard ONNX: DequantizeLinear of INT2 in blocks (opset 25), then MatMul; onnxruntime fuses the
pair ``nbits``        its own ``com.microsoft.MatMulNBits`` with bits = 2 and accuracy_level = 4, written out

Both need the columns of a layer to be whole blocks of a power of two; other widths are computed without that
kernel, twenty times slower. So hidden widths are padded with rows of zeros, which give zeros behind the ReLU,
and the input by one Pad. Three more things that onnxruntime 1.32 asks for: an Add behind a MatMul turns into a
Gemm before the fusion sees it, so the bias is subtracted, negated; with INT2 weights whose rows are not whole
bytes (outputs not a multiple of four) the fused kernel answers *wrongly*, so the logits are padded to four and
sliced; and opset 28 is refused for DequantizeLinear.

At accuracy_level 4 onnxruntime rounds the activations of each block to int8. That is its choice of arithmetic,
not ours: the distance from the reference is measured, not zero.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from deploy.arrays import Array
from deploy.errors import PlanError
from quantization.network import Plane, QuantizedLayer, QuantizedMlp
from quantization.packing import pack_two_bits

__all__ = ["WeightForm", "build_weight_model"]

WeightForm = Literal["dequantize", "nbits"]

OPSET, IR = 25, 13
BLOCK = 128


def build_weight_model(network: QuantizedMlp, form: WeightForm = "dequantize") -> bytes:
    """Serialise a network with float32 input ``x`` and output ``logits``; the same network gives the same bytes.

    Raises
    ------
    PlanError : groups of columns that are no blocks of this form.
    """
    nodes: list[Any] = []
    constants: list[Any] = []

    def add(operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        name = f"{operator}{len(nodes)}"
        nodes.append(helper.make_node(operator, list(inputs), [name], name=name, domain=domain, **attributes))
        return name

    def constant(tensor: Any) -> str:
        constants.append(tensor)
        return str(tensor.name)

    def array(values: Array, name: str) -> str:
        return constant(numpy_helper.from_array(values, name))

    h = "x"
    first = network.layers[0]
    if first.columns is not None:
        h = add("Mul", h, array(first.columns.astype(np.float32), "columns"))
    width = _padded(network.n_in)
    if width != network.n_in:
        h = add("Pad", h, array(np.array([0, 0, 0, width - network.n_in]), "padding"))
    for index, layer in enumerate(network.layers):
        last = index == len(network.layers) - 1
        n_out = -(-layer.shape[0] // 4) * 4 if last else _padded(layer.shape[0])
        bias = np.zeros(n_out, dtype=np.float32)
        bias[: layer.shape[0]] = -layer.bias
        total = ""
        for at, plane in enumerate(layer.planes):
            name = f"layer{index}.plane{at}"
            block = _block_of(plane, layer, width)
            codes, scales = _pad_plane(plane, n_out, width, block)
            if form == "nbits" and plane.levels == 1:
                product = add(
                    "MatMulNBits",
                    h,
                    constant(_bytes_tensor(pack_two_bits(codes.reshape(n_out, -1, block)), f"{name}.codes")),
                    array(scales.reshape(-1), f"{name}.scales"),
                    domain="com.microsoft",
                    K=width,
                    N=n_out,
                    bits=2,
                    block_size=block,
                    accuracy_level=4,
                )
            else:
                weight = add(
                    "DequantizeLinear",
                    constant(_code_tensor(codes.T, plane.levels, f"{name}.codes")),
                    array(np.ascontiguousarray(scales.T), f"{name}.scales"),
                    axis=0,
                    block_size=block,
                )
                product = add("MatMul", h, weight)
            total = add("Add", total, product) if total else product
        h = add("Sub", total, array(bias, f"layer{index}.minus_bias"))
        if not last:
            h = add("Relu", h)
        width = n_out
    if width != network.n_out:
        ends = [
            array(np.array([value]), name) for value, name in ((0, "first"), (network.n_out, "past"), (1, "axis"))
        ]
        h = add("Slice", h, *ends)
    nodes[-1].output[0] = "logits"
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "ternary_mlp",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", network.n_in])],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", network.n_out])],
            constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)]
        + ([helper.make_opsetid("com.microsoft", 1)] if form == "nbits" else []),
        ir_version=IR,
        producer_name="relu-deploy",
    )
    if form == "dequantize":
        onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString(deterministic=True))


def _block(width: int) -> int:
    """128, or the power of two from 16 up that holds a narrower layer."""
    return min(BLOCK, max(16, 1 << (width - 1).bit_length()))


def _padded(width: int) -> int:
    """Width in whole blocks."""
    return -(-width // _block(width)) * _block(width)


def _block_of(plane: Plane, layer: QuantizedLayer, width: int) -> int:
    """Block of a plane: any where one scale holds for the row, otherwise the group itself."""
    if plane.group == layer.shape[1]:
        return _block(width)
    if plane.group < 16 or plane.group & (plane.group - 1) or width % plane.group:
        raise PlanError(
            f"groups of {plane.group} columns are no blocks of MatMulNBits",
            place=layer.name,
            remedy="use one scale a row, or groups of 16, 32, 64 or 128",
        )
    return plane.group


def _pad_plane(plane: Plane, n_out: int, width: int, block: int) -> tuple[Array, Array]:
    """Codes (n_out, width) int8 and a scale for each block (n_out, width / block) float32; the padding is zero."""
    rows, n_in = plane.codes.shape
    codes = np.zeros((n_out, width), dtype=np.int8)
    codes[:rows, :n_in] = plane.codes
    scales = np.zeros((n_out, width // block), dtype=np.float32)
    repeated = np.repeat(plane.scales, -(-plane.group // block), axis=1)[:, : scales.shape[1]]
    scales[:rows, : repeated.shape[1]] = repeated
    return codes, scales


def _bytes_tensor(values: Array, name: str) -> Any:
    return numpy_helper.from_array(np.ascontiguousarray(values), name)


def _code_tensor(codes: Array, levels: int, name: str) -> Any:
    """Codes as INT2, INT4 or INT8, two's complement, first element lowest."""
    flat = np.ascontiguousarray(codes).ravel().astype(np.uint8)
    if levels == 1:
        kind, bits = TensorProto.INT2, 2
    elif levels <= 7:
        kind, bits = TensorProto.INT4, 4
    else:
        kind, bits = TensorProto.INT8, 8
    per_byte = 8 // bits
    digits = np.pad(flat & (2**bits - 1), (0, -flat.size % per_byte)).reshape(-1, per_byte)
    packed = np.zeros(len(digits), dtype=np.uint8)
    for at in range(per_byte):
        packed |= (digits[:, at] << (bits * at)).astype(np.uint8)
    return helper.make_tensor(name, kind, codes.shape, packed.tobytes(), raw=True)
