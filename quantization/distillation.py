"""Label-free distillation: scales and biases that follow the float network, codes frozen.

Each plane's row scales get one multiplier u a row (1 at the start) and each layer keeps a free bias,

    z = Σ_p u_p ⊙ (P_p h) + b,      minimise  E loss(float logits, ours) + ρ E[(u - 1)²],

by L-BFGS with the exact gradient. How many iterations help is decided on a quarter of the rows that the first
fit does not see; the second fit runs that many on all of them. The loss is KL(float ‖ ours) of
logits divided by 2 (as in Hinton et al., arXiv 1503.02531, so that rows that the network is sure of still
speak), or the squared error for ``value``.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, softmax

from deploy.arrays import Array
from deploy.model import Decision
from quantization.evidence import Evidence, decision_loss
from quantization.network import QuantizedLayer

__all__ = ["distill"]

SOFTENING = 2.0
MOST_ROWS = 4000


def distill(
    evidence: Evidence,
    layers: Sequence[QuantizedLayer],
    *,
    rng: np.random.Generator,
    iterations: int = 12,
    ridge: float = 1e-3,
) -> list[QuantizedLayer]:
    """Fit scales and biases to the float network's logits; the start comes back where nothing helped.

    Parameters
    ----------
    evidence : the float network on calibration rows.
    layers : a whole quantised network.
    iterations : at most so many steps of L-BFGS.
    ridge : ρ, which holds the multipliers near 1.
    """
    if len(evidence.x) > MOST_ROWS:
        evidence = evidence.take(np.sort(rng.permutation(len(evidence.x))[:MOST_ROWS]))
    rows = len(evidence.x)
    order = rng.permutation(rows)
    held, seen = np.sort(order[: rows // 4]), np.sort(order[rows // 4 :])
    if not len(held):
        return list(layers)
    problem, judge = _Problem.of(evidence.take(seen), layers, ridge), evidence.take(held)
    path = problem.descend(iterations)
    losses = [judge.loss(problem.layers(point)) for point in path]
    steps = int(np.argmin(losses))
    if steps == 0:
        return list(layers)
    whole = _Problem.of(evidence, layers, ridge)
    found = whole.layers(whole.descend(steps)[-1])
    return found if evidence.loss(found) < evidence.loss(layers) else list(layers)


@dataclass(frozen=True, eq=False)
class _Problem:
    """Distillation on some rows; points are flat vectors of multipliers and biases, layer after layer."""

    x: Array
    target: Array
    decision: Decision
    start: tuple[QuantizedLayer, ...]
    planes: tuple[tuple[Array, ...], ...]
    ridge: float

    @classmethod
    def of(cls, evidence: Evidence, layers: Sequence[QuantizedLayer], ridge: float) -> _Problem:
        planes = tuple(
            tuple(
                (plane.weight if layer.columns is None else plane.weight * layer.columns).astype(np.float32)
                for plane in layer.planes
            )
            for layer in layers
        )
        return cls(
            evidence.x.astype(np.float32), evidence.logits, evidence.model.decision, tuple(layers), planes, ridge
        )

    def origin(self) -> Array:
        return np.concatenate(
            [part for layer in self.start for part in (np.ones(len(layer.planes) * layer.shape[0]), layer.bias)]
        )

    def split(self, point: Array) -> list[tuple[Array, Array]]:
        """Multipliers (planes, n_out) and bias (n_out,) of each layer."""
        found, at = [], 0
        for layer in self.start:
            n_out, count = layer.shape[0], len(layer.planes) * layer.shape[0]
            found.append((point[at : at + count].reshape(-1, n_out), point[at + count : at + count + n_out]))
            at += count + n_out
        return found

    def layers(self, point: Array) -> list[QuantizedLayer]:
        found = []
        for layer, (multipliers, bias) in zip(self.start, self.split(point), strict=True):
            planes = [
                plane.with_scales(plane.scales * multiplier[:, None])
                for plane, multiplier in zip(layer.planes, multipliers, strict=True)
            ]
            method = f"{layer.method}, scales distilled"
            found.append(replace(layer, planes=tuple(planes), bias=bias.copy(), method=method).rounded())
        return found

    def descend(self, iterations: int) -> list[Array]:
        """Points of L-BFGS, the origin first."""
        path = [self.origin()]
        minimize(
            self.value_and_gradient,
            path[0],
            jac=True,
            method="L-BFGS-B",
            callback=lambda point: path.append(np.array(point)),
            options={"maxiter": iterations, "maxls": 8},
        )
        return path

    def value_and_gradient(self, point: Array) -> tuple[float, Array]:
        parameters = self.split(point)
        h, inputs, products, signs = self.x, [], [], []
        for planes, (multipliers, bias) in zip(self.planes, parameters, strict=True):
            inputs.append(h)
            product = [h @ plane.T for plane in planes]
            z = sum(
                (m.astype(np.float32) * p for m, p in zip(multipliers, product, strict=True)),
                bias.astype(np.float32),
            )
            products.append(product)
            signs.append(z > 0)
            h = np.maximum(z, 0)
        value, slope = _loss_slope(self.decision, self.target, z.astype(np.float64))
        parts: list[Array] = []
        for index in range(len(parameters) - 1, -1, -1):
            multipliers, _ = parameters[index]
            down = slope.astype(np.float32)
            per_plane = [np.einsum("bo,bo->o", down, product) for product in products[index]]
            pull = 2 * self.ridge * (multipliers - 1) / multipliers.size
            value += self.ridge * float(np.mean((multipliers - 1) ** 2))
            parts[:0] = [(np.array(per_plane, dtype=np.float64) + pull).ravel(), down.sum(axis=0, dtype=np.float64)]
            if index:
                pairs = zip(multipliers.astype(np.float32), self.planes[index], strict=True)
                back = np.sum([(down * multiplier) @ plane for multiplier, plane in pairs], axis=0)
                slope = back * signs[index - 1]
        return value, np.concatenate(parts)


def _loss_slope(decision: Decision, target: Array, z: Array) -> tuple[float, Array]:
    """Softened loss of logits z (batch, n_out) and its gradient."""
    if decision.rule == "value":
        spread = max(float(np.var(target)), 1e-300)
        return decision_loss(decision, target, z), 2 * (z - target) / (target.size * spread)
    target, z = target / SOFTENING, z / SOFTENING
    value = SOFTENING**2 * decision_loss(decision, target, z)
    if decision.rule == "sign":
        return value, SOFTENING * (expit(z) - expit(target)) / len(z)
    sign = 1.0 if decision.rule == "argmax" else -1.0
    return value, SOFTENING * sign * (softmax(sign * z, axis=1) - softmax(sign * target, axis=1)) / len(z)
