"""Real runs of a quantised network.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

import time
from typing import Self

import numpy as np

from deploy.arrays import Array
from deploy.requirement import Requirement
from deploy.target import EngineRun
from quantization.network import QuantizedMlp

__all__ = ["NumpyEngine"]


class NumpyEngine:
    """Codes times scales in float64, one row at a time as a service would."""

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
        logits = np.concatenate([self._network.logits(row[None]) for row in x])
        return EngineRun(logits, {"client": 0.0, "server": time.perf_counter() - started})
