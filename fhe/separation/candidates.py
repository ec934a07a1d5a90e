"""The fits that cross-validation chooses from, and how each is computed.

Axes: ``batch``, ``classes``, ``parameters``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from deploy.arrays import Array
from fhe.separation.lift import Lift
from fhe.separation.losses import Divergence, SquaredHinge
from fhe.separation.newton import Fit, minimise_anchored
from fhe.separation.targets import Targets

__all__ = ["AUTO", "Candidate", "finish", "fit_candidates"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fit: least squares, or a loss with its margin and strength, on the rows or on perturbed copies of them too.

    >>> Candidate("hinge", 0.1, 1.0).name
    'hinge gamma 0.1 C 1'
    """

    kind: Literal["least-squares", "kl", "hinge"]
    gamma: float = 0.0
    strength: float = 0.0
    perturbed: bool = False

    @property
    def name(self) -> str:
        """For people and reports."""
        if self.kind == "least-squares":
            return self.kind
        kind = f"kl lambda {1 / self.strength:g}"
        if self.kind == "hinge":
            kind = f"hinge gamma {self.gamma:g} C {self.strength:g}"
        return kind + " on perturbed rows too" * self.perturbed


AUTO: tuple[Candidate, ...] = (
    Candidate("least-squares"),
    Candidate("kl", 0.0, 0.1),
    Candidate("kl", 0.0, 1.0),
    *(
        Candidate("hinge", gamma, strength)
        for gamma in (0.1, 0.3, 1.0)
        for strength in (1e-3, 1e-2, 0.1, 1.0, 10.0)
    ),
)
"""What ``fit=auto`` chooses from."""


def fit_candidates(
    lift: Lift,
    targets: Targets,
    anchor: Array,
    candidates: tuple[Candidate, ...],
    *,
    share: float = 1.0,
    max_steps: int = 15,
    tolerance: float = 1e-4,
) -> dict[Candidate, Fit]:
    """Fit every candidate; hinges climb from weak to strong, each from the one before (a jump stalls).

    Parameters
    ----------
    share : share of all calibration rows that `lift` holds; strengths are divided by it, so that a fold sees the
        balance between loss and anchor that the whole set will.
    """
    found: dict[Candidate, Fit] = {}
    climbing: dict[float, Array] = {}
    for candidate in sorted(candidates, key=lambda c: (c.kind, c.gamma, c.strength)):
        strength = candidate.strength / share
        if candidate.kind == "least-squares":
            found[candidate] = Fit(anchor, lift.at(anchor).scores, 0.0, 0.0, 0, True)
            continue
        loss = SquaredHinge(targets, candidate.gamma) if candidate.kind == "hinge" else Divergence.of(targets)
        key = candidate.gamma
        fit = minimise_anchored(
            lift,
            loss,
            anchor=anchor,
            strength=strength,
            start=climbing.get(key),
            tolerance=tolerance,
            max_steps=max_steps,
        )
        climbing[key] = fit.parameters
        found[candidate] = fit
    return found


def climb(
    lift: Lift,
    targets: Targets,
    anchor: Array,
    *,
    gamma: float,
    strength: float,
    share: float = 1.0,
    max_steps: int = 30,
    tolerance: float = 1e-6,
) -> Fit:
    """Anchored squared hinge at one (gamma, strength), reached by steps of ten from a weak one."""
    start, weak = None, min(strength, 1e-2)
    while True:
        last = weak >= strength * 0.999
        fit = minimise_anchored(
            lift,
            SquaredHinge(targets, gamma),
            anchor=anchor,
            strength=weak / share,
            start=start,
            tolerance=tolerance if last else 1e-2,
            max_steps=max_steps if last else 8,
        )
        if last:
            return fit
        start, weak = fit.parameters, min(weak * 10, strength)


def finish(
    lift: Lift,
    targets: Targets,
    anchor: Array,
    *,
    gamma: float,
    share: float = 1.0,
    strongest: float = 1e3,
    full_margin: bool = False,
) -> Fit:
    """Move as little as possible from `anchor` until every decision that can be kept is kept.

    Climbs in strength and stops as soon as no row is decided differently; with `full_margin`, as soon as every row
    has nine tenths of the margin `gamma`.
    """
    start, strength = anchor, 0.1
    while True:
        fit = minimise_anchored(
            lift,
            SquaredHinge(targets, gamma),
            anchor=anchor,
            strength=strength / share,
            start=start,
            tolerance=1e-4,
            max_steps=12,
        )
        kept = targets.margins(fit.scores).min() >= 0.9 * gamma if full_margin else targets.agrees(fit.scores).all()
        if strength >= strongest or kept:
            return fit
        start, strength = fit.parameters, strength * 10
