"""A trained feed-forward ReLU network, exactly as it was loaded.

Axes: ``batch``, ``n_in``, ``n_out``, ``units`` (of one hidden layer).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from deploy.arrays import Array, frozen
from deploy.errors import InputError
from deploy.model.decision import Decision
from deploy.model.network import Network, Tail, check_rows

__all__ = ["Activation", "Affine", "Mlp", "check_rows"]

Activation = Literal["relu", "square"]


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
class Mlp(Network):
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
        self._check_interface()

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

    @cached_property
    def sha256(self) -> str:
        """Hash over everything that decides: shapes, weights, biases, activations, rule, tail."""
        digest = hashlib.sha256(repr((self.widths, self.activations, self.decision, self.tail)).encode())
        for layer in self.affines:
            digest.update(layer.weight.tobytes())
            digest.update(layer.bias.tobytes())
        return digest.hexdigest()


def apply_activation(activation: Activation, z: Array) -> Array:
    """Apply the ReLU or the square elementwise; a NaN stays a NaN."""
    return np.maximum(z, 0.0) if activation == "relu" else z * z
