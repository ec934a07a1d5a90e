"""Ways to have onnxruntime multiply 4096 x 4096 ternary codes by one row, for ``benchmarks/ternary.py alternatives``.

Every way is one graph with input ``x`` and output ``y``, on one thread, its operators read from the graph that
onnxruntime optimised. Every scale is 1, so that the reference is a sum of exact codes times x.

Axes: ``n_in``, ``n_out``.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

FLOAT, HALF, BYTE = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8


@dataclass(frozen=True)
class Way:
    """An open session, how a call is made, and the operators that its optimised graph has."""

    call: Callable[[], Any]
    read: Callable[[], np.ndarray]
    operators: str


def ways(codes: np.ndarray, x: np.ndarray) -> Iterator[tuple[str, np.ndarray, Callable[[], Way]]]:
    """Label, row and opener of every way to multiply x (1, n_in) float32 by codes (n_out, n_in) int8."""
    plain = _nbits(codes)
    idle = {"entries": {"session.intra_op.allow_spinning": "0"}}
    q = round_row(x)
    found: list[tuple[str, Callable[[], bytes], np.ndarray, dict[str, Any]]] = [
        ("MatMulNBits, 2 bits, block 128", lambda: plain, x, {}),
        ("  in and out bound beforehand", lambda: plain, x, {"bound": True}),
        ("  no arena, no spinning", lambda: plain, x, {"arena": False, **idle}),
        ("  zero points given", lambda: _nbits(codes, zero_points=True), x, {}),
        ("  table lookups", lambda: plain, x, {"entries": {"mlas.use_lut_gemm": "1"}}),
        ("  no prepacking", lambda: plain, x, {"entries": {"session.disable_prepacking": "1"}}),
        *((f"  {n} over outputs", partial(_nbits, codes, over_rows=n), x, {}) for n in (2, 4, 8)),
        ("  2 over inputs", lambda: _nbits(codes, over_columns=2), x, {}),
        *((f"  block {block}", partial(_nbits, codes, block=block), x, {}) for block in (16, 32, 64, 256)),
        ("  float16 in and out", lambda: _nbits(codes, kind=HALF), x.astype(np.float16), {}),
        ("MatMulNBits, 4 bits, block 32", lambda: _nbits(codes, bits=4, block=32), x, {}),
        ("  block 128", lambda: _nbits(codes, bits=4), x, {}),
        ("MatMulNBits, 8 bits, block 128", lambda: _nbits(codes, bits=8), x, {}),
        ("DequantizeLinear(INT2) and MatMul", lambda: _dequantize(codes), x, {}),
        ("DynamicQuantizeLinear, MatMulInteger", lambda: _dynamic(codes), x, {}),
        ("MatMulInteger of int8 alone", lambda: _integer(codes), q, {}),
    ]
    for label, model, row, settings in found:
        yield label, row, partial(lambda model, row, settings: _way(model(), row, **settings), model, row, settings)


def round_row(x: np.ndarray) -> np.ndarray:
    """x in int8, one scale for the row."""
    return np.asarray(np.round(x / np.abs(x).max() * 127), dtype=np.int8)


def reference(codes: np.ndarray, x: np.ndarray) -> np.ndarray:
    """x codes' in int64 for integers x, otherwise in float64, which is exact to 1e-12 here: (1, n_out)."""
    kind = np.int64 if x.dtype == np.int8 else np.float64
    return np.asarray(x.astype(kind) @ codes.T.astype(kind), dtype=np.float64)


def profiled_us(codes: np.ndarray, x: np.ndarray, calls: int = 200) -> tuple[float, float]:
    """Least microseconds of the operator and of the whole run in onnxruntime's own profile of MatMulNBits."""
    with tempfile.TemporaryDirectory() as folder:
        options = _options({})
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(_nbits(codes), options, providers=["CPUExecutionProvider"])
        for _ in range(calls):
            session.run(None, {"x": x})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    spent: dict[str, list[float]] = {}
    for event in events:
        spent.setdefault(event.get("name", ""), []).append(event.get("dur", np.inf))
    return min(spent["product0.0_kernel_time"]), min(spent["model_run"])


