"""The polynomial network as an ONNX file, for anyone who wants to run it in the clear.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fhe.network import PolynomialNetwork

__all__ = ["export_onnx"]

_OPSET = 17


def export_onnx(network: PolynomialNetwork) -> bytes:
    """Write Gemm, Mul and Add nodes in float64 (Horner's rule per unit), batch free; the same bytes every time.

    Input ``x`` (batch, n_in) and output ``logits`` (batch, n_out) are doubles: a float32 file would not decide as
    the network does.
    """
    from onnx import TensorProto, checker, helper, numpy_helper

    nodes: list[Any] = []
    numbers: list[Any] = []

    def constant(name: str, values: object) -> str:
        numbers.append(numpy_helper.from_array(np.asarray(values, dtype=np.float64), name))
        return name

    def node(kind: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    h = "x"
    last = len(network.affines) - 1
    for index, layer in enumerate(network.affines):
        weight = constant(f"weight_{index}", layer.weight)
        bias = constant(f"bias_{index}", layer.bias)
        z = node("Gemm", [h, weight, bias], "logits" if index == last else f"z_{index}", transB=1)
        if index == last:
            break
        table = network.coefficients[index]
        degree = network.degrees[index]
        value = node("Mul", [z, constant(f"a_{index}_{degree}", table[:, degree])], f"p_{index}_{degree}")
        for power in range(degree - 1, 0, -1):
            raised = node("Add", [value, constant(f"a_{index}_{power}", table[:, power])], f"s_{index}_{power}")
            value = node("Mul", [raised, z], f"p_{index}_{power}")
        h = value
    graph = helper.make_graph(
        nodes,
        "polynomial_network",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["batch", network.n_in])],
        [helper.make_tensor_value_info("logits", TensorProto.DOUBLE, ["batch", network.n_out])],
        numbers,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", _OPSET)], producer_name="relu-deploy", ir_version=8
    )
    checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))
