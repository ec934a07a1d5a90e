"""The decisions that a fit must keep, as margins between pairs of outputs.

Every decision rule becomes "the output of the decided class is the largest": argmin negates the logits, and a sign
decision compares its one logit with an output that is always zero.

Axes: ``batch``, ``classes`` (n_out, or 2 for a sign decision).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deploy.arrays import Array
from deploy.model import Decision

__all__ = ["Targets", "orient_layer", "orient_logits"]

TIE = 1e-9
"""Two logits closer than this share of the row's largest are a tie: no rounding of theirs can be trusted."""


def orient_logits(decision: Decision, logits: Array) -> Array:
    """Turn logits (batch, n_out) into scores (batch, classes) whose first largest entry is the decision."""
    if decision.rule == "argmin":
        return -logits
    if decision.rule == "sign":
        return np.hstack([np.zeros_like(logits), logits])
    return logits


def orient_layer(decision: Decision, weight: Array, bias: Array) -> tuple[Array, Array]:
    """Turn the last layer into one that computes oriented scores: (classes, n_in), (classes,)."""
    if decision.rule == "argmin":
        return -weight, -bias
    if decision.rule == "sign":
        return np.vstack([np.zeros_like(weight), weight]), np.concatenate([np.zeros_like(bias), bias])
    return weight, bias


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """What the original decides on each row, and which margins count.

    Parameters
    ----------
    scores : (batch, classes) oriented logits of the original.
    chosen : (batch,) class that it decides.
    counts : (batch, classes) of bool: pairs (chosen, class) whose order a fit must keep. Ties do not count, neither
        does the class itself.
    """

    scores: Array
    chosen: Array
    counts: Array

    @classmethod
    def of(cls, decision: Decision, logits: Array) -> Targets:
        """Read the decisions off the original's logits (batch, n_out)."""
        scores = orient_logits(decision, logits)
        chosen = np.argmax(scores, axis=1)
        rows = np.arange(len(scores))
        gap = scores[rows, chosen][:, None] - scores
        counts = gap > TIE * np.maximum(1.0, np.abs(scores).max(axis=1))[:, None]
        counts[rows, chosen] = False
        return cls(scores, chosen, counts)

    @property
    def tied_rows(self) -> int:
        """Number of rows whose two best classes tie."""
        return int(np.count_nonzero(self.counts.sum(axis=1) < self.counts.shape[1] - 1))

    def __len__(self) -> int:
        return len(self.chosen)

    def take(self, rows: Array) -> Targets:
        """The same for some rows."""
        return Targets(self.scores[rows], self.chosen[rows], self.counts[rows])

    def margins(self, scores: Array) -> Array:
        """Score of the chosen class minus each score: (batch, classes); +inf where the pair does not count."""
        found = scores[np.arange(len(scores)), self.chosen][:, None] - scores
        found[~self.counts] = np.inf
        return np.asarray(found)

    def agrees(self, scores: Array) -> Array:
        """Say which rows are decided alike by scores (batch, classes): (batch,) of bool."""
        return np.asarray(np.argmax(scores, axis=1) == self.chosen)
