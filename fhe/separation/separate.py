"""From a ReLU network and calibration rows to the polynomial network that decides alike.

Axes: ``batch``, ``n_in``, ``n_out``, ``units``, ``parameters``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from deploy.arrays import Array
from deploy.errors import CertificateRejected
from deploy.model import Mlp
from deploy.progress import SILENT, Progress
from fhe.certificate_checker import check_certificate
from fhe.network import PolynomialNetwork
from fhe.options import CkksOptions
from fhe.separation.candidates import climb, finish, fit_candidates
from fhe.separation.certificates import feasible_certificate
from fhe.separation.exactness import fit_exactly
from fhe.separation.families import Family, HeadFamily, SharedFamily
from fhe.separation.hull_fit import fit_hulls
from fhe.separation.hulls import soft_margin
from fhe.separation.losses import Divergence
from fhe.separation.newton import Fit, minimise_anchored
from fhe.separation.problem import LastLayer, Problem
from fhe.separation.selection import Selection, make_folds, select_fit
from fhe.separation.targets import Targets, orient_logits

__all__ = ["Problem", "Separation", "separate"]


@dataclass(frozen=True, slots=True, eq=False)
class Separation:
    """What the separation found.

    Parameters
    ----------
    network : the polynomial network.
    report : everything that people are told, JSON only; "fit" names the fit that was kept.
    certificates : file of each certificate by name.
    """

    network: PolynomialNetwork
    report: Mapping[str, Any]
    certificates: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def fit(self) -> str:
        """The fit that was kept, in words."""
        return str(self.report["fit"])


def separate(
    model: Mlp,
    x: Array,
    options: CkksOptions,
    *,
    rng: np.random.Generator,
    progress: Progress = SILENT,
) -> Separation:
    """Replace every ReLU by a polynomial so that the decisions on `x` (batch, n_in) are kept.

    Deterministic given the arguments: linear algebra runs on one thread, because sums that are split over threads
    depend on their number. The activations "square" are kept exactly.
    """
    with threadpool_limits(1):
        return _separate(model, x, options, rng=rng, progress=progress)


def _separate(
    model: Mlp, x: Array, options: CkksOptions, *, rng: np.random.Generator, progress: Progress
) -> Separation:
    targets = Targets.of(model.decision, model.logits(x))
    report: dict[str, Any] = {
        "rows": len(x),
        "tied_rows": targets.tied_rows if model.decision.rule != "value" else 0,
        "family": options.family,
        "degree": options.degree,
        "refine": options.refine,
        "fit": "exact: no activation had to be replaced",
        "separable": None,
        "certificates": [],
        "warnings": [],
        "units": [],
        "parameters": 0,
    }
    certificates: dict[str, bytes] = {}
    network = PolynomialNetwork(model.affines, (), model.decision) if not model.activations else None
    if network is None and options.fit == "exact" and targets.counts.any() and model.decision.rule != "value":
        network = fit_exactly(model, x, targets, options, report, certificates, progress=progress)
    if network is None:
        network = _fit_network(model, x, targets, options, rng, progress, report)
    report["min_margin"] = _least_margin(model, network, targets, x)
    _certify(model, network, x, options, report, certificates)
    return Separation(network, report, certificates)


def _certify(
    model: Mlp,
    network: PolynomialNetwork,
    x: Array,
    options: CkksOptions,
    report: dict[str, Any],
    certificates: dict[str, bytes],
) -> None:
    """Write the claim that all decisions are kept, where they are, and check every claim from scratch."""
    margin = report["min_margin"]
    if margin is not None and margin > 0 and model.activations:
        claim = options.gamma if margin >= options.gamma else margin * (1 - 1e-6)
        certificates["feasible.json"] = feasible_certificate(model, network, x, margin=claim)
        report["separable"] = True
    for name, data in list(certificates.items()):
        try:
            checked = check_certificate(data, model, x)
        except CertificateRejected as error:
            report["warnings"].append(f"certificate {name} was dropped: {error}")
            report["separable"] = None
            del certificates[name]
        else:
            report["certificates"].append({"kind": checked.kind, "verified": True, "claim": checked.claim})


def _least_margin(model: Mlp, network: PolynomialNetwork, targets: Targets, x: Array) -> float | None:
    """Smallest margin of the original's decisions under the network; negative where one is lost."""
    if model.decision.rule == "value" or not targets.counts.any():
        return None
    return float(targets.margins(orient_logits(model.decision, network.logits(x))).min())


