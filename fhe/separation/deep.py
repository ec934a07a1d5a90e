"""Scores of a network with several hidden layers as a function of all its polynomials.

Not linear, so not convex: fits linearise it step by step (Gauss–Newton), and no certificate of infeasibility exists.

Axes: ``batch``, ``classes``, ``units``, ``free``, ``powers``, ``parameters``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deploy.arrays import Array
from fhe.network import evaluate_polynomials
from fhe.separation.chain import HiddenLayer
from fhe.separation.lift import Point

__all__ = ["DeepLift"]


@dataclass(frozen=True, slots=True, eq=False)
class DeepLift:
    """All hidden layers free. Parameters: per layer the coefficients power by power, then a shift of what follows.

    Parameters
    ----------
    layers : prepared hidden layers.
    first : (batch, units) pre-activations of the first one; no parameter moves them.
    features : of the first layer, (batch, powers · free).
    """

    layers: tuple[HiddenLayer, ...]
    first: Array
    features: Array
    linear: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of parameters of each layer."""
        return tuple(layer.anchor.size + layer.after.n_out for layer in self.layers)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(self.sizes)

    @property
    def work(self) -> int:
        """Multiplications that a derivative of the scores, or a gradient, takes over all rows."""
        a_row = sum((layer.anchor.size + len(layer.free)) * layer.after.n_out for layer in self.layers)
        return int(a_row * len(self))

    def __len__(self) -> int:
        return len(self.first)

    def split(self, parameters: Array) -> list[tuple[Array, Array]]:
        """Coefficients (powers, free) and shift (n_next,) of each layer."""
        found, start = [], 0
        for layer, size in zip(self.layers, self.sizes, strict=True):
            mine = parameters[start : start + size]
            count = layer.anchor.size
            found.append((mine[:count].reshape(layer.anchor.shape), mine[count:]))
            start += size
        return found

    def anchor(self) -> Array:
        """Least squares, layer by layer, no shift."""
        return np.concatenate(
            [np.concatenate([layer.anchor.ravel(), np.zeros(layer.after.n_out)]) for layer in self.layers]
        )

    def at(self, parameters: Array) -> Point:
        """Evaluate all rows."""
        values: list[Array] = []
        slopes: list[Array] = []
        z = self.first
        with np.errstate(over="ignore", invalid="ignore"):
            for index, (layer, (coefficients, shift)) in enumerate(
                zip(self.layers, self.split(parameters), strict=True)
            ):
                if index == 0:
                    flat, slope = self.features, np.zeros((0, 0))
                else:
                    free = z[:, layer.free]
                    basis, derivative = layer.basis.values_and_slopes(free)
                    flat = np.ascontiguousarray(basis.transpose(1, 0, 2)).reshape(len(z), -1)
                    slope = np.zeros_like(z)
                    slope[:, layer.free] = np.einsum("pf,pbf->bf", coefficients, derivative)
                    moving = layer.exact[:, 1:].any(axis=1)
                    if moving.any():
                        table = layer.exact[moving, 1:] * np.arange(1, layer.exact.shape[1])
                        slope[:, moving] = evaluate_polynomials(table, z[:, moving])
                spread = _spread(layer) * coefficients.ravel()
                values.append(flat)
                slopes.append(slope)
                z = flat @ spread.T + (layer.unmoved(z) + shift)
        return _DeepPoint(self, z, tuple(values), tuple(slopes))

    def take(self, rows: Array) -> DeepLift:
        """The same for some rows."""
        return DeepLift(self.layers, self.first[rows], self.features[rows])


def _spread(layer: HiddenLayer) -> Array:
    """(n_next, powers · free) weight that each basis value meets."""
    return np.tile(layer.after.weight[:, layer.free], layer.degree)


@dataclass(frozen=True, slots=True, eq=False)
class _DeepPoint:
    lift: DeepLift
    scores: Array
    values: tuple[Array, ...]
    slopes: tuple[Array, ...]

    def derivative(self, direction: Array) -> Array:
        change: Array | None = None
        for index, (layer, (coefficients, shift)) in enumerate(
            zip(self.lift.layers, self.lift.split(direction), strict=True)
        ):
            through = self.values[index] @ (_spread(layer) * coefficients.ravel()).T + shift
            if change is not None:
                through += (self.slopes[index] * change) @ layer.after.weight.T
            change = through
        assert change is not None
        return change

    def gradient(self, slopes: Array) -> Array:
        parts: list[Array] = []
        delta = slopes
        for index in range(len(self.lift.layers) - 1, -1, -1):
            layer = self.lift.layers[index]
            back = ((delta.T @ self.values[index]) * _spread(layer)).sum(axis=0)
            parts.append(np.concatenate([back, delta.sum(axis=0)]))
            if index:
                delta = (delta @ layer.after.weight) * self.slopes[index]
        return np.concatenate(parts[::-1])

    def rows(self, row: Array, plus: Array, minus: Array) -> Array:
        parts: list[Array] = []
        last = self.lift.layers[-1]
        delta = np.zeros((len(row), last.after.n_out))
        place = np.arange(len(row))
        delta[place, plus] = 1.0
        delta[place, minus] -= 1.0
        for index in range(len(self.lift.layers) - 1, -1, -1):
            layer = self.lift.layers[index]
            back = delta @ layer.after.weight
            through = np.tile(back[:, layer.free], layer.degree) * self.values[index][row]
            parts.append(np.hstack([through, delta]))
            if index:
                delta = back * self.slopes[index][row]
        return np.hstack(parts[::-1])
