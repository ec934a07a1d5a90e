"""How long each run time takes, against the best float32 in the same process.

Axes: ``batch``, ``n_in``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from deploy.arrays import Array
from deploy.model import Mlp
from deploy.study import Case, Column, Row
from deploy.target import Json, Panel
from quantization.arithmetic import Arithmetic
from quantization.engines import build_engines

__all__ = ["LatencyStudy", "float32_runner", "least_seconds", "tabulate_latency"]

TIMED = {
    "integer": "ternary codes, compiled kernel",
    "integer-onnxruntime": "int8 products, onnxruntime",
    "onnx-nbits": "two-bit weights, onnxruntime",
}
"""Run times that a report compares with float32."""


class LatencyOptions(BaseModel):
    """Options of the study."""

    model_config = ConfigDict(extra="forbid")
    batches: list[int] = Field([1, 256], description="batch sizes")
    repeats: int = Field(30, ge=1, description="runs of each, interleaved with float32; the least time counts")


@dataclass(frozen=True, eq=False)
class LatencyStudy:
    """Least seconds of every run time at every batch size, interleaved with float32 in numpy on one process."""

    model: Mlp
    arithmetic: Arithmetic
    summary: str = "latency of every run time against float32"
    options: type[BaseModel] = LatencyOptions
    columns: tuple[Column, ...] = (
        Column("engine", "", "run time"),
        Column("batch", "rows", "rows in one call"),
        Column("us_per_call", "us", "least time of a call"),
        Column("float32_us_per_call", "us", "least time of float32 in numpy, interleaved"),
        Column("speedup", "", "the second over the first; below 1 float32 wins"),
        Column("outcome", "", "ok, or what is missing"),
    )
    is_timed: bool = True

    def cases(self, options: Any, rng: np.random.Generator) -> Iterator[Case]:
        """Every engine at every batch size."""
        for name in build_engines(self.arithmetic):
            for batch in options.batches:
                yield Case(f"{name}-{batch}", {"engine": name, "batch": batch, "repeats": options.repeats})

    def solve(self, case: Case, x: Array) -> Row:
        """Time one engine on rows x (batch, n_in), repeated to the wanted batch."""
        name, batch = case.parameters["engine"], case.parameters["batch"]
        engine = build_engines(self.arithmetic)[name]
        row: dict[str, Any] = dict.fromkeys((column.name for column in self.columns), None)
        row |= {"engine": name, "batch": batch}
        if engine.requires is not None and not engine.requires.is_met():
            return {**row, "outcome": f"{engine.requires.name} is not installed"}
        rows = np.resize(x, (batch, x.shape[1]))
        baseline = float32_runner(self.model, rows)
        ours = theirs = float("inf")
        with engine:
            for _ in range(case.parameters["repeats"]):
                theirs = min(theirs, least_seconds(baseline, 1))
                ours = min(ours, engine.run(rows).seconds["server"])
        return {
            **row,
            "us_per_call": ours * 1e6,
            "float32_us_per_call": theirs * 1e6,
            "speedup": theirs / ours,
            "outcome": "ok",
        }


def tabulate_latency(
    model: Mlp, arithmetic: Arithmetic, x: Array, *, batches: tuple[int, ...] = (1, 256), repeats: int = 10
) -> Panel:
    """Least microseconds of a call on rows x (batch, n_in), in turns with float32, and where float32 or int8 wins."""
    rows: list[Json] = []
    notes = []
    for batch in batches:
        inputs = np.resize(x, (batch, x.shape[1]))
        seconds = _interleave(model, arithmetic, inputs, repeats)
        baseline = seconds["float32, numpy"]
        rows += [[label, batch, 1e6 * own, baseline / own] for label, own in seconds.items()]
        fastest = min(seconds, key=seconds.__getitem__)
        notes.append(f"At batch {batch} the fastest is: {fastest}.")
    return Panel(
        "Latency against float32",
        "table",
        {"columns": ["run time", "batch", "us per call", "times float32"], "rows": rows},
        caption=f"{' '.join(notes)} Least of {repeats} calls in turns, on the machine that evaluated. Ternary codes pay "
        "where weights do not fit the cache; for small layers and large batches int8 or float32 may win.",
    )


def _interleave(model: Mlp, arithmetic: Arithmetic, x: Array, repeats: int) -> dict[str, float]:
    """Least seconds of float32 and of each run time that is installed."""
    baseline = float32_runner(model, x)
    engines = build_engines(arithmetic)
    least = {"float32, numpy": float("inf")}
    with ExitStack() as stack:
        opened = {}
        for name, label in TIMED.items():
            engine = engines.get(name)
            if engine is not None and (engine.requires is None or engine.requires.is_met()):
                opened[label] = stack.enter_context(engine)
        for _ in range(repeats):
            least["float32, numpy"] = min(least["float32, numpy"], least_seconds(baseline, 1))
            for label, engine in opened.items():
                least[label] = min(least.get(label, float("inf")), engine.run(x).seconds["server"])
    return least


def float32_runner(model: Mlp, rows: Array) -> Callable[[], Array]:
    """The float network on rows (batch, n_in) in float32, ready to be timed."""
    weights = [np.ascontiguousarray(layer.weight.T, dtype=np.float32) for layer in model.affines]
    biases = [layer.bias.astype(np.float32) for layer in model.affines]
    inputs = rows.astype(np.float32)

    def run() -> Array:
        h = inputs
        for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            h = h @ weight + bias
            if index < len(weights) - 1:
                np.maximum(h, 0, out=h)
        return h

    return run


def least_seconds(call: Callable[[], Any], repeats: int) -> float:
    """Least wall time of some calls."""
    found = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        found = min(found, time.perf_counter() - started)
    return found
