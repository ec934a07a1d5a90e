"""The network that runs on ciphertexts: affine layers with one polynomial per hidden unit between each two.

Axes: ``batch``, ``n_in``, ``n_out``, ``units`` (of one hidden layer), ``powers`` (degree + 1, ascending).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from deploy.arrays import Array, frozen
from deploy.errors import BundleError, InputError
from deploy.model import Affine, Decision

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PolynomialNetwork", "evaluate_polynomials"]

_FORMAT = "relu-deploy polynomial network"
_VERSION = 1


def evaluate_polynomials(coefficients: Array, z: Array) -> Array:
    """Evaluate one polynomial per unit by Horner's rule: (units, powers), (batch, units) -> (batch, units).

    >>> evaluate_polynomials(np.array([[1.0, 0.0, 2.0]]), np.array([[3.0]]))
    array([[19.]])
    """
    value = np.broadcast_to(coefficients[:, -1], z.shape)
    for power in range(coefficients.shape[1] - 2, -1, -1):
        value = value * z + coefficients[:, power]
    return np.array(value)


@dataclass(frozen=True, eq=False)
class PolynomialNetwork:
    """``logits(x) = A_L(p_{L-1}(… p_1(A_1(x))))``, every p one polynomial per unit, in float64.

    For one hidden layer of degree 2 that is ``logits = (W2·a) z² + (W2·b) z + b2`` with ``z = W1 x + b1``:
    :meth:`power_weights` gives the matrices ``W2·b`` and ``W2·a``. Constants of the polynomials are folded into the
    next bias when the value is made, so column 0 of every coefficient table is zero.

    Parameters
    ----------
    affines : L >= 1 layers whose widths fit; L = 1 is a network without hidden layer.
    coefficients : L - 1 tables (units, degree + 1), ascending powers of the pre-activation itself. A row of zeros
        is a dead unit; (0, 1, 0, …) passes the pre-activation on. Tables may differ in degree.
    decision : rule over the logits.

    Examples
    --------
    >>> network = PolynomialNetwork(
    ...     (Affine([[1.0]], [0.0]), Affine([[2.0]], [1.0])), (np.array([[0.5, 0.0, 1.0]]),), Decision("value"))
    >>> network.logits(np.array([[3.0]])), network.affines[1].bias
    (array([[20.]]), array([2.]))
    """

    affines: tuple[Affine, ...]
    coefficients: tuple[Array, ...]
    decision: Decision

    def __post_init__(self) -> None:
        if not self.affines or len(self.coefficients) != len(self.affines) - 1:
            raise InputError(
                f"{len(self.affines)} affine layers do not go with {len(self.coefficients)} coefficient tables"
            )
        affines = list(self.affines)
        tables = []
        for index, table in enumerate(self.coefficients):
            table = np.array(table, dtype=np.float64)
            if table.ndim != 2 or table.shape[0] != affines[index].n_out or table.shape[1] < 2:
                raise InputError(
                    f"coefficients of shape {table.shape} for {affines[index].n_out} units", place=f"layer {index}"
                )
            if affines[index + 1].n_in != affines[index].n_out:
                raise InputError(
                    f"gives {affines[index].n_out} values, the next layer takes {affines[index + 1].n_in}",
                    place=f"layer {index}",
                )
            if not np.isfinite(table).all():
                raise InputError("coefficients that are NaN or infinite", place=f"layer {index}")
            if table[:, 0].any():
                after = affines[index + 1]
                affines[index + 1] = Affine(after.weight, after.bias + after.weight @ table[:, 0], after.name)
                table[:, 0] = 0.0
            tables.append(frozen(table, ndim=2))
        object.__setattr__(self, "affines", tuple(affines))
        object.__setattr__(self, "coefficients", tuple(tables))
        self.decision.check_width(self.n_out)

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
    def degrees(self) -> tuple[int, ...]:
        """Degree of each hidden layer: the highest power with a coefficient that is not zero, at least 1."""
        return tuple(max([1, *np.flatnonzero(table.any(axis=0)).tolist()]) for table in self.coefficients)

    @property
    def dead_units(self) -> tuple[Array, ...]:
        """(units,) of bool per hidden layer: units whose polynomial is zero, so that nothing depends on them."""
        return tuple(np.asarray(~table.any(axis=1)) for table in self.coefficients)

    def power_weights(self, index: int) -> tuple[Array, ...]:
        """Matrices (n_out, units) that multiply z, z², …, after hidden layer `index`: ``W·diag(coefficient)``."""
        weight, table = self.affines[index + 1].weight, self.coefficients[index]
        return tuple(weight * table[:, power] for power in range(1, self.degrees[index] + 1))

    def without_dead_units(self) -> PolynomialNetwork:
        """The same function with dead units removed; a layer that is all dead keeps its first unit."""
        affines, tables = list(self.affines), list(self.coefficients)
        for index, dead in enumerate(self.dead_units):
            keep = ~dead
            if not keep.any():
                keep[0] = True
            here, after = affines[index], affines[index + 1]
            affines[index] = Affine(here.weight[keep], here.bias[keep], here.name)
            affines[index + 1] = Affine(after.weight[:, keep], after.bias, after.name)
            tables[index] = tables[index][keep]
        return PolynomialNetwork(tuple(affines), tuple(tables), self.decision)

    def preactivations(self, x: Array) -> list[Array]:
        """Input of each polynomial, then the logits: L arrays (batch, units); `x` is (batch, n_in)."""
        found = []
        h = np.asarray(x, dtype=np.float64)
        for layer, table in zip(self.affines, self.coefficients, strict=False):
            z = layer(h)
            found.append(z)
            h = evaluate_polynomials(table, z)
        return [*found, self.affines[-1](h)]

    def logits(self, x: Array) -> Array:
        """Evaluate in float64: (batch, n_in) -> (batch, n_out)."""
        h = np.asarray(x, dtype=np.float64)
        for layer, table in zip(self.affines, self.coefficients, strict=False):
            h = evaluate_polynomials(table, layer(h))
        return self.affines[-1](h)

    @cached_property
    def sha256(self) -> str:
        """Hash over everything that decides."""
        digest = hashlib.sha256(repr((self.widths, self.decision)).encode())
        for layer in self.affines:
            digest.update(layer.weight.tobytes())
            digest.update(layer.bias.tobytes())
        for table in self.coefficients:
            digest.update(repr(table.shape).encode())
            digest.update(table.tobytes())
        return digest.hexdigest()

    def to_bytes(self) -> bytes:
        """One safetensors file, float64; the same bytes for the same value."""
        from safetensors.numpy import save

        tensors: dict[str, Array] = {}
        for index, layer in enumerate(self.affines):
            tensors[f"{index}.weight"] = layer.weight
            tensors[f"{index}.bias"] = layer.bias
        for index, table in enumerate(self.coefficients):
            tensors[f"{index}.coefficients"] = table
        header = {
            "format": _FORMAT,
            "version": _VERSION,
            "layers": len(self.affines),
            "rule": self.decision.rule,
            "tolerance": self.decision.tolerance,
        }
        return bytes(save(tensors, metadata={"network": json.dumps(header, sort_keys=True)}))

    @classmethod
    def from_bytes(cls, data: bytes) -> PolynomialNetwork:
        """Read what :meth:`to_bytes` wrote; raises :class:`deploy.errors.BundleError` otherwise."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            length = int.from_bytes(data[:8], "little")
            header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["network"])
            tensors = load(data)
            if header["format"] != _FORMAT or header["version"] != _VERSION:
                raise BundleError(f"version {header['version']} of {header['format']!r} is unknown")
            layers = int(header["layers"])
            affines = tuple(Affine(tensors[f"{i}.weight"], tensors[f"{i}.bias"]) for i in range(layers))
            tables: Sequence[Array] = [tensors[f"{i}.coefficients"] for i in range(layers - 1)]
            return cls(affines, tuple(tables), Decision(header["rule"], header["tolerance"]))
        except (SafetensorError, KeyError, ValueError, TypeError, UnicodeDecodeError) as error:
            raise BundleError(f"not a polynomial network: {error}") from None
