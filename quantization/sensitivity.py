"""Which signs matter: Gauss-Newton leverage, and how well it predicts the damage that is really measured.

Ranking alone is cheap to claim, so every figure comes with a measurement: a sample of single signs and of whole
columns is turned, the KL to the float network is measured on rows of its own, and Spearman's correlation and the
ratio of sums (measured over predicted, with a bootstrap interval) are reported, next to simpler predictors and
the α² of the sign-magnitude analysis (arXiv 2605.18933). The damage is KL to the float network, never a change
of accuracy: that has both signs and is mostly noise.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from deploy.arrays import Array
from deploy.leverage import LayerLeverage, gauss_newton_leverage
from deploy.model import Mlp, apply_activation
from deploy.progress import SILENT, Progress
from deploy.target import Json
from quantization.evidence import decision_loss

__all__ = ["LayerSensitivity", "flip_loss", "measure_sensitivity", "spearman"]


@dataclass(frozen=True, eq=False)
class LayerSensitivity:
    """Predictions and measurements of one layer.

    Parameters
    ----------
    leverage : predicted loss of every sign and every column.
    weight_spearman, column_spearman : Spearman's correlation with measured loss, by predictor.
    weight_ratio, column_ratio : Σ measured / Σ predicted by Gauss-Newton, with a 95 % bootstrap interval.
    """

    name: str
    leverage: LayerLeverage
    weight_spearman: dict[str, float]
    column_spearman: dict[str, float]
    weight_ratio: tuple[float, float, float]
    column_ratio: tuple[float, float, float]

    def document(self, top: int) -> dict[str, Json]:
        """The JSON form, with the `top` columns of most leverage."""
        order = np.argsort(-self.leverage.columns, kind="stable")[:top]
        return {
            "name": self.name,
            "total_leverage": float(self.leverage.weights.sum()),
            "weight_spearman": dict(self.weight_spearman),
            "column_spearman": dict(self.column_spearman),
            "weight_measured_over_predicted": list(self.weight_ratio),
            "column_measured_over_predicted": list(self.column_ratio),
            "top_columns": [[int(j), float(self.leverage.columns[j])] for j in order],
        }


def spearman(first: Array, second: Array) -> float:
    """Spearman's rank correlation, ties averaged; 0 where one side is constant."""
    a, b = rankdata(first), rankdata(second)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def flip_loss(model: Mlp, x: Array, layer: int, rows: Array, column: int, *, z: Sequence[Array]) -> float:
    """Loss of turning the signs of weights (rows, column) of a layer, measured on x (batch, n_in).

    `z` are the network's pre-activations on x; only what follows the layer is computed again.
    """
    affine = model.affines[layer]
    inputs = x if layer == 0 else apply_activation(model.activations[layer - 1], z[layer - 1])
    changed = z[layer].copy()
    changed[:, rows] -= 2 * inputs[:, column, None] * affine.weight[rows, column]
    for index in range(layer, len(model.activations)):
        changed = model.affines[index + 1](apply_activation(model.activations[index], changed))
    return decision_loss(model.decision, z[-1], changed)


def measure_sensitivity(
    model: Mlp,
    x: Array,
    measured_on: Array,
    *,
    rng: np.random.Generator,
    weights: int = 100,
    columns: int = 60,
    temperature: float = 2.0,
    progress: Progress = SILENT,
) -> list[LayerSensitivity]:
    """Predict the loss of sign flips on rows x and measure a sample of them on rows of its own.

    Parameters
    ----------
    weights, columns : how many flips of each kind are measured a layer, at most; weights are drawn evenly over the
        ranks of predicted leverage, so that both ends are there.
    temperature : of the predictor, see :func:`deploy.leverage.gauss_newton_leverage`; the ratio uses 1.
    """
    soft = gauss_newton_leverage(model, x, temperature=temperature)
    hard = gauss_newton_leverage(model, x)
    z = model.preactivations(measured_on)
    energies = _input_energies(model, x)
    found = []
    with progress.stage("sensitivity: measuring flips", len(model.affines)) as advance:
        for index, affine in enumerate(model.affines):
            weight, energy = affine.weight, energies[index]
            flat = _spread_over_ranks(soft[index].weights.ravel(), weights, rng)
            places = np.stack(np.unravel_index(flat, weight.shape), axis=1)
            loss = np.array([flip_loss(model, measured_on, index, i[None], j, z=z) for i, j in places])
            live = np.flatnonzero(soft[index].columns > 0)
            picked = np.sort(rng.permutation(live)[:columns])
            every = np.arange(len(weight))
            column_loss = np.array([flip_loss(model, measured_on, index, every, j, z=z) for j in picked])
            norms = (weight**2).sum(axis=0)
            weight_predictors = {
                "gauss_newton": soft[index].weights,
                "magnitude": np.abs(weight),
                "alpha_squared": np.broadcast_to(energy, weight.shape),
                "weight_squared_alpha_squared": weight**2 * energy,
            }
            column_predictors = {
                "gauss_newton": soft[index].columns,
                "gauss_newton_diagonal": soft[index].weights.sum(axis=0),
                "alpha_squared": energy,
                "norm_squared": norms,
                "alpha_squared_norm_squared": energy * norms,
            }
            found.append(
                LayerSensitivity(
                    affine.name or f"layer {index}",
                    hard[index],
                    {name: spearman(values.ravel()[flat], loss) for name, values in weight_predictors.items()},
                    {name: spearman(values[picked], column_loss) for name, values in column_predictors.items()},
                    _ratio(loss, hard[index].weights.ravel()[flat], rng),
                    _ratio(column_loss, hard[index].columns[picked], rng),
                )
            )
            advance(1)
    return found


def _input_energies(model: Mlp, x: Array) -> list[Array]:
    """E[x_j²] of what each layer sees."""
    z = model.preactivations(x)
    hidden = [apply_activation(model.activations[at], z[at]) for at in range(len(model.activations))]
    return [(h**2).mean(axis=0) for h in (x, *hidden)]


def _spread_over_ranks(values: Array, count: int, rng: np.random.Generator) -> Array:
    """Indices of up to `count` positive values, one from each of equally many runs of ranks."""
    positive = np.flatnonzero(values > 0)
    order = positive[np.argsort(values[positive], kind="stable")]
    parts = np.array_split(order, min(count, len(order)))
    return np.array([rng.choice(part) for part in parts], dtype=np.intp)


def _ratio(measured: Array, predicted: Array, rng: np.random.Generator) -> tuple[float, float, float]:
    """Σ measured / Σ predicted and its 95 % bootstrap interval."""
    if not len(measured) or predicted.sum() <= 0:
        return 0.0, 0.0, 0.0
    draws = rng.integers(0, len(measured), size=(1000, len(measured)))
    low, high = np.percentile(
        measured[draws].sum(axis=1) / np.maximum(predicted[draws].sum(axis=1), 1e-300), [2.5, 97.5]
    )
    return float(measured.sum() / predicted.sum()), float(low), float(high)
