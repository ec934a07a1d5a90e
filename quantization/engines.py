"""Real runs of a quantised network.

``integer-*`` run the integer program and give the same bits, whoever multiplies; the others are float models
with packed weights, whose activations onnxruntime rounds in its own way. An engine says in its diagnostics which
kernel really ran.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np

from deploy.arrays import Array
from deploy.requirement import Requirement
from deploy.target import Engine, EngineRun, Json
from quantization.arithmetic import Arithmetic
from quantization.integer import IntegerMlp, run_int64, run_numpy
from quantization.network import QuantizedMlp
from quantization.onnx_weights import WeightForm, build_weight_model

__all__ = ["FloatEngine", "IntegerEngine", "WeightModelEngine", "build_engines"]

Runner = Callable[[Array], Array]
"""Integers (batch, n_in) -> totals (batch, n_out) int64."""

CHECKED_ROWS = 32
"""Rows of each real run that the int64 reference repeats."""

_INSTALL = 'pip install "relu-deploy[ternary]"'
LLVM = Requirement("llvmlite", _INSTALL, module="llvmlite")
ONNXRUNTIME = Requirement("onnxruntime", _INSTALL, module="onnxruntime")
TORCH = Requirement("torch", 'pip install "relu-deploy[torch]"', module="torch")


class IntegerEngine:
    """The integer program on one of its run times, checked against int64 arithmetic on the first rows of each
    run."""

    def __init__(
        self,
        program: IntegerMlp,
        open_runner: Callable[[IntegerMlp], tuple[Runner, str]],
        requires: Requirement | None = None,
    ) -> None:
        self._program, self._open = program, open_runner
        self.requires = requires
        self._runner: Runner | None = None
        self._kernel = ""

    def __enter__(self) -> Self:
        self._runner, self._kernel = self._open(self._program)
        return self

    def __exit__(self, *exc: object) -> None:
        self._runner = None

    def run(self, x: Array) -> EngineRun:
        """Run rows (batch, n_in)."""
        assert self._runner is not None
        program = self._program
        started = time.perf_counter()
        q = program.quantize_input(x)
        rounded = time.perf_counter()
        totals = self._runner(q)
        ended = time.perf_counter()
        same = np.array_equal(totals[:CHECKED_ROWS], run_int64(program, q[:CHECKED_ROWS]))
        diagnostics: dict[str, Json] = {
            "kernel": self._kernel,
            "activations": f"int{program.bits}, rounded by the client",
            "rows_equal_to_int64": int(min(len(x), CHECKED_ROWS)) if same else 0,
            "rows_saturated": int(program.saturated(x).sum()),
        }
        failures = {} if same else dict.fromkeys(range(len(x)), "differs from the int64 reference")
        seconds = {"client": rounded - started, "server": ended - rounded}
        return EngineRun(program.logits_of(totals), seconds, failures, diagnostics)  # type: ignore[arg-type]


class FloatEngine:
    """Codes times scales in float64."""

    requires: Requirement | None = None

    def __init__(self, network: QuantizedMlp) -> None:
        self._network = network

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def run(self, x: Array) -> EngineRun:
        """Run rows (batch, n_in)."""
        started = time.perf_counter()
        logits = self._network.logits(x)
        return EngineRun(logits, {"client": 0.0, "server": time.perf_counter() - started})


class WeightModelEngine:
    """A float32 ONNX model with two-bit weights in onnxruntime, one thread."""

    requires: Requirement | None = ONNXRUNTIME

    def __init__(self, network: QuantizedMlp, form: WeightForm) -> None:
        self._network, self._form = network, form
        self._session: Any = None
        self._kernels: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._session, self._kernels = open_session(build_weight_model(self._network, self._form))
        return self

    def __exit__(self, *exc: object) -> None:
        self._session = None

    def run(self, x: Array) -> EngineRun:
        """Run rows (batch, n_in)."""
        started = time.perf_counter()
        logits = self._session.run(None, {"x": x.astype(np.float32)})[0]
        seconds = time.perf_counter() - started
        fused = self._kernels.get("MatMulNBits", 0)
        diagnostics: dict[str, Json] = {
            "kernel": ", ".join(f"{count} {name}" for name, count in sorted(self._kernels.items())),
            "activations": f"rounded to int8 in blocks by {fused} MatMulNBits (accuracy_level 4)"
            if fused
            else "float32",
        }
        return EngineRun(logits.astype(np.float64), {"client": 0.0, "server": seconds}, {}, diagnostics)


def open_session(model: bytes, *, threads: int = 1) -> tuple[Any, dict[str, int]]:
    """An onnxruntime session, and how often each operator stands in the graph that it really runs."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        options.optimized_model_filepath = str(path)
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        graph = onnx.load(path).graph
    return session, dict(Counter(node.op_type for node in graph.node))


