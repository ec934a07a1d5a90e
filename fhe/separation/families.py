"""What may move: one polynomial for the layer, one for each unit, or the output weights as well.

A family is a lift with its least-squares parameters and the way back to a network. ``per-unit`` is
:class:`fhe.separation.problem.Problem`; the two here are for one hidden layer.

Axes: ``batch``, ``classes``, ``units``, ``free``, ``powers``, ``parameters``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from deploy.arrays import Array
from deploy.model import Affine, Mlp
from fhe.network import PolynomialNetwork
from fhe.separation.chain import deorient
from fhe.separation.lift import HeadLift, Lift, ReducedLift
from fhe.separation.problem import LastLayer

__all__ = ["Family", "HeadFamily", "SharedFamily"]


class Family(Protocol):
    """Parameters to fit, and the network at any of them."""

    @property
    def lift(self) -> Lift:
        """The calibration rows."""
        ...

    @property
    def anchor(self) -> Array:
        """(parameters,) of least squares."""
        ...

    def lift_of(self, x: Array) -> Lift:
        """Other rows (batch, n_in), in the same parameters."""
        ...

    def network(self, parameters: Array) -> PolynomialNetwork:
        """The polynomial network."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class SharedFamily:
    """One polynomial for all units: ``scores = Σ_p α_p S_p + η B + λ b``, as in arXiv 2605.22237.

    S_p sums the p-th powers of the pre-activations with the output weights, B sums the output weights, b is the
    output bias. Every such network is a per-unit one, so the parameters here are coordinates in that space, along
    orthonormal directions: distances mean the same in both families.

    Parameters
    ----------
    last : the per-unit problem that holds this one.
    lift, anchor : in the coordinates above.
    powers : (per-unit parameters, degree) directions of S_1, S_2, … alone: the plane (H, Q) of the binary problem.
    """

    last: LastLayer
    lift: ReducedLift
    anchor: Array
    powers: Array

    @classmethod
    def of(cls, model: Mlp, x: Array, *, degree: int) -> SharedFamily:
        """Prepare on rows x (batch, n_in)."""
        last = LastLayer.behind(model, x, degree=degree)
        layer, size = last.layer, last.lift.size
        weight, bias = layer.after.weight, layer.after.bias
        count = layer.anchor.size
        directions = np.zeros((size, degree + 2))
        z = model.affines[0](x)[:, layer.free]
        for power in range(1, degree + 1):
            values = z**power
            coefficients = np.einsum("pbf,bf->pf", layer.basis.values(z), values) / len(z)
            directions[:count, power - 1] = coefficients.ravel()
            directions[count:, power - 1] = weight[:, layer.free] @ values.mean(axis=0)
        directions[count:, degree] = weight.sum(axis=1)
        directions[count:, degree + 1] = bias
        offset = np.zeros(size)
        offset[count:] = -last.layer.unmoved(model.affines[0](x))
        basis, triangle = _orthonormal(directions)
        powers = _shared_least_squares(z, degree)
        anchor = triangle @ np.concatenate([powers[1:], powers[:1], [1.0]])
        sizes = np.linalg.norm(directions[:, :degree], axis=0)
        return cls(last, ReducedLift(last.lift, basis, offset), anchor, directions[:, :degree] / sizes)

    def lift_of(self, x: Array) -> ReducedLift:
        """Other rows (batch, n_in), in the same parameters."""
        return replace(self.lift, whole=self.last.lift_of(x))

    def network(self, parameters: Array) -> PolynomialNetwork:
        """The polynomial network; every unit's polynomial is the same up to a constant."""
        return self.last.network(self.lift.expand(parameters))


def _orthonormal(directions: Array) -> tuple[Array, Array]:
    """QR that survives dependent columns (a zero bias, for one): (parameters, rank), (rank, columns)."""
    left, sizes, right = np.linalg.svd(directions, full_matrices=False)
    rank = int(np.count_nonzero(sizes > 1e-12 * sizes[0]))
    return left[:, :rank], sizes[:rank, None] * right[:rank]


def _shared_least_squares(z: Array, degree: int) -> Array:
    """Polynomial closest to the ReLU over all units' values at once: (degree + 1,), ascending."""
    scale = max(float(np.abs(z).max()), 1e-300)
    powers = np.vander((z / scale).ravel(), degree + 1, increasing=True)
    found, *_ = np.linalg.lstsq(powers.T @ powers, powers.T @ np.maximum(z, 0.0).ravel(), rcond=None)
    return np.asarray(found / scale ** np.arange(degree + 1))


@dataclass(frozen=True, slots=True, eq=False)
class HeadFamily:
    """Output weights free too: every class weighs every power of every unit for itself.

    The network has one copy of a hidden unit for each power, so it is wider; that is the price of this family.
    """

    last: LastLayer
    lift: HeadLift
    anchor: Array

    @classmethod
    def of(cls, model: Mlp, x: Array, *, degree: int) -> HeadFamily:
        """Prepare on rows x (batch, n_in)."""
        last = LastLayer.behind(model, x, degree=degree)
        unit = last.lift
        classes, width = unit.weight.shape[0], unit.features.shape[1]
        lift = HeadLift(unit.features, classes, unit.fixed)
        weights = np.tile(unit.weight, unit.powers) * last.anchor[:width]
        return cls(last, lift, np.append(weights.ravel(), np.zeros(classes)))

    def lift_of(self, x: Array) -> HeadLift:
        """Other rows (batch, n_in), in the same parameters."""
        return replace(self.lift, features=self.last.lift_of(x).features)

    def network(self, parameters: Array) -> PolynomialNetwork:
        """The polynomial network, one copy of a unit for each power."""
        model, layer = self.last.model, self.last.layer
        classes, width = self.lift.classes, self.lift.features.shape[1]
        head = parameters[: classes * width].reshape(classes, width)
        bias = np.asarray(self.lift.fixed) + parameters[classes * width :]
        first = model.affines[0]
        copies = layer.degree
        table = layer.basis.monomials().reshape(width, layer.degree + 1)
        widened = Affine(
            np.tile(first.weight[layer.free], (copies, 1)), np.tile(first.bias[layer.free], copies), first.name
        )
        last = Affine(deorient(model, head), deorient(model, bias), model.affines[-1].name)
        return PolynomialNetwork((widened, last), (table,), model.decision)
