"""A converted network: its files, its numbers, its engines.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from deploy.arrays import Array
from deploy.cost import Quantity
from deploy.errors import BundleError, PlanError
from deploy.model import Mlp
from deploy.study import Study
from deploy.target import Archives, Bound, Engine, Json, Panel
from quantization.arithmetic import Arithmetic, read_arithmetic
from quantization.engines import build_engines
from quantization.files import BIASES, CODES, COLUMNS, SCALES, write_network
from quantization.latency import LatencyStudy, tabulate_latency
from quantization.onnx_integer import build_integer_model
from quantization.onnx_weights import build_weight_model

__all__ = ["TernaryDeployment", "load_deployment"]

REPORT, MODEL, INTEGER_MODEL = "report.json", "model.onnx", "integer.onnx"


@dataclass(frozen=True, eq=False)
class TernaryDeployment:
    """A quantised network beside the float one.

    Parameters
    ----------
    model : the float network.
    arithmetic : codes and scales, and how they are evaluated.
    report : what the conversion tried and measured, JSON.
    """

    model: Mlp
    arithmetic: Arithmetic
    report: Mapping[str, Any]

    def files(self) -> Mapping[str, bytes]:
        """Codes, scales, biases, the report, and both ONNX forms where they exist."""
        found = {
            **self.arithmetic.files(),
            REPORT: (json.dumps(self.report, indent=1, allow_nan=False) + "\n").encode(),
        }
        with suppress(PlanError):
            found[MODEL] = build_weight_model(self.arithmetic.network)
        if self.arithmetic.program is not None:
            found[INTEGER_MODEL] = build_integer_model(self.arithmetic.program)
        return found

    def archives(self) -> Archives | None:
        """The client needs nothing but the interface; the server gets codes, scales and biases."""
        return Archives(client={}, server=self.arithmetic.files())

    def logits(self, x: Array) -> Array:
        """The reference: (batch, n_in) -> (batch, n_out)."""
        return self.arithmetic.logits(x)

    def bound(self, x: Array) -> Bound | None:
        """None: the distance of a rounding from its float network is measured, not bounded."""
        return None

    def engines(self) -> Mapping[str, Engine]:
        """Real runs: the integer program on every run time, packed weights in onnxruntime, float64."""
        return build_engines(self.arithmetic)

    def studies(self) -> Mapping[str, Study]:
        """``latency``: every run time against float32, at any batch."""
        return {"latency": LatencyStudy(self.model, self.arithmetic)}

    def cost(self) -> tuple[Quantity, ...]:
        """Bytes, bits a weight, and the additions that zero codes leave."""
        network = self.arithmetic.network
        additions = sum(int(np.count_nonzero(plane.codes)) for layer in network.layers for plane in layer.planes)
        return (
            Quantity("bytes", self.stored_bytes, "B", "exact", "server"),
            Quantity("bits_per_weight", self.bits_per_weight, "bit", "exact", "server"),
            Quantity("float32_bytes", 4 * self.model.parameters, "B", "exact", "server"),
            Quantity("additions_per_row", additions, "", "exact", "server"),
        )

    @property
    def stored_bytes(self) -> int:
        """Bytes of codes, scales, biases and column factors on disk."""
        files = write_network(self.arithmetic.network)
        return sum(len(files[name]) for name in (CODES, SCALES, BIASES, COLUMNS))

    @property
    def bits_per_weight(self) -> float:
        """Bits of codes, scales and column factors on disk over the number of weights."""
        files = write_network(self.arithmetic.network)
        return 8 * sum(len(files[name]) for name in (CODES, SCALES, COLUMNS)) / self.arithmetic.network.weights

    def summary(self) -> Mapping[str, Json]:
        """Reference, size, what was tried and what became of each layer."""
        return {
            "reference": self.arithmetic.describe(),
            "bits_per_weight": self.bits_per_weight,
            "bytes": self.stored_bytes,
            **self.report,
        }

    def panels(self, x: Array) -> tuple[Panel, ...]:
        """What was tried, each layer, and the latency at batch 1 and 256."""
        tried, layers = self.report["tried"], self.report["layers"]
        names = [layer["name"] for layer in layers]
        return (
            Panel(
                "Candidates by loss on the calibration rows",
                "table",
                {"columns": ["candidate", "loss"], "rows": [[item["name"], item["loss"]] for item in tried]},
                caption="The first is kept. Loss: KL in nats; squared error over variance for a value decision.",
            ),
            Panel(
                "Zero codes and flipped signs by layer",
                "bar",
                {
                    "labels": names,
                    "series": {
                        "zero codes": [layer["zeros"] for layer in layers],
                        "codes against sign(W)": [layer["sign_flips"] for layer in layers],
                    },
                },
                y_label="share",
                caption="Rounding with feedback flips signs on purpose: keeping them is not the objective.",
            ),
            Panel(
                "Relative squared error by layer",
                "bar",
                {
                    "labels": names,
                    "series": {
                        "weights": [layer["weight_error"] for layer in layers],
                        "pre-activations": [layer["output_error"] for layer in layers],
                    },
                },
                y_label="error over energy",
                caption="Feedback trades weight error for output error, which is the one that counts.",
            ),
            tabulate_latency(self.model, self.arithmetic, x),
        )


def load_deployment(files: Mapping[str, bytes], model: Mlp) -> TernaryDeployment:
    """Read back what :meth:`TernaryDeployment.files` gave."""
    if REPORT not in files:
        raise BundleError(f"{REPORT} is missing")
    try:
        report = json.loads(files[REPORT])
    except ValueError as error:
        raise BundleError(f"is no JSON: {error}", place=REPORT) from None
    return TernaryDeployment(model, read_arithmetic(files), report)
