"""What every kind of network has: a decision rule, a tail, labels and names, and how it is asked.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np

from deploy.arrays import Array
from deploy.errors import DataError, InputError
from deploy.model.decision import Decision

__all__ = ["Network", "Tail", "apply_tail", "check_rows"]

Tail = Literal["none", "softmax", "log_softmax", "sigmoid", "sigmoid_pair"]


class Network(ABC):
    """The part of a network that does not depend on how its logits come about.

    A kind of network is a frozen dataclass with these fields; its ``__post_init__`` ends in :meth:`_check_interface`.
    """

    kind: str
    decision: Decision
    input_shape: tuple[int, ...]
    tail: Tail
    classes: tuple[str | int, ...] | None
    features: tuple[str, ...] | None
    notes: tuple[str, ...]

    @property
    @abstractmethod
    def n_in(self) -> int:
        """Number of inputs."""

    @property
    @abstractmethod
    def n_out(self) -> int:
        """Number of logits."""

    @property
    @abstractmethod
    def widths(self) -> tuple[int, ...]:
        """n_in, the width of each hidden layer, n_out."""

    @property
    @abstractmethod
    def parameters(self) -> int:
        """Number of weights and biases."""

    @abstractmethod
    def logits(self, x: Array) -> Array:
        """Evaluate in float64, before the tail: (batch, n_in) -> (batch, n_out)."""

    def _check_interface(self) -> None:
        """Fill in a flat input shape; raise :class:`InputError` where rule, labels or names do not fit the widths."""
        if not self.input_shape:
            object.__setattr__(self, "input_shape", (self.n_in,))
        if int(np.prod(self.input_shape)) != self.n_in:
            raise InputError(f"input shape {self.input_shape} does not hold {self.n_in} values")
        self.decision.check_width(self.n_out)
        n_classes = 2 if self.decision.rule == "sign" else self.n_out
        if self.classes is not None and len(self.classes) != n_classes:
            raise InputError(f"{len(self.classes)} class labels for {n_classes} classes")
        if self.features is not None and len(self.features) != self.n_in:
            raise InputError(f"{len(self.features)} feature names for {self.n_in} inputs")

    def check_rows(self, x: Array) -> Array:
        """Give `x` back as (batch, n_in) float64, or raise :class:`DataError`.

        Rows may come flat or in the file's own input shape.
        """
        return check_rows(x, self.n_in, self.input_shape)

    def outputs(self, x: Array) -> Array:
        """Evaluate with the tail that the file had: (batch, n_in) -> (batch, n_out)."""
        return apply_tail(self.tail, self.logits(x))

    def decide(self, x: Array) -> Array:
        """Class index of each row: (batch, n_in) -> (batch,)."""
        return self.decision.decide(self.logits(x))

    def with_(self, **changes: Any) -> Self:
        """Copy with some fields replaced."""
        return replace(self, **changes)  # type: ignore[type-var]

    def summary(self) -> Mapping[str, Any]:
        """What people and the manifest are told: kind, widths, parameters, decision."""
        return MappingProxyType(
            {
                "kind": self.kind,
                "widths": list(self.widths),
                "parameters": self.parameters,
                "decision": self.decision.rule,
            }
        )


def check_rows(x: Array, n_in: int, input_shape: tuple[int, ...]) -> Array:
    """Give `x` back as (batch, n_in) float64; rows may come flat or in the model's own input shape."""
    rows = np.asarray(x, dtype=np.float64)
    if rows.ndim > 2 and rows.shape[1:] == input_shape:
        rows = rows.reshape(len(rows), -1)
    if rows.ndim == 1 and rows.shape == (n_in,):
        rows = rows[None]
    if rows.ndim != 2 or rows.shape[1] != n_in:
        raise DataError(
            f"rows of shape {rows.shape}, the model takes {n_in} values a row",
            remedy=f"give an array of shape (rows, {n_in})",
        )
    if not np.isfinite(rows).all():
        bad = np.argwhere(~np.isfinite(rows))[0]
        raise DataError(f"value {rows[tuple(bad)]} is not finite", place=f"row {bad[0]}, column {bad[1]}")
    return rows


def apply_tail(tail: Tail, logits: Array) -> Array:
    """Apply softmax, log-softmax or the logistic function row by row: (batch, n_out) -> the same shape.

    "sigmoid_pair" gives [1 - p, p] for the one logit of a binary classifier: (batch, 1) -> (batch, 2).
    """
    from scipy.special import expit, log_softmax, softmax

    if tail == "softmax":
        return np.asarray(softmax(logits, axis=1))
    if tail == "log_softmax":
        return np.asarray(log_softmax(logits, axis=1))
    if tail == "sigmoid":
        return np.asarray(expit(logits))
    if tail == "sigmoid_pair":
        return np.hstack([expit(-logits), expit(logits)])
    return logits
