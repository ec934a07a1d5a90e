"""Constant folding: operators whose every input is a constant, by ONNX's own reference evaluator.

Only operators that exporters put between constants (shapes, weight layouts, dequantisation) are folded; the size of
what they would make is bounded before they run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders.onnx.graph import Node

__all__ = ["fold"]

FOLDABLE = frozenset(
    {
        *(
            "Add",
            "Sub",
            "Mul",
            "Div",
            "Mod",
            "Neg",
            "Abs",
            "Sign",
            "Reciprocal",
            "Sqrt",
            "Exp",
            "Log",
            "Pow",
            "Clip",
        ),
        *("Ceil", "Floor", "Round", "Relu", "Max", "Min", "Mean", "Sum", "MatMul", "Gemm"),
        *("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"),
        *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Not", "Where"),
        *("Cast", "CastLike", "Identity", "Shape", "Size", "Range", "ConstantOfShape"),
        *("Concat", "Expand", "Flatten", "Gather", "GatherND", "Reshape", "Slice", "Split", "Squeeze", "Tile"),
        *("Transpose", "Unsqueeze", "QuantizeLinear", "DequantizeLinear"),
    }
)
"""Default-domain operators that exporters put between constants."""

_LIMIT = 1 << 26
_FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, RuntimeError)


def fold(node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
    """Compute the node's outputs.

    Raises
    ------
    LoadError : the operator is not one that is folded, its inputs do not fit, or its output would be too large.
    """
    if node.domain or node.op not in FOLDABLE:
        raise LoadError(f"{node.op} of constants is not supported", remedy="simplify the model first (onnxsim)")
    _check_growth(node, inputs)
    names = [f"i{position}" if name else "" for position, name in enumerate(node.inputs)]
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    del proto.input[:]
    proto.input.extend(names)
    feeds = {name: value for name, value in zip(names, inputs, strict=True) if name}
    graph = onnx.GraphProto(name="constants")
    graph.node.append(proto)
    graph.input.extend(helper.make_empty_tensor_value_info(name) for name in feeds)
    wanted = [name for name in node.outputs if name]
    graph.output.extend(helper.make_empty_tensor_value_info(name) for name in wanted)
    from onnx.reference import ReferenceEvaluator

    try:
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(graph, opsets={"": _opset(node)}).run(wanted, feeds)
    except (*_FAILURES, TypeError, ValueError) as error:
        text = " ".join(str(error).split())[:200]
        raise LoadError(f"the constant cannot be computed: {text or type(error).__name__}") from None
    found = dict(zip(wanted, results, strict=True))
    return tuple(np.asarray(found[name]) if name else np.zeros(0) for name in node.outputs)


def _opset(node: Node) -> int:
    """The evaluator has the quantisers from opset 19 on, which contain the older ones unchanged."""
    return max(node.opset, 21 if node.op.endswith("Linear") else 1)


def _check_growth(node: Node, inputs: Sequence[Array | None]) -> None:
    """Bound what Expand, Tile, ConstantOfShape, Range and products may make."""
    given = [value for value in inputs if value is not None]
    entries = sum(value.size for value in given)
    if node.op in ("ConstantOfShape", "Expand") and given:
        entries = math.prod(abs(int(length)) for length in given[-1].ravel()[:64]) * max(1, given[0].size)
    elif node.op == "Tile" and len(given) > 1:
        entries = given[0].size * math.prod(abs(int(count)) for count in given[1].ravel()[:64])
    elif node.op == "Range" and len(given) == 3 and all(value.size == 1 for value in given):
        start, stop, step = (float(value.ravel()[0]) for value in given)
        entries = int(min(abs(stop - start) / abs(step), 2.0**62)) if step else 0
    elif len(given) > 1:
        entries = math.prod(max(sizes) for sizes in _aligned(given))
    if entries > _LIMIT:
        raise LoadError(f"the constant would have {entries:,} entries, the limit is {_LIMIT:,}")


def _aligned(arrays: Sequence[Array]) -> list[list[int]]:
    """Lengths axis by axis from the right, as broadcasting pairs them."""
    rank = max(array.ndim for array in arrays)
    return [[array.shape[-axis] if array.ndim >= axis else 1 for array in arrays] for axis in range(1, rank + 1)]
