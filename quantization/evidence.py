"""What the float network says about calibration rows, computed once for every candidate.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import expit, softmax

from deploy.arrays import Array
from deploy.fidelity import divergence
from deploy.model import Decision, Mlp
from quantization.network import QuantizedLayer

__all__ = ["Evidence", "decision_loss"]

TEMPERATURE = 3.0
"""Softening of the probabilities behind row weights: rows that the network is sure of still count a little."""

PROBE_ROWS = 2000


def decision_loss(decision: Decision, original: Array, deployed: Array) -> float:
    """Mean KL in nats of logits (batch, n_out); for ``value`` the squared error over the original's variance."""
    with np.errstate(over="ignore", invalid="ignore"):
        kl = divergence(decision, original, deployed)
        if kl is not None:
            found = float(np.mean(kl))
        else:
            found = float(np.mean((deployed - original) ** 2) / max(float(np.var(original)), 1e-300))
    return found if np.isfinite(found) else float("inf")


@dataclass(frozen=True, eq=False)
class Evidence:
    """A float network on rows x (batch, n_in)."""

    model: Mlp
    x: Array

    @cached_property
    def preactivations(self) -> list[Array]:
        """z of each layer, the logits last."""
        return self.model.preactivations(self.x)

    @property
    def logits(self) -> Array:
        """(batch, n_out) of the float network."""
        return self.preactivations[-1]

    def layer_input(self, index: int) -> Array:
        """What layer `index` sees: (batch, n_in of it)."""
        return self.x if index == 0 else np.maximum(self.preactivations[index - 1], 0.0)

    @cached_property
    def output_weights(self) -> Array | None:
        """Curvature of the loss by each logit, softened: (batch, n_out) of p (1 - p); None for ``value``."""
        rule = self.model.decision.rule
        if rule == "value":
            return None
        if rule == "sign":
            p = expit(self.logits / TEMPERATURE)
        else:
            p = softmax((self.logits if rule == "argmax" else -self.logits) / TEMPERATURE, axis=1)
        weights = p * (1 - p)
        floor = 1e-3 * weights.mean()
        return np.asarray(weights + floor if floor > 0 else np.ones_like(weights))

    @cached_property
    def row_weights(self) -> Array | None:
        """Trace of that curvature, 1 - Σ p²: (batch,), what a row counts; None for ``value``."""
        return None if self.output_weights is None else self.output_weights.sum(axis=1)

    def loss(self, layers: Sequence[QuantizedLayer]) -> float:
        """Loss with the first layers quantised and the others as they were."""
        h = self.x
        for layer in layers[:-1]:
            h = np.maximum(layer(h), 0.0)
        return self.loss_behind(len(layers) - 1, layers[-1](h))

    def loss_behind(self, index: int, z: Array) -> float:
        """Loss where layer `index` gives pre-activations z (batch, n_out of it) and the layers behind it are exact."""
        for affine in self.model.affines[index + 1 :]:
            z = affine(np.maximum(z, 0.0))
        return decision_loss(self.model.decision, self.logits, z)

    @cached_property
    def probe_rows(self) -> Array:
        """Index of at most 2,000 of the rows, evenly spread: enough to choose between candidates."""
        rows = len(self.x)
        return np.linspace(0, rows - 1, min(rows, PROBE_ROWS)).astype(np.intp)

    @cached_property
    def probe(self) -> Evidence:
        """The same network on the :attr:`probe_rows`."""
        return self if len(self.probe_rows) == len(self.x) else self.take(self.probe_rows)

    def take(self, rows: Array) -> Evidence:
        """The same network on some of the rows."""
        part = Evidence(self.model, self.x[rows])
        part.__dict__["preactivations"] = [z[rows] for z in self.preactivations]
        return part