def _way(
    model: bytes,
    x: np.ndarray,
    *,
    bound: bool = False,
    arena: bool = True,
    entries: Mapping[str, str] | None = None,
) -> Way:
    options = _options(entries or {})
    options.enable_cpu_mem_arena = options.enable_mem_pattern = arena
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        options.optimized_model_filepath = str(path)
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        count = Counter(node.op_type for node in onnx.load(path).graph.node)
    operators = ", ".join(f"{times} {name}" if times > 1 else name for name, times in count.items())

    def read() -> np.ndarray:
        return np.asarray(session.run(None, {"x": x})[0], dtype=np.float64)

    if not bound:
        return Way(lambda: session.run(None, {"x": x}), read, operators)
    out = np.empty(read().shape, dtype=np.float32)
    binding = session.io_binding()
    row = onnxruntime.OrtValue.ortvalue_from_numpy(x)
    binding.bind_ortvalue_input("x", row)
    binding.bind_output("y", "cpu", 0, np.float32, out.shape, out.ctypes.data)

    def run(kept: object = (row, out)) -> None:
        session.run_with_iobinding(binding)

    def read_bound() -> np.ndarray:
        run()
        return out.astype(np.float64)

    return Way(run, read_bound, operators)


def _options(entries: Mapping[str, str]) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    return options


def _nbits(
    codes: np.ndarray,
    *,
    bits: int = 2,
    block: int = 128,
    over_rows: int = 1,
    over_columns: int = 1,
    zero_points: bool = False,
    kind: int = FLOAT,
) -> bytes:
    """MatMulNBits, accuracy_level 4, scales 1, in parts over outputs or inputs that are joined again."""
    nodes, constants, outputs = [], [], []
    for at, part in enumerate(np.split(codes, over_rows, axis=0)):
        sums = []
        for side, piece in enumerate(np.split(part, over_columns, axis=1)):
            n_out, n_in = piece.shape
            digits = (piece.astype(np.int16) + 2 ** (bits - 1)).astype(np.uint8).reshape(n_out, -1, block)
            packed = np.zeros((*digits.shape[:2], block * bits // 8), dtype=np.uint8)
            for place in range(8 // bits):
                packed |= digits[:, :, place :: 8 // bits] << np.uint8(bits * place)
            name, blocks = f"{at}.{side}", n_in // block
            scales = np.ones(n_out * blocks, dtype=helper.tensor_dtype_to_np_dtype(kind))
            inputs = [f"x{side}" if over_columns > 1 else "x", f"codes{name}", f"scales{name}"]
            constants += [numpy_helper.from_array(packed, inputs[1]), numpy_helper.from_array(scales, inputs[2])]
            if zero_points:
                four = sum(2 << shift for shift in range(0, 8, 2))
                zero = np.full((n_out, -(-blocks * bits // 8)), four, dtype=np.uint8)
                constants.append(numpy_helper.from_array(zero, f"zero{name}"))
                inputs.append(f"zero{name}")
            sums.append(f"y{name}")
            node = helper.make_node(
                "MatMulNBits",
                inputs,
                [sums[-1]],
                name=f"product{name}",
                domain="com.microsoft",
                K=n_in,
                N=n_out,
                bits=bits,
                block_size=block,
                accuracy_level=4,
            )
            nodes.append(node)
        if over_columns > 1:
            nodes.append(helper.make_node("Sum", sums, [f"sum{at}"]))
            sums = [f"sum{at}"]
        outputs += sums
    if over_columns > 1:
        nodes.insert(
            0, helper.make_node("Split", ["x"], [f"x{k}" for k in range(over_columns)], axis=1, num_outputs=2)
        )
    if len(outputs) > 1:
        nodes.append(helper.make_node("Concat", outputs, ["y"], axis=1))
    else:
        nodes[-1].output[0] = "y"
    return _model(nodes, constants, codes, kind, kind)


def _dequantize(codes: np.ndarray) -> bytes:
    from quantization.network import Plane, QuantizedLayer, QuantizedMlp
    from quantization.onnx_weights import build_weight_model

    layer = QuantizedLayer((Plane(codes, np.ones((len(codes), 1))),), np.zeros(len(codes)))
    return build_weight_model(QuantizedMlp.of([layer]), "dequantize")


def _dynamic(codes: np.ndarray) -> bytes:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["q", "w", "zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["real"], to=FLOAT),
        helper.make_node("Mul", ["real", "scale"], ["y"]),
    ]
    return _model(nodes, [numpy_helper.from_array(np.ascontiguousarray(codes.T), "w")], codes, FLOAT, FLOAT)


def _integer(codes: np.ndarray) -> bytes:
    nodes = [helper.make_node("MatMulInteger", ["x", "w"], ["y"])]
    weights = [numpy_helper.from_array(np.ascontiguousarray(codes.T), "w")]
    return _model(nodes, weights, codes, BYTE, TensorProto.INT32)


def _model(nodes: list[Any], constants: list[Any], codes: np.ndarray, kind: int, out: int) -> bytes:
    n_out, n_in = codes.shape
    graph = helper.make_graph(
        nodes,
        "alternative",
        [helper.make_tensor_value_info("x", kind, [1, n_in])],
        [helper.make_tensor_value_info("y", out, [1, n_out])],
        constants,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
