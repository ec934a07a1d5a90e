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
from deploy.errors import UsageError
from deploy.model import Mlp
from deploy.progress import SILENT, Progress
from fhe.network import PolynomialNetwork
from fhe.options import CkksOptions
from fhe.separation.agreement import search_agreement
from fhe.separation.baselines import fit_baselines
from fhe.separation.candidates import Candidate, climb, finish, fit_candidates
from fhe.separation.distill import distill
from fhe.separation.exactness import fit_exactly
from fhe.separation.families import Family, HeadFamily, SharedFamily
from fhe.separation.hull_fit import fit_hulls
from fhe.separation.hulls import soft_margin
from fhe.separation.lift import Lift
from fhe.separation.losses import Divergence
from fhe.separation.newton import Fit, minimise_anchored
from fhe.separation.problem import LastLayer, Problem
from fhe.separation.reporting import add_evidence, blank_report, selection_report, unit_report, warn_of_few_rows
from fhe.separation.rounding import coefficient_reach
from fhe.separation.selection import make_folds, select_fit
from fhe.separation.targets import Targets

__all__ = ["Separation", "separate"]

_JITTER = 0.1
"""Perturbed rows are moved by normal noise of this share of each input's standard deviation."""


@dataclass(frozen=True, slots=True, eq=False)
class Separation:
    """What the separation found.

    Parameters
    ----------
    network : the polynomial network.
    report : everything that people are told, JSON only; "fit" names the fit that was kept.
    certificates : file of each certificate by name.
    baselines : tables of the usual replacements by name, where they were asked for.
    """

    network: PolynomialNetwork
    report: Mapping[str, Any]
    certificates: Mapping[str, bytes] = field(default_factory=dict)
    baselines: Mapping[str, tuple[Array, ...]] = field(default_factory=dict)

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
    _rows_to_judge(options.selection_rows, len(x))
    targets = Targets.of(model.decision, model.logits(x))
    decides = model.decision.rule != "value"
    report = blank_report(options, targets, decides=decides)
    certificates: dict[str, bytes] = {}
    if options.agreement is not None and model.activations and decides:
        options, network = search_agreement(
            options, lambda choice, notes: _fit_network(model, x, targets, choice, rng, progress, notes), report
        )
        report.update(family=options.family, degree=options.degree, refine=options.refine)
    elif not model.activations:
        network = PolynomialNetwork(model.affines, (), model.decision)
    else:
        exact = None
        if options.fit == "exact" and targets.counts.any() and decides:
            exact = fit_exactly(model, x, targets, options, report, certificates, progress=progress)
        network = exact or _fit_network(model, x, targets, options, rng, progress, report)
    reach = None
    if model.activations and decides and targets.counts.any():
        last = LastLayer.behind(model, x, degree=max(network.degrees[-1], options.degree), before=network)
        reach = coefficient_reach(last.lift, last.anchor, targets)
    add_evidence(model, network, x, targets, options, report, certificates, coefficient_move=reach)
    baselines = fit_baselines(model, x) if options.baselines and model.activations else {}
    return Separation(network, report, certificates, baselines)


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
    report["units"] = unit_report(problem)
    family: Family = problem
    if options.family == "shared":
        family = SharedFamily.of(model, x, degree=options.degree)
    elif options.family == "head":
        family = HeadFamily.of(model, x, degree=options.degree)
    report["parameters"] = family.lift.size
    report["fit"] = "least-squares"
    if not any(layer.free.any() for layer in problem.layers):
        return problem.network(problem.anchor)
    if model.decision.rule == "value" or options.fit == "least-squares" or not targets.counts.any():
        return family.network(family.anchor)
    warn_of_few_rows(targets, family.lift.size, report)
    seen, wanted, lift = x, targets, family.lift
    if options.augment:
        noise = rng.spawn(1)[0].normal(size=x.shape)  # of its own, so that the folds are those without it
        seen = np.vstack([x, x + noise * (_JITTER * x.std(axis=0))])
        wanted, lift = Targets.of(model.decision, model.logits(seen)), family.lift_of(seen)
    if options.fit in ("rch", "nu"):
        network = _fit_hulls(model, seen, wanted, options, family, report)
    else:
        parameters, report["fit"] = _fit(lift, wanted, family.anchor, len(x), options, rng, progress, report)
        network = family.network(parameters)
    if options.refine == "distill":
        network = _refine(model, x, targets, network, options, rng, progress, report)
    return network


