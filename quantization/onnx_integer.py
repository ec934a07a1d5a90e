"""The integer program as a standard ONNX model: integers in, integers out, no float anywhere.

Input ``q`` (batch, n_in) int8, or int16 for 16-bit activations; output ``totals`` (batch, n_out) int64,
fixed-point logits. Products are MatMulInteger (int8 by int8 into int32), the rescale is int64 arithmetic. ONNX
has no arithmetic shift right, and its Div rounds towards zero: the clamp at ``low`` is taken before the
division, which then has nothing negative to divide. 16-bit activations go through as two signed bytes.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from deploy.arrays import Array
from quantization.integer import IntegerLayer, IntegerMlp, Term

__all__ = ["build_integer_model"]

OPSET, IR = 21, 10


def build_integer_model(program: IntegerMlp) -> bytes:
    """Serialise a program; the same program gives the same bytes."""
    graph = _Graph()
    kind = TensorProto.INT8 if program.bits == 8 else TensorProto.INT16
    h = "q" if program.bits == 8 else graph.add("Cast", "q", to=TensorProto.INT32)
    for index, layer in enumerate(program.layers):
        graph.prefix = f"layer{index}"
        last = index == len(program.layers) - 1
        totals = _totals(graph, program, layer, h, 0 if last else -(program.low << layer.shift))
        h = totals if last else _requantize(graph, program, layer, totals)
    graph.nodes[-1].output[0] = "totals"
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "integer_mlp",
            [helper.make_tensor_value_info("q", kind, ["batch", program.n_in])],
            [helper.make_tensor_value_info("totals", TensorProto.INT64, ["batch", program.n_out])],
            graph.constants,
            doc_string=f"logits = totals * 2^-{program.layers[-1].shift}",
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR,
        producer_name="relu-deploy",
    )
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString(deterministic=True))


class _Graph:
    """Nodes and constants in the making; every name is unique."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.prefix = "input"

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output and give its name."""
        name = f"{self.prefix}/{operator}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, values: Array, what: str) -> str:
        """Add an initialiser and give its name."""
        name = f"{self.prefix}/{what}{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def number(self, value: int, kind: type = np.int64) -> str:
        """A scalar."""
        return self.constant(np.array(value, dtype=kind), "number")


def _totals(graph: _Graph, program: IntegerMlp, layer: IntegerLayer, h: str, lift: int) -> str:
    """Σ m acc + offset + lift, int64."""
    total = ""
    for term in layer.terms:
        columns = h
        if (term.begin, term.end) != (0, max(term.end for term in layer.terms)):
            ends = (graph.constant(np.array([value]), "column") for value in (term.begin, term.end, 1))
            columns = graph.add("Slice", h, *ends)
        scaled = graph.add("Mul", _accumulate(graph, program, columns, term), graph.constant(term.multiplier, "m"))
        total = graph.add("Add", total, scaled) if total else scaled
    return graph.add("Add", total, graph.constant(layer.offset + lift, "offset"))


def _accumulate(graph: _Graph, program: IntegerMlp, h: str, term: Term) -> str:
    codes = graph.constant(term.codes.T, "codes")
    if program.bits == 8:
        return graph.add("Cast", graph.add("MatMulInteger", h, codes), to=TensorProto.INT64)
    lifted = graph.add("Add", h, graph.number(32768 + 128, np.int32))
    high = graph.add("Sub", graph.add("Div", lifted, graph.number(256, np.int32)), graph.number(128, np.int32))
    low = graph.add("Sub", h, graph.add("Mul", high, graph.number(256, np.int32)))
    sums = [
        graph.add(
            "Cast",
            graph.add("MatMulInteger", graph.add("Cast", part, to=TensorProto.INT8), codes),
            to=TensorProto.INT64,
        )
        for part in (high, low)
    ]
    return graph.add("Add", graph.add("Mul", sums[0], graph.number(256)), sums[1])


def _requantize(graph: _Graph, program: IntegerMlp, layer: IntegerLayer, lifted: str) -> str:
    """clamp(total >> shift, low, high), from total - low * 2^shift."""
    floor = graph.add("Max", lifted, graph.number(0))
    shifted = graph.add("Div", floor, graph.number(1 << layer.shift))
    ceiling = graph.add("Min", shifted, graph.number(program.high - program.low))
    activation = graph.add("Add", ceiling, graph.number(program.low))
    return graph.add("Cast", activation, to=TensorProto.INT8 if program.bits == 8 else TensorProto.INT32)
