"""A network to replace, prepared on its calibration rows: as a whole, or its last hidden layer alone.

Axes: ``batch``, ``n_in``, ``n_out``, ``units``, ``parameters``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from deploy.arrays import Array
from deploy.model import Affine, Mlp
from fhe.network import PolynomialNetwork, evaluate_polynomials
from fhe.separation.chain import HiddenLayer, assemble_network, prepare_chain, prepare_layer
from fhe.separation.deep import DeepLift
from fhe.separation.lift import Lift, UnitLift
from fhe.separation.targets import Targets, orient_layer

__all__ = ["LastLayer", "Problem"]


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A network to replace, prepared on its calibration rows.

    Parameters
    ----------
    model : the ReLU network, at least one hidden layer.
    layers : its hidden layers.
    lift : the rows in the space of the coefficients.
    targets : the decisions to keep.
    anchor : least-squares parameters.
    """

    model: Mlp
    layers: tuple[HiddenLayer, ...]
    lift: Lift
    targets: Targets
    anchor: Array

    @classmethod
    def prepare(cls, model: Mlp, x: Array, targets: Targets, *, degree: int) -> Problem:
        """Sort units, build bases, fit by least squares; x (batch, n_in)."""
        layers, seen = prepare_chain(model, x, degree)
        if len(layers) > 1:
            deep = DeepLift(tuple(layers), seen[0], layers[0].features(seen[0]))
            return cls(model, tuple(layers), deep, targets, deep.anchor())
        lift = layers[0].lift(seen[0])
        anchor = np.append(layers[0].anchor.ravel(), np.zeros(layers[0].after.n_out))
        return cls(model, tuple(layers), lift, targets, anchor)

    def lift_of(self, x: Array) -> Lift:
        """Other rows (batch, n_in) in the same bases."""
        z = self.model.affines[0](x)
        if len(self.layers) > 1:
            return DeepLift(self.layers, z, self.layers[0].features(z))
        return self.layers[0].lift(z)

    def network(self, parameters: Array) -> PolynomialNetwork:
        """The polynomial network at these parameters."""
        if isinstance(self.lift, DeepLift):
            parts = self.lift.split(parameters)
        else:
            count = self.layers[0].anchor.size
            parts = [(parameters[:count].reshape(self.layers[0].anchor.shape), parameters[count:])]
        tables = [layer.polynomials(mine) for layer, (mine, _) in zip(self.layers, parts, strict=True)]
        return assemble_network(self.model, tables, [shift for _, shift in parts])


@dataclass(frozen=True, slots=True, eq=False)
class LastLayer:
    """The last hidden layer behind fixed polynomials: linear in its coefficients whatever the depth.

    Parameters
    ----------
    before : a polynomial network whose affine layers and earlier polynomials are kept, or None for the model's own.
    layer : the last hidden layer; every unit that moves is free.
    lift : the rows in the space of its coefficients.
    anchor : parameters of least squares, or of `before`'s own last layer.
    """

    model: Mlp
    before: PolynomialNetwork | None
    layer: HiddenLayer
    lift: UnitLift
    anchor: Array

    @classmethod
    def behind(cls, model: Mlp, x: Array, *, degree: int, before: PolynomialNetwork | None = None) -> LastLayer:
        """Prepare on rows x (batch, n_in).

        With `before`, its affine layers and earlier polynomials stay, and its last polynomials are the anchor.
        """
        source = model if before is None else before
        z = source.preactivations(x)[-2]
        after = Affine(*orient_layer(model.decision, source.affines[-1].weight, source.affines[-1].bias))
        layer = prepare_layer(z, model.activations[-1], after, degree, every=True)
        if before is not None:
            layer = _anchored_at(layer, before, z)
        anchor = np.append(layer.anchor.ravel(), np.zeros(after.n_out))
        return cls(model, before, layer, layer.lift(z), anchor)

    def lift_of(self, x: Array) -> UnitLift:
        """Other rows (batch, n_in) in the same basis."""
        source = self.model if self.before is None else self.before
        return self.layer.lift(source.preactivations(x)[-2])

    def network(self, parameters: Array) -> PolynomialNetwork:
        """The polynomial network at these parameters."""
        count = self.layer.anchor.size
        table = self.layer.polynomials(parameters[:count].reshape(self.layer.anchor.shape))
        return assemble_network(self.model, [table], [parameters[count:]], start=self.before)


def _anchored_at(layer: HiddenLayer, network: PolynomialNetwork, z: Array) -> HiddenLayer:
    """The layer with a network's own polynomials, expressed in its basis, as the anchor."""
    table = network.coefficients[-1]
    values = evaluate_polynomials(table, z)
    fitted = values[:, layer.free]
    constant = fitted.mean(axis=0)
    anchor = np.einsum("pbf,bf->pf", layer.basis.values(z[:, layer.free]), fitted) / len(z)
    exact = np.zeros_like(layer.exact)
    exact[~layer.free, 0] = values[0, ~layer.free]
    return replace(layer, anchor=anchor, constant=constant, exact=exact)
