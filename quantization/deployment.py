"""A converted network: its files, its numbers, its engines.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from deploy.arrays import Array
from deploy.cost import Quantity
from deploy.model import Mlp
from deploy.study import Study
from deploy.target import Archives, Bound, Engine, Json, Panel
from quantization.engines import NumpyEngine
from quantization.files import BIASES, CODES, COLUMNS, NETWORK, SCALES, read_network, write_network
from quantization.network import QuantizedMlp

__all__ = ["TernaryDeployment", "load_deployment"]

REPORT = "report.json"
REFERENCE = "codes times scales in float64, activations not rounded"


@dataclass(frozen=True, eq=False)
class TernaryDeployment:
    """A quantised network beside the float one.

    Parameters
    ----------
    model : the float network.
    network : codes and scales.
    report : what the conversion measured, JSON.
    """

    model: Mlp
    network: QuantizedMlp
    report: Mapping[str, Json]

    def files(self) -> Mapping[str, bytes]:
        """Codes, scales, biases and the report of the conversion."""
        return {**write_network(self.network), REPORT: (json.dumps(self.report, indent=1) + "\n").encode()}

    def archives(self) -> Archives | None:
        """The client needs nothing but the interface; the server gets codes, scales and biases."""
        return Archives(client={}, server=write_network(self.network))

    def logits(self, x: Array) -> Array:
        """The reference: (batch, n_in) -> (batch, n_out)."""
        return self.network.logits(x)

    def bound(self, x: Array) -> Bound | None:
        """None: the distance of a rounding from its float network is measured, not bounded."""
        return None

    def engines(self) -> Mapping[str, Engine]:
        """Real runs."""
        return {"numpy": NumpyEngine(self.network)}

    def studies(self) -> Mapping[str, Study]:
        """None."""
        return {}

    def cost(self) -> tuple[Quantity, ...]:
        """Bytes and bits a weight, scales and biases included."""
        return (
            Quantity("bytes", self.stored_bytes, "B", "exact", "server"),
            Quantity("bits_per_weight", self.bits_per_weight, "bit", "exact", "server"),
        )

    @property
    def stored_bytes(self) -> int:
        """Bytes of codes, scales and biases on disk."""
        files = write_network(self.network)
        return sum(len(files[name]) for name in (CODES, SCALES, BIASES, COLUMNS))

    @property
    def bits_per_weight(self) -> float:
        """Bits of codes and scales on disk over the number of weights."""
        files = write_network(self.network)
        return 8 * (len(files[CODES]) + len(files[SCALES])) / self.network.weights

    def summary(self) -> Mapping[str, Json]:
        """Reference, size, and what was kept."""
        return {
            "reference": REFERENCE,
            "bits_per_weight": self.bits_per_weight,
            "bytes": self.stored_bytes,
            **self.report,
        }

    def panels(self, x: Array) -> tuple[Panel, ...]:
        """None yet."""
        return ()


def load_deployment(files: Mapping[str, bytes], model: Mlp) -> TernaryDeployment:
    """Read back what :meth:`TernaryDeployment.files` gave."""
    return TernaryDeployment(
        model,
        read_network({name: files[name] for name in (NETWORK, CODES, SCALES, BIASES, COLUMNS)}),
        json.loads(files[REPORT]),
    )
