"""Certificates as files, for anyone to check with :mod:`fhe.certificate_checker`.

Axes: ``batch``, ``n_in``, ``pairs``.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from deploy.arrays import Array
from deploy.model import Mlp
from fhe.network import PolynomialNetwork
from fhe.separation.gordan import ExactMultipliers, exact_columns, exact_multipliers
from fhe.separation.problem import LastLayer
from fhe.separation.targets import TIE, Targets

__all__ = ["feasible_certificate", "infeasible_certificate"]


def feasible_certificate(model: Mlp, network: PolynomialNetwork, x: Array, *, margin: float) -> bytes:
    """The claim that a network keeps every decision on rows x (batch, n_in) with at least this margin."""
    same = [
        ours.weight.shape == theirs.weight.shape and np.array_equal(ours.weight, theirs.weight)
        for ours, theirs in zip(network.affines, model.affines, strict=True)
    ]
    return _seal(
        {
            "version": 1,
            "kind": "feasible",
            "model": model.sha256,
            "rows": _rows_hash(x),
            "tie": TIE,
            "margin": margin,
            "biases": [layer.bias.tolist() for layer in network.affines],
            "weights": [
                None if equal else layer.weight.tolist() for equal, layer in zip(same, network.affines, strict=True)
            ],
            "coefficients": [table.tolist() for table in network.coefficients],
        }
    )


def infeasible_certificate(
    last: LastLayer, targets: Targets, x: Array, shortfall: Array, *, degree: int
) -> bytes | None:
    """A Gordan certificate from float shortfalls (batch, classes), or None where none can be made exact."""
    row, other = np.nonzero(shortfall > 1e-12 * shortfall.max())
    point = last.lift.at(last.anchor)
    chosen = targets.chosen[row]
    rows = point.rows(row, chosen, other)
    exact: ExactMultipliers | None = None
    first = last.model.affines[0]
    if last.before is None:
        columns = exact_columns(first, last.layer.after, last.layer.free, x[row], chosen, other, degree)
        exact = exact_multipliers(rows, columns, shortfall[row, other], row, other)
    if exact is None:
        return None
    return _seal(
        {
            "version": 1,
            "kind": "infeasible",
            "model": last.model.sha256,
            "rows": _rows_hash(x),
            "degree": degree,
            "before": [],
            "before_biases": [],
            "row": exact.row.tolist(),
            "other": exact.other.tolist(),
            "multipliers": [f"{weight:x}" for weight in exact.weights],
        }
    )


def _rows_hash(x: Array) -> str:
    rows = np.ascontiguousarray(x, dtype="<f8") + 0.0
    return hashlib.sha256(rows.tobytes()).hexdigest()


def _seal(document: dict[str, Any]) -> bytes:
    digest = hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return json.dumps({**document, "sha256": digest}, allow_nan=False).encode() + b"\n"
