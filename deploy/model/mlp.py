"""A trained feed-forward ReLU network, exactly as it was loaded.

Axes: ``batch``, ``n_in``, ``n_out``, ``units`` (of one hidden layer).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from deploy.arrays import Array, frozen
from deploy.errors import DataError, InputError
from deploy.model.decision import Decision

__all__ = ["Activation", "Affine", "Mlp", "Tail"]

Activation = Literal["relu", "square"]
Tail = Literal["none", "softmax", "log_softmax", "sigmoid", "sigmoid_pair"]


@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """x -> weight x + bias, with weight (n_out, n_in) and bias (n_out,), float64 and read-only.

    >>> Affine([[1.0, 2.0]], [3.0]).weight.shape
    (1, 2)
    """

    weight: Array
    bias: Array
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", frozen(self.weight, ndim=2))
        object.__setattr__(self, "bias", frozen(self.bias, ndim=1))
        if self.bias.shape[0] != self.weight.shape[0]:
            raise InputError(
                f"bias has {self.bias.shape[0]} entries, weight {self.weight.shape[0]} rows", place=self.name
            )
        if 0 in self.weight.shape:
            raise InputError(f"weight of shape {self.weight.shape} has no entries", place=self.name)
        for what, array in (("weight", self.weight), ("bias", self.bias)):
            bad = int(array.size - np.count_nonzero(np.isfinite(array)))
            if bad:
                raise InputError(f"{what} has {bad} entries that are NaN or infinite", place=self.name)

    @property
    def n_in(self) -> int:
        """Number of columns of the weight."""
        return int(self.weight.shape[1])

    @property
    def n_out(self) -> int:
        """Number of rows of the weight."""
        return int(self.weight.shape[0])

    def __call__(self, x: Array) -> Array:
        """Apply to rows: (batch, n_in) -> (batch, n_out)."""
        return np.asarray(x @ self.weight.T + self.bias)


@dataclass(frozen=True, eq=False)
class Mlp:
    """Affine layers with one activation between each two, a decision rule, and what was done at load time.

    ``logits(x) = A_L(f_{L-1}(… f_1(A_1(x))))`` with every f the ReLU or the square. A network without hidden
    layer has one affine and no activation. A ReLU on the last layer is written as one more activation
    followed by the identity, so that there is one form only.

    Parameters
    ----------
    affines : L >= 1 layers whose widths fit.
    activations : L - 1 of "relu" or "square".
    decision : rule over the logits.
    input_shape : shape of one row in the original file; its product is n_in.
    tail : what the file applied to the logits; :meth:`outputs` re-applies it.
    classes : label of each class, or None; two for ``sign``.
    features : name of each input, or None.
    notes : sentences on what was folded, stripped or rewritten, for people.
    """

    affines: tuple[Affine, ...]
    activations: tuple[Activation, ...]
    decision: Decision
    input_shape: tuple[int, ...] = ()
    tail: Tail = "none"
    classes: tuple[str | int, ...] | None = None
    features: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    kind: Literal["mlp"] = field(default="mlp", init=False)

    def __post_init__(self) -> None:
        if not self.affines:
            raise InputError("the network has no affine layer")
        if len(self.activations) != len(self.affines) - 1:
            raise InputError(f"{len(self.affines)} affine layers need {len(self.affines) - 1} activations")
        unknown = set(self.activations) - {"relu", "square"}
        if unknown:
            raise InputError(f"unknown activations {sorted(unknown)}", remedy="use relu or square")
        for index, (first, second) in enumerate(zip(self.affines, self.affines[1:], strict=False)):
            if first.n_out != second.n_in:
                raise InputError(
                    f"gives {first.n_out} values, the next layer takes {second.n_in}", place=f"layer {index}"
                )
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

    @property
    def n_in(self) -> int:
        """Number of inputs."""
        return self.affines[0].n_in

    @property
    def n_out(self) -> int:
        """Number of logits."""
        return self.affines[-1].n_out

    @property
    def widths(self) -> tuple[int, ...]:
        """n_in, the width of each hidden layer, n_out."""
        return (self.n_in, *(layer.n_out for layer in self.affines))

    @property
    def parameters(self) -> int:
        """Number of weights and biases."""
        return sum(layer.weight.size + layer.bias.size for layer in self.affines)

    def check_rows(self, x: Array) -> Array:
        """Give `x` back as (batch, n_in) float64, or raise :class:`DataError`.

        Rows may come flat or in the file's own input shape.
        """
        return check_rows(x, self.n_in, self.input_shape)

    def preactivations(self, x: Array) -> list[Array]:
        """Input of each activation, then the logits: L arrays (batch, units); `x` is (batch, n_in)."""
        found: list[Array] = []
        h = np.asarray(x, dtype=np.float64)
        for index, layer in enumerate(self.affines):
            z = layer(h)
            found.append(z)
            if index < len(self.activations):
                h = apply_activation(self.activations[index], z)
        return found

    def logits(self, x: Array) -> Array:
        """Evaluate in float64, before the tail: (batch, n_in) -> (batch, n_out)."""
        h = np.asarray(x, dtype=np.float64)
        for layer, activation in zip(self.affines, self.activations, strict=False):
            h = apply_activation(activation, layer(h))
        return self.affines[-1](h)

    def outputs(self, x: Array) -> Array:
        """Evaluate with the tail that the file had: (batch, n_in) -> (batch, n_out)."""
        return apply_tail(self.tail, self.logits(x))

    def decide(self, x: Array) -> Array:
        """Class index of each row: (batch, n_in) -> (batch,)."""
        return self.decision.decide(self.logits(x))

    def with_(self, **changes: Any) -> Mlp:
        """Copy with some fields replaced."""
        return replace(self, **changes)

    @cached_property
    def sha256(self) -> str:
        """Hash over everything that decides: shapes, weights, biases, activations, rule, tail."""
        digest = hashlib.sha256(repr((self.widths, self.activations, self.decision, self.tail)).encode())
        for layer in self.affines:
            digest.update(layer.weight.tobytes())
            digest.update(layer.bias.tobytes())
        return digest.hexdigest()

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


def apply_activation(activation: Activation, z: Array) -> Array:
    """Apply the ReLU or the square elementwise; a NaN stays a NaN."""
    return np.maximum(z, 0.0) if activation == "relu" else z * z


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
