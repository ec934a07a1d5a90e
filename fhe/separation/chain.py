"""A network's hidden layers, prepared for the fit: which units are exact, bases for the others, least squares.

Axes: ``batch``, ``units`` (all of a layer), ``free`` (those that a fit may move), ``powers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deploy.arrays import Array
from deploy.model import Activation, Affine, Mlp, apply_activation
from fhe.network import PolynomialNetwork, evaluate_polynomials
from fhe.separation.basis import UnitBasis
from fhe.separation.lift import UnitLift
from fhe.separation.targets import orient_layer

__all__ = ["HiddenLayer", "assemble_network", "deorient", "prepare_chain", "prepare_layer"]


@dataclass(frozen=True, slots=True, eq=False)
class HiddenLayer:
    """One hidden layer over the calibration rows.

    Parameters
    ----------
    after : the affine layer that follows, oriented where it is the last.
    free : (units,) of bool: units that change sign over the rows, replaced by a fitted polynomial.
    exact : (units, degree + 1) coefficients of the other units, zero for the free ones: 0 for a unit that is never
        on (dead), z for one that is never off, z² for a square, a constant for a unit that never moves.
    basis : over the free units.
    anchor : (powers, free) least-squares coefficients in that basis.
    constant : (free,) their constants.
    """

    after: Affine
    free: Array
    exact: Array
    basis: UnitBasis
    anchor: Array
    constant: Array

    @property
    def degree(self) -> int:
        """Degree of the fitted polynomials."""
        return self.basis.degree

    def polynomials(self, coefficients: Array) -> Array:
        """Table (units, degree + 1) in powers of z, from coefficients (powers, free) in the basis."""
        table = self.exact.copy()
        fitted = np.einsum("pf,pfd->fd", coefficients, self.basis.monomials())
        fitted[:, 0] += self.constant
        table[self.free] = fitted
        return table

    def unmoved(self, z: Array) -> Array:
        """What no coefficient moves in the next pre-activation: (batch, n_next), or (n_next,) where it is constant."""
        steady = self.after.weight[:, self.free] @ self.constant + self.after.bias
        moving = self.exact[:, 1:].any(axis=1)
        steady = steady + self.after.weight[:, ~moving] @ self.exact[~moving, 0]
        if not moving.any():
            return np.asarray(steady)
        values = evaluate_polynomials(self.exact[moving], z[:, moving])
        return np.asarray(values @ self.after.weight[:, moving].T + steady)

    def features(self, z: Array) -> Array:
        """Values of the basis at z (batch, units), power by power: (batch, powers · free)."""
        values = self.basis.values(z[:, self.free])
        return np.ascontiguousarray(values.transpose(1, 0, 2)).reshape(len(z), -1)

    def lift(self, z: Array) -> UnitLift:
        """Rows with pre-activations z (batch, units), where this layer is the last hidden one."""
        return UnitLift(self.features(z), self.after.weight[:, self.free], self.unmoved(z))


def prepare_layer(
    z: Array, activation: Activation, after: Affine, degree: int, *, every: bool = False
) -> HiddenLayer:
    """Sort the units of a layer with pre-activations z (batch, units), and fit the free ones by least squares.

    With `every`, units that never change sign are free as well, squares too: all that moves and is used.
    """
    exact = np.zeros((z.shape[1], max(degree, 2) + 1))
    low, high = z.min(axis=0), z.max(axis=0)
    unused = ~after.weight.any(axis=0)
    if every:
        free = (low < high) & ~unused
        exact[~free & ~unused, 0] = apply_activation(activation, low[~free & ~unused])
    elif activation == "square":
        free = np.zeros(z.shape[1], dtype=bool)
        exact[~unused, 2] = 1.0
    else:
        free = (low < 0) & (high > 0) & ~unused
        exact[(low >= 0) & (high > 0) & ~unused, 1] = 1.0
    basis = UnitBasis.over(z[:, free], degree)
    still = ~basis.scale[0].astype(bool)
    if still.any():
        where = np.flatnonzero(free)[still]
        exact[where, 0] = apply_activation(activation, z[:, where].mean(axis=0))
        free[where] = False
        basis = UnitBasis.over(z[:, free], degree)
    on = apply_activation(activation, z[:, free])
    anchor = np.einsum("pbf,bf->pf", basis.values(z[:, free]), on) / len(z)
    return HiddenLayer(after, free, exact, basis, anchor, on.mean(axis=0))


def prepare_chain(model: Mlp, x: Array, degree: int) -> tuple[list[HiddenLayer], list[Array]]:
    """Prepare every hidden layer in turn, each on what the polynomials before it give.

    Returns
    -------
    layers, and the pre-activations (batch, units) that each was prepared on.
    """
    layers, seen = [], []
    z = model.affines[0](x)
    for index, activation in enumerate(model.activations):
        after = model.affines[index + 1]
        if index == len(model.activations) - 1:
            after = Affine(*orient_layer(model.decision, after.weight, after.bias))
        layer = prepare_layer(z, activation, after, degree)
        layers.append(layer)
        seen.append(z)
        h = evaluate_polynomials(layer.polynomials(layer.anchor), z)
        z = after(h)
    return layers, seen


def assemble_network(
    model: Mlp, tables: Sequence[Array], shifts: Sequence[Array], *, start: PolynomialNetwork | None = None
) -> PolynomialNetwork:
    """Put polynomials and shifts of the next pre-activation together.

    Parameters
    ----------
    tables : (units, degree + 1) for each of the last hidden layers.
    shifts : for each table, (n_next,) added to the bias after it; oriented (classes,) for the last.
    start : a network whose affine layers and earlier polynomials are taken over, or None for the model's own.
    """
    earlier = [] if start is None else list(start.coefficients[: len(model.activations) - len(tables)])
    affines = list(model.affines if start is None else start.affines)
    for index, shift in enumerate(shifts, start=len(earlier)):
        if index == len(model.activations) - 1:
            shift = deorient(model, shift)
        here = affines[index + 1]
        affines[index + 1] = Affine(here.weight, here.bias + shift, here.name)
    return PolynomialNetwork(tuple(affines), (*earlier, *tables), model.decision)


def deorient(model: Mlp, shift: Array) -> Array:
    """Turn something that is added to oriented scores, by class first, into what is added to the logits."""
    if model.decision.rule == "argmin":
        return -shift
    if model.decision.rule == "sign":
        return np.asarray(shift[1:] - shift[:1])
    return shift