def _refine(
    model: Mlp,
    x: Array,
    targets: Targets,
    network: PolynomialNetwork,
    options: CkksOptions,
    rng: np.random.Generator,
    progress: Progress,
    report: dict[str, Any],
) -> PolynomialNetwork:
    """Retrain, then separate the last layer once more on the new features if rows kept aside do not object."""
    judged = _rows_to_judge(options.selection_rows, len(targets))
    distilled = distill(network, x, targets, rng=rng, progress=progress, aside=judged)
    found, again = distilled.network, False
    if model.decision.rule != "value" and len(found.coefficients) >= 1:
        last = LastLayer.behind(model, x, degree=options.degree, before=found)
        kept = distilled.aside
        fitted = np.setdiff1d(np.arange(len(x)), kept)
        fit = climb(
            last.lift.take(fitted),
            targets.take(fitted),
            last.anchor,
            gamma=options.gamma,
            strength=1.0,
            max_steps=15,
        )
        after = float(targets.take(kept).agrees(last.lift.take(kept).at(fit.parameters).scores).mean())
        if after >= distilled.agreement_after:
            found, again = last.network(fit.parameters), True
    report["fit"] += ", retrained without labels (distill)"
    report["distill"] = {
        "epoch": distilled.epoch,
        "agreement_before": distilled.agreement_before,
        "agreement_after": distilled.agreement_after,
        "rows_aside": len(distilled.aside),
        "separated_again": again,
    }
    return found


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


def _fit(
    lift: Lift,
    targets: Targets,
    anchor: Array,
    rows: int,
    options: CkksOptions,
    rng: np.random.Generator,
    progress: Progress,
    report: dict[str, Any],
) -> tuple[Array, str]:
    """Parameters and the name of the fit; what stands behind the first `rows` rows are perturbed copies of them."""
    if options.fit == "anchored":
        fit = climb(lift, targets, anchor, gamma=options.gamma, strength=options.strength)
        return fit.parameters, f"hinge gamma {options.gamma:g} C {options.strength:g}"
    if options.fit == "kl":
        kl = minimise_anchored(lift, Divergence.of(targets), anchor=anchor, strength=1.0)
        return kl.parameters, "kl lambda 1"
    if options.fit == "soft" and lift.linear:
        parameters = soft_margin(lift, targets, anchor, gamma=options.gamma, strength=options.strength)
        return parameters, f"soft gamma {options.gamma:g} C {options.strength:g}"
    judged = _rows_to_judge(options.selection_rows, rows)
    folds = make_folds(rows, rng, judged=judged, folds=5 if lift.linear else 3)
    selection = select_fit(lift, targets, anchor, folds, gamma=options.gamma, progress=progress, rows=rows)
    report["selection"] = selection_report(selection)
    if len(lift) > rows and not selection.picked.perturbed:
        lift, targets = lift.take(np.arange(rows)), targets.take(np.arange(rows))
    with progress.stage("fit", 2) as advance:
        best = _fit_picked(lift, targets, anchor, selection.picked)
        advance(1)
        if selection.finish:
            best = finish(lift, targets, best.parameters, gamma=options.gamma)
        advance(1)
    return best.parameters, selection.picked.name + (", finished" if selection.finish else "")


def _fit_picked(lift: Lift, targets: Targets, anchor: Array, picked: Candidate) -> Fit:
    if picked.kind == "hinge":
        return climb(lift, targets, anchor, gamma=picked.gamma, strength=picked.strength, tolerance=1e-4)
    return fit_candidates(lift, targets, anchor, (picked,), max_steps=30)[picked]


def _rows_to_judge(text: str | None, rows: int) -> Array | None:
    if text is None:
        return None
    low, high = text.split(":")
    found = np.arange(rows)[int(low or 0) : int(high) if high else rows]
    if not len(found):
        raise UsageError(f"selection_rows={text} names none of {rows} calibration rows", remedy="0:N counts from 0")
    return found