def _fit_network(
    model: Mlp,
    x: Array,
    targets: Targets,
    options: CkksOptions,
    rng: np.random.Generator,
    progress: Progress,
    report: dict[str, Any],
) -> PolynomialNetwork:
    problem = Problem.prepare(model, x, targets, degree=options.degree)
    report["units"] = _unit_report(problem)
    family: Family = problem
    if options.family == "shared":
        family = SharedFamily.of(model, x, degree=options.degree)
    elif options.family == "head":
        family = HeadFamily.of(model, x, degree=options.degree)
    report["parameters"] = family.lift.size
    _warn_of_few_rows(targets, family.lift.size, report)
    if not any(layer.free.any() for layer in problem.layers):
        return problem.network(problem.anchor)
    report["fit"] = "least-squares"
    if model.decision.rule == "value" or options.fit == "least-squares" or not targets.counts.any():
        return family.network(family.anchor)
    if options.fit in ("rch", "nu"):
        return _fit_hulls(model, x, targets, options, family, report)
    parameters, report["fit"] = _fit(family, targets, options, rng, progress, report)
    return family.network(parameters)


def _fit_hulls(
    model: Mlp, x: Array, targets: Targets, options: CkksOptions, family: Family, report: dict[str, Any]
) -> PolynomialNetwork:
    before = None
    if isinstance(family, Problem) and len(model.activations) > 1:
        before = family.network(family.anchor)
    last = LastLayer.behind(model, x, degree=options.degree, before=before)
    shared = family if isinstance(family, SharedFamily) else None
    two = options.fit == "rch" and targets.scores.shape[1] == 2
    parameters, report["hulls"] = fit_hulls(last, targets, cap=options.cap, shared=shared, two_hulls=two)
    report["fit"] = f"{options.fit} mu {max(report['hulls']['caps']):g}"
    return last.network(parameters)


ROWS_PER_PARAMETER = 20
"""Below this, no fit beats least squares on other rows, and keeping every calibration decision means little."""


def _warn_of_few_rows(targets: Targets, parameters: int, report: dict[str, Any]) -> None:
    constraints = int(targets.counts.sum())
    if constraints < ROWS_PER_PARAMETER * parameters:
        report["warnings"].append(
            f"{constraints} constraints for {parameters} coefficients: agreement on these rows says little about "
            "others; calibrate on more rows"
        )


def _fit(
    family: Family,
    targets: Targets,
    options: CkksOptions,
    rng: np.random.Generator,
    progress: Progress,
    report: dict[str, Any],
) -> tuple[Array, str]:
    lift, anchor = family.lift, family.anchor
    if options.fit == "anchored":
        fit = climb(lift, targets, anchor, gamma=options.gamma, strength=options.strength)
        return fit.parameters, f"hinge gamma {options.gamma:g} C {options.strength:g}"
    if options.fit == "kl":
        kl = minimise_anchored(lift, Divergence.of(targets), anchor=anchor, strength=1.0)
        return kl.parameters, "kl lambda 1"
    if options.fit == "soft" and lift.linear:
        parameters = soft_margin(lift, targets, anchor, gamma=options.gamma, strength=options.strength)
        return parameters, f"soft gamma {options.gamma:g} C {options.strength:g}"
    judged = _rows_to_judge(options.selection_rows, len(targets))
    folds = make_folds(len(targets), rng, judged=judged, folds=5 if lift.linear else 3)
    selection = select_fit(lift, targets, anchor, folds, gamma=options.gamma, progress=progress)
    report["selection"] = _selection_report(selection)
    with progress.stage("fit", 2) as advance:
        best = _fit_picked(family, targets, selection)
        advance(1)
        if selection.finish:
            best = finish(lift, targets, best.parameters, gamma=options.gamma)
        advance(1)
    return best.parameters, selection.picked.name + (", finished" if selection.finish else "")


def _fit_picked(family: Family, targets: Targets, selection: Selection) -> Fit:
    lift, anchor = family.lift, family.anchor
    picked = selection.picked
    if picked.kind == "hinge":
        return climb(lift, targets, anchor, gamma=picked.gamma, strength=picked.strength, tolerance=1e-4)
    return fit_candidates(lift, targets, anchor, (picked,), max_steps=30)[picked]


def _rows_to_judge(text: str | None, rows: int) -> Array | None:
    if text is None:
        return None
    low, high = text.split(":")
    return np.arange(rows)[int(low or 0) : int(high) if high else rows]


def _unit_report(problem: Problem) -> list[dict[str, int]]:
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


def _selection_report(selection: Selection) -> dict[str, Any]:
    return {
        "rule": "closest to least squares within one paired standard error of the best",
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
