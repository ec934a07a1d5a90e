"""What a network's logits decide, and by how much.

Axes: ``batch``, ``n_out``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from deploy.arrays import Array
from deploy.errors import InputError, UsageError

__all__ = ["Decision", "Rule"]

Rule = Literal["argmax", "argmin", "sign", "value"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The rule that turns logits into a decision.

    ``argmax`` and ``argmin`` pick the first extreme output, ``sign`` says 1 where the single output is
    positive and 0 elsewhere, ``value`` decides nothing: two outputs agree where every component is within
    `tolerance` (in the model's units).

    Examples
    --------
    >>> import numpy as np
    >>> Decision("argmax").decide(np.array([[0.0, 2.0, 1.0]]))
    array([1])
    >>> Decision("argmax").margins(np.array([[0.0, 2.0, 1.0]]))
    array([1.])
    """

    rule: Rule
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        if self.rule not in ("argmax", "argmin", "sign", "value"):
            raise UsageError(f"decision rule {self.rule!r} is unknown", remedy="use argmax, argmin, sign or value")
        if not (np.isfinite(self.tolerance) and self.tolerance >= 0):
            raise UsageError(f"tolerance {self.tolerance} of a value decision must be finite and >= 0")

    def check_width(self, n_out: int) -> None:
        """Raise :class:`InputError` where the rule does not fit `n_out` outputs."""
        if self.rule == "sign" and n_out != 1:
            raise InputError(f"decision rule sign needs 1 output, the model has {n_out}", remedy="use argmax")
        if self.rule in ("argmax", "argmin") and n_out < 2:
            raise InputError(
                f"decision rule {self.rule} needs 2 outputs or more, the model has {n_out}",
                remedy="use sign or value",
            )

    def decide(self, logits: Array) -> Array:
        """Decide each row: (batch, n_out) -> (batch,) of class indices; ``value`` gives the logits back."""
        if self.rule == "argmax":
            return np.asarray(np.argmax(logits, axis=1))
        if self.rule == "argmin":
            return np.asarray(np.argmin(logits, axis=1))
        if self.rule == "sign":
            return (logits[:, 0] > 0).astype(np.int64)
        return logits

    def agree(self, ours: Array, theirs: Array) -> Array:
        """Say where two arrays of logits (batch, n_out) decide alike: (batch,) of bool."""
        if self.rule == "value":
            return np.asarray(np.all(np.abs(ours - theirs) <= self.tolerance, axis=1))
        return np.asarray(self.decide(ours) == self.decide(theirs))

    def margins(self, logits: Array) -> Array:
        """Distance of each row from the nearest change of decision, in logits: (batch,), never negative.

        A row whose every logit moves by less than half its margin cannot change its decision under argmax
        and argmin (two logits may move towards each other); under sign, less than the margin. For ``value``
        the margin is the tolerance.
        """
        if self.rule == "sign":
            return np.abs(logits[:, 0])
        if self.rule == "value":
            return np.full(len(logits), self.tolerance)
        ordered = np.partition(logits if self.rule == "argmax" else -logits, logits.shape[1] - 2, axis=1)
        return np.asarray(ordered[:, -1] - ordered[:, -2])

    def surviving_error(self, logits: Array) -> Array:
        """Largest |error| per logit that cannot change the decision: (batch,), in logits."""
        margins = self.margins(logits)
        return margins / 2 if self.rule in ("argmax", "argmin") else margins
