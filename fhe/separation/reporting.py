"""What people are told about a separation, as JSON.

Axes: ``batch``, ``units``.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from deploy.arrays import Array
from deploy.errors import CertificateRejected
from deploy.model import Mlp
from deploy.ranges import Box
from fhe.certificate_checker import check_certificate
from fhe.network import PolynomialNetwork
from fhe.options import CkksOptions
from fhe.plan import Ranges
from fhe.separation.certificates import feasible_certificate
from fhe.separation.problem import Problem
from fhe.separation.rounding import certify_rounding
from fhe.separation.selection import Selection
from fhe.separation.targets import Targets, orient_logits

__all__ = ["add_evidence", "blank_report", "selection_report", "unit_report", "warn_of_few_rows"]

ROWS_PER_PARAMETER = 20
"""Below this, no fit beats least squares on other rows, and keeping every calibration decision means little."""


def blank_report(options: CkksOptions, targets: Targets, *, decides: bool) -> dict[str, Any]:
    """Every key that a report has, before anything is known."""
    return {
        "rows": len(targets),
        "tied_rows": targets.tied_rows if decides else 0,
        "family": options.family,
        "degree": options.degree,
        "refine": options.refine,
        "fit": "exact: no activation had to be replaced",
        "separable": None,
        "min_margin": None,
        "certificates": [],
        "warnings": [],
        "units": [],
        "parameters": 0,
    }


def add_evidence(
    model: Mlp,
    network: PolynomialNetwork,
    x: Array,
    targets: Targets,
    options: CkksOptions,
    report: dict[str, Any],
    certificates: dict[str, bytes],
    *,
    coefficient_move: float | None,
) -> None:
    """Add margin, certificates (each checked from scratch), rounding, guard and baselines to the report."""
    if model.activations:
        report["guard"] = _guard(network, x)
        if options.domain is not None:
            report["proved_guard"] = _proved_guard(network, options.domain)
    if model.decision.rule == "value" or not targets.counts.any():
        return
    margin = float(targets.margins(orient_logits(model.decision, network.logits(x))).min())
    report["min_margin"] = margin
    if not model.activations:
        return
    if margin > 0:
        claim = options.gamma if margin >= options.gamma else margin * (1 - 1e-6)
        certificates["feasible.json"] = feasible_certificate(model, network, x, margin=claim)
        report["separable"] = True if options.refine == "none" else report["separable"]
    for name, data in list(certificates.items()):
        try:
            checked = check_certificate(data, model, x)
        except CertificateRejected as error:
            report["warnings"].append(f"certificate {name} was dropped: {error}")
            report["separable"] = None
            del certificates[name]
        else:
            report["certificates"].append({"kind": checked.kind, "verified": True, "claim": checked.claim})
    report["rounding"] = asdict(certify_rounding(network, x, targets, coefficient_move=coefficient_move))


def warn_of_few_rows(targets: Targets, parameters: int, report: dict[str, Any]) -> None:
    """Warn where the constraints are few against the coefficients."""
    constraints = int(targets.counts.sum())
    if constraints < ROWS_PER_PARAMETER * parameters:
        report["warnings"].append(
            f"{constraints} constraints for {parameters} coefficients: agreement on these rows says little about "
            "others; calibrate on more rows"
        )


def _guard(network: PolynomialNetwork, x: Array) -> list[dict[str, list[float]]]:
    """Box of each hidden layer's pre-activations over the rows: where the polynomials were fitted."""
    return [{"low": z.min(axis=0).tolist(), "high": z.max(axis=0).tolist()} for z in network.preactivations(x)[:-1]]


def _proved_guard(network: PolynomialNetwork, domain: tuple[float, float]) -> list[dict[str, list[float]]]:
    """Box of each hidden layer's pre-activations over a stated input domain, by interval arithmetic."""
    low, high = domain
    box = Box(np.full(network.n_in, low), np.full(network.n_in, high), "proved")
    ranges = Ranges.proved(network, box)
    return [{"low": found.low.tolist(), "high": found.high.tolist()} for found in ranges.preactivations]


def unit_report(problem: Problem) -> list[dict[str, int]]:
    found = []
    for layer in problem.layers:
        moving = layer.exact[:, 1:].any(axis=1)
        found.append(
            {
                "units": len(layer.free),
                "fitted": int(layer.free.sum()),
                "dead": int(np.count_nonzero(~layer.free & ~layer.exact.any(axis=1))),
                "always_on": int(np.count_nonzero(~layer.free & moving)),
                "constant": int(np.count_nonzero((layer.exact[:, 0] != 0) & ~moving)),
            }
        )
    return found


def selection_report(selection: Selection) -> dict[str, Any]:
    return {
        "rule": "closest to least squares within one paired standard error of the best; least squares itself unless the "
        "lead over it is significant (McNemar, 5 %)",
        "judgements": selection.rows,
        "picked": selection.picked.name,
        "finished": selection.finish,
        "finished_agreement": selection.finished_agreement,
        "candidates": [
            {
                "fit": row.candidate.name,
                "agreement": row.agreement,
                "standard_error": row.standard_error,
                "distance": row.distance,
                "admissible": row.admissible,
            }
            for row in selection.table
        ],
    }
