"""``fit=exact``: every calibration decision kept, closest to least squares; or a proof; or an honest "undecided".

Axes: ``batch``, ``n_in``, ``parameters``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploy.arrays import Array
from deploy.model import Mlp
from fhe.network import PolynomialNetwork
from fhe.options import CkksOptions
from fhe.separation.candidates import finish
from fhe.separation.certificates import infeasible_certificate
from fhe.separation.exact import closest_separating, decide_separability
from fhe.separation.problem import LastLayer, Problem
from fhe.separation.targets import Targets

if TYPE_CHECKING:
    from deploy.progress import Progress

__all__ = ["fit_exactly"]


def fit_exactly(
    model: Mlp,
    x: Array,
    targets: Targets,
    options: CkksOptions,
    report: dict[str, Any],
    certificates: dict[str, bytes],
    *,
    progress: Progress,
) -> PolynomialNetwork | None:
    """Keep every decision with margin `options.gamma`, or say in `report` why not and return None.

    With several hidden layers all of them are moved together first (no certificate exists for that part), then the
    last one is solved exactly behind the others.
    """
    before = None
    if len(model.activations) > 1:
        problem = Problem.prepare(model, x, targets, degree=options.degree)
        with progress.stage("fit all layers", 1) as advance:
            joint = finish(problem.lift, targets, problem.anchor, gamma=options.gamma, full_margin=True)
            advance(1)
        before = problem.network(joint.parameters)
    last = LastLayer.behind(model, x, degree=options.degree, before=before)
    with progress.stage("decide separability", 1) as advance:
        verdict = decide_separability(last.lift, targets, last.anchor, gamma=options.gamma)
        advance(1)
    report["parameters"] = last.lift.size
    if verdict.answer == "separable":
        closest = closest_separating(
            last.lift, targets, last.anchor, verdict.parameters, gamma=options.gamma, progress=progress
        )
        report["separable"] = True
        report["exact"] = {"distance": closest.distance, "tight": closest.tight, "rounds": closest.rounds}
        found = closest.parameters
        if found is None:
            report["warnings"].append(
                f"all decisions are kept, but not with margin {options.gamma:g}; ask for a smaller gamma"
            )
            found = verdict.parameters
        report["fit"] = f"exact gamma {options.gamma:g}"
        return last.network(found)
    if verdict.answer == "infeasible" and verdict.shortfall is not None and before is None:
        proof = infeasible_certificate(last, targets, x, verdict.shortfall, degree=options.degree)
        if proof is not None:
            certificates["infeasible.json"] = proof
            report["separable"] = False
            report["warnings"].append(
                f"no polynomials of degree {options.degree} keep every calibration decision (proved); "
                "fitted as fit=auto instead"
            )
            return None
    if before is not None:
        report["warnings"].append(
            "several hidden layers: no certificate can say that all layers together are unable to keep every decision"
        )
    report["warnings"].append(
        f"whether polynomials of degree {options.degree} can keep every calibration decision is undecided "
        f"(best residual {verdict.residual:.2g}); fitted as fit=auto instead"
    )
    return None