def open_jit(program: IntegerMlp) -> tuple[Runner, str]:
    """Packed two-bit codes on the compiled kernel."""
    from quantization.jit import JitRun

    run = JitRun(program)
    return run, f"two-bit {run.kernel.form}"


def open_numpy(program: IntegerMlp) -> tuple[Runner, str]:
    """Exact float64 products in BLAS."""
    return (lambda q: run_numpy(program, q)), "numpy, exact float64 products"


def open_onnxruntime(program: IntegerMlp) -> tuple[Runner, str]:
    """The integer ONNX model in onnxruntime."""
    from quantization.onnx_integer import build_integer_model

    session, kernels = open_session(build_integer_model(program))
    count = sum(kernels.get(name, 0) for name in ("MatMulInteger", "MatMulIntegerToFloat"))
    return (lambda q: np.asarray(session.run(None, {"q": q})[0])), f"{count} MatMulInteger"


def open_evaluator(program: IntegerMlp) -> tuple[Runner, str]:
    """The integer ONNX model in the reference evaluator of the onnx package."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    from quantization.onnx_integer import build_integer_model

    evaluator: Any = ReferenceEvaluator(onnx.load_from_string(build_integer_model(program)))
    return (lambda q: np.asarray(evaluator.run(None, {"q": q})[0])), "onnx reference evaluator"


def open_torch(program: IntegerMlp) -> tuple[Runner, str]:
    """The integer program in torch, products in float64 and everything else in int64."""
    import torch

    codes = [
        [torch.from_numpy(term.codes.T.astype(np.float64)) for term in layer.terms] for layer in program.layers
    ]
    multipliers = [[torch.from_numpy(term.multiplier.copy()) for term in layer.terms] for layer in program.layers]
    offsets = [torch.from_numpy(layer.offset.copy()) for layer in program.layers]

    def run(q: Array) -> Array:
        h = torch.from_numpy(np.asarray(q, dtype=np.int64))
        for index, layer in enumerate(program.layers):
            totals = offsets[index].expand(len(h), -1)
            for term, weights, multiplier in zip(layer.terms, codes[index], multipliers[index], strict=True):
                products = h[:, term.begin : term.end].to(torch.float64) @ weights
                totals = totals + multiplier * products.to(torch.int64)
            last = index == len(program.layers) - 1
            h = totals if last else (totals >> layer.shift).clamp(program.low, program.high)
        return np.asarray(h.numpy())

    return run, "torch, exact float64 products"


def build_engines(arithmetic: Arithmetic) -> dict[str, Engine]:
    """Every run time of a deployment; the first runs wherever the package does."""
    engines: dict[str, Engine] = {}
    program = arithmetic.program
    if program is not None:
        engines["integer"] = IntegerEngine(program, open_jit if LLVM.is_met() else open_numpy)
        engines["integer-jit"] = IntegerEngine(program, open_jit, LLVM)
        engines["integer-numpy"] = IntegerEngine(program, open_numpy)
        engines["integer-onnxruntime"] = IntegerEngine(program, open_onnxruntime, ONNXRUNTIME)
        engines["integer-torch"] = IntegerEngine(program, open_torch, TORCH)
        engines["integer-onnx-reference"] = IntegerEngine(program, open_evaluator)
    engines["onnx-dequantize"] = WeightModelEngine(arithmetic.network, "dequantize")
    engines["onnx-nbits"] = WeightModelEngine(arithmetic.network, "nbits")
    engines["float64"] = FloatEngine(arithmetic.network)
    return engines
