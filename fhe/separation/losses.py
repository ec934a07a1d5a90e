"""What a fit pays for scores that decide differently: squared hinge, or divergence from the original.

A loss gives its value, its slope by every score, and the pairs of outputs (row, plus, minus, weight) whose weighted
squares ``weight · (d scores[plus] - d scores[minus])²`` make up its curvature.

Axes: ``batch``, ``classes``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import log_softmax

from deploy.arrays import Array
from fhe.separation.targets import Targets

__all__ = ["Divergence", "Loss", "Pairs", "SquaredHinge"]

Pairs = tuple[Array, Array, Array, Array]
"""Row, first class, second class and weight of each pair: (pairs,) each."""


class Loss(Protocol):
    """A convex function of the scores (batch, classes)."""

    def value(self, scores: Array) -> float:
        """Sum over the rows."""
        ...

    def slopes(self, scores: Array) -> Array:
        """Derivative by every score: (batch, classes)."""
        ...

    def pairs(self, scores: Array) -> Pairs:
        """Rows, classes and weights of the curvature."""
        ...

    def take(self, rows: Array) -> Loss:
        """The same for some rows."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class SquaredHinge:
    """½ Σ max(0, margin asked - margin)² over all pairs that count."""

    targets: Targets
    gamma: float

    def value(self, scores: Array) -> float:
        """Sum over the pairs that fall short."""
        short = self.gamma - self.targets.margins(scores)
        np.maximum(short, 0.0, out=short)
        return 0.5 * float(np.vdot(short, short))

    def slopes(self, scores: Array) -> Array:
        """The shortfall, given to the other class and taken from the chosen one."""
        short = np.maximum(self.gamma - self.targets.margins(scores), 0.0)
        short[np.arange(len(short)), self.targets.chosen] = -short.sum(axis=1)
        return short

    def pairs(self, scores: Array) -> Pairs:
        """Pairs that fall short, weight 1 each (a generalised Hessian; the loss has no second derivative at 0)."""
        row, other = np.nonzero(self.targets.margins(scores) < self.gamma)
        return row, self.targets.chosen[row], other, np.ones(len(row))

    def take(self, rows: Array) -> SquaredHinge:
        """The same for some rows."""
        return SquaredHinge(self.targets.take(rows), self.gamma)


_NEGLIGIBLE = 1e-3
"""Classes less likely than this add nothing that a step would notice."""


@dataclass(frozen=True, slots=True, eq=False)
class Divergence:
    """Σ KL(softmax of the original ‖ softmax of the scores), convex in the scores.

    Its curvature is diag(q) - q qᵀ. Measured from the likeliest class c, that is at most
    Σ_k q_k (e_k - e_c)(e_k - e_c)ᵀ, which needs one pair a class instead of one for every two classes and is close
    where one class is likely.
    """

    targets: Targets
    log_original: Array

    @classmethod
    def of(cls, targets: Targets) -> Divergence:
        """Take the original's own scores as the aim."""
        return cls(targets, np.asarray(log_softmax(targets.scores, axis=1)))

    def value(self, scores: Array) -> float:
        """Sum in nats."""
        return float(np.sum(np.exp(self.log_original) * (self.log_original - log_softmax(scores, axis=1))))

    def slopes(self, scores: Array) -> Array:
        """q - p."""
        return np.asarray(np.exp(log_softmax(scores, axis=1)) - np.exp(self.log_original))

    def pairs(self, scores: Array) -> Pairs:
        """Each class with any probability against the likeliest one: an upper bound of the curvature."""
        q = np.exp(log_softmax(scores, axis=1))
        likeliest = np.argmax(q, axis=1)
        q[np.arange(len(q)), likeliest] = 0.0
        row, other = np.nonzero(q > _NEGLIGIBLE)
        return row, likeliest[row], other, q[row, other]

    def take(self, rows: Array) -> Divergence:
        """The same for some rows."""
        return Divergence(self.targets.take(rows), self.log_original[rows])
