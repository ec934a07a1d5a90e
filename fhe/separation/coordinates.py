"""All weights of a polynomial network in well-conditioned coordinates, and the way back.

Axes: ``batch``, ``n_in``, ``units``, ``powers``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deploy.arrays import Array
from deploy.model import Affine
from fhe.network import PolynomialNetwork, evaluate_polynomials
from fhe.separation.basis import UnitBasis

__all__ = ["Coordinates"]


@dataclass(frozen=True, slots=True, eq=False)
class HiddenCoordinates:
    """A hidden layer's unit polynomials over the rows that training starts on.

    Parameters
    ----------
    basis : orthonormal, of each unit.
    coefficients : (powers, units) in it.
    constant : (units,) means of the polynomials, which the next bias takes over.
    """

    basis: UnitBasis
    coefficients: Array
    constant: Array


@dataclass(frozen=True, slots=True, eq=False)
class Coordinates:
    """Well-conditioned coordinates of all weights, and the way back.

    Inputs are centred and each is scaled by the size of the weights that it meets; pre-activations are standardised;
    unit polynomials are combinations of their orthonormal basis, so that what enters the next layer is centred too.
    In raw weights the mean of the inputs and of the powers rules every gradient, and training stalls a percent lower.

    Parameters
    ----------
    start : the network that training starts from.
    centre, scale : (n_in,) of the inputs.
    hidden : one for each hidden layer.
    """

    start: PolynomialNetwork
    centre: Array
    scale: Array
    hidden: tuple[HiddenCoordinates, ...]

    @classmethod
    def around(cls, start: PolynomialNetwork, x: Array) -> Coordinates:
        """Prepare over rows x (batch, n_in)."""
        hidden = []
        for table, z in zip(start.coefficients, start.preactivations(x), strict=False):
            basis = UnitBasis.over(z, table.shape[1] - 1)
            values = evaluate_polynomials(table, z)
            coefficients = np.einsum("pbu,bu->pu", basis.values(z), values) / len(z)
            hidden.append(HiddenCoordinates(basis, coefficients, values.mean(axis=0)))
        first = start.affines[0].weight / (hidden[0].basis.std[:, None] if hidden else 1.0)
        size = np.sqrt((first * first).mean(axis=0))
        return cls(start, x.mean(axis=0), np.maximum(size, 1e-3 * (size.max() or 1.0)), tuple(hidden))

    def inputs(self, x: Array, rows: Array) -> Array:
        """Some rows of x (batch, n_in) as training sees them, in float32."""
        found = np.empty((len(rows), x.shape[1]), dtype=np.float32)
        for part in (slice(start, start + 4096) for start in range(0, len(rows), 4096)):
            found[part] = (x[rows[part]] - self.centre) * self.scale
        return found

    def parameters(self) -> list[Array]:
        """Weight and bias of each layer, each but the last followed by its coefficients (powers, units)."""
        found: list[Array] = []
        for index, layer in enumerate(self.start.affines):
            weight, bias = layer.weight, layer.bias
            if index == 0:
                weight, bias = weight / self.scale, bias + weight @ self.centre
            else:
                bias = bias + weight @ self.hidden[index - 1].constant
            if index < len(self.hidden):
                basis = self.hidden[index].basis
                weight, bias = weight / basis.std[:, None], (bias - basis.mean) / basis.std
            found += [weight, bias]
            if index < len(self.hidden):
                found.append(self.hidden[index].coefficients)
        return found

    def sizes(self) -> list[float]:
        """Typical size of what each of :meth:`parameters` adds up to: a training step is a share of it.

        That is the root mean square of a tensor times the root of the number of its summands (inputs of a layer,
        powers of a unit); a bias goes with the weights beside it.
        """
        found: list[float] = []
        size = 1.0
        for index, values in enumerate(self.parameters()):
            coefficients = index % 3 == 2
            if values.ndim == 2:
                summands = values.shape[0] if coefficients else values.shape[1]
                size = max(float(np.sqrt((values * values).mean() * summands)), 1e-6)
            found.append(size)
        return found

    def network(self, parameters: list[Array]) -> PolynomialNetwork:
        """Back to weights of rows as they are, and polynomials in powers of the pre-activation."""
        left = list(parameters)
        affines, tables = [], []
        for index, layer in enumerate(self.start.affines):
            weight, bias = left.pop(0), left.pop(0)
            if index < len(self.hidden):
                basis = self.hidden[index].basis
                weight, bias = weight * basis.std[:, None], bias * basis.std + basis.mean
                tables.append(np.einsum("pu,pud->ud", left.pop(0), basis.monomials()))
            if index == 0:
                weight = weight * self.scale
                bias = bias - weight @ self.centre
            affines.append(Affine(weight, bias, layer.name))
        return PolynomialNetwork(tuple(affines), tuple(tables), self.start.decision)
