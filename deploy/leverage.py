"""How much each weight's sign matters: Gauss-Newton leverage of single weights and of whole columns.

For a small change δz of a layer's pre-activations the loss of a decision, KL(original ‖ changed) in nats, is

    E[δz' J' F J δz] / 2,        J = d logits / d z,   F = diag(p) - p p'

(for argmin the same with p of -z, for ``sign`` F = p (1 - p), for ``value`` F = 2, which makes it the squared
error). Turning the sign of w_ij moves z_i by -2 w_ij x_j, so its leverage is ``2 w_ij² E[x_j² (J' F J)_ii]``;
turning a whole column, v = W_:j, costs ``2 E[x_j² v' J' F J v]``, cross terms included.

It is a second-order figure: it ranks single flips well, understates them by a quarter to a half, and must be
measured where it matters. Derivation: docs/ternary.md.

Axes: ``batch``, ``n_in``, ``n_out``, ``units`` (n_out of the layer in question).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, softmax

from deploy.arrays import Array
from deploy.model import Mlp

__all__ = ["LayerLeverage", "gauss_newton_leverage"]

_ROWS_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class LayerLeverage:
    """Predicted loss of sign flips in one layer.

    Parameters
    ----------
    weights : (n_out, n_in) of turning one weight.
    columns : (n_in,) of turning a whole column.
    """

    weights: Array
    columns: Array


def gauss_newton_leverage(model: Mlp, x: Array, *, temperature: float = 1.0) -> list[LayerLeverage]:
    """Leverage of every sign of a network on rows x (batch, n_in), layer by layer.

    Parameters
    ----------
    model : a feed-forward network.
    x : rows without labels.
    temperature : logits are divided by it before the softmax; 2 gives confident rows a voice in rankings.

    Examples
    --------
    >>> from deploy.model import Affine, Decision
    >>> net = Mlp((Affine([[1.0, 0.0], [0.0, 0.1]], [0.0, 0.0]),), (), Decision("argmax"))
    >>> found = gauss_newton_leverage(net, np.array([[1.0, 1.0]]))[0].weights
    >>> bool(found[0, 0] > found[1, 1] > 0 == found[0, 1])
    True
    """
    shapes = [layer.weight.shape for layer in model.affines]
    weights, columns = [np.zeros(shape) for shape in shapes], [np.zeros(shape[1]) for shape in shapes]
    for begin in range(0, len(x), _ROWS_AT_ONCE):
        for index, inputs, root in _curvature_roots(model, x[begin : begin + _ROWS_AT_ONCE], temperature):
            squares = inputs**2
            weights[index] += np.einsum("bku,bku->bu", root, root).T @ squares
            moved = root @ model.affines[index].weight
            columns[index] += np.einsum("bj,bkj,bkj->j", squares, moved, moved)
    share = 2 / len(x)
    return [
        LayerLeverage(share * layer.weight**2 * weight, share * column)
        for layer, weight, column in zip(model.affines, weights, columns, strict=True)
    ]


def _curvature_roots(model: Mlp, x: Array, temperature: float) -> Iterator[tuple[int, Array, Array]]:
    """For each layer, last first: its inputs (batch, n_in) and R (batch, k, units) with J'FJ = R'R row by row."""
    z = model.preactivations(x)
    root = _output_root(model, z[-1] / temperature) / temperature
    for index in range(len(model.affines) - 1, -1, -1):
        inputs = x
        if index:
            before = z[index - 1]
            relu = model.activations[index - 1] == "relu"
            inputs = np.maximum(before, 0.0) if relu else before * before
        yield index, inputs, root
        if index:
            slope = (before > 0).astype(float) if relu else 2 * before
            root = (root @ model.affines[index].weight) * slope[:, None, :]


def _output_root(model: Mlp, logits: Array) -> Array:
    """R (batch, n_out, n_out) with R'R = F: rows sqrt(p_k) (e_k - p)."""
    rule, n_out = model.decision.rule, logits.shape[1]
    if rule == "value":
        return np.broadcast_to(np.sqrt(2.0) * np.eye(n_out), (len(logits), n_out, n_out)).copy()
    if rule == "sign":
        p = expit(logits)
        return np.asarray(np.sqrt(p * (1 - p))[:, :, None])
    p = softmax(logits if rule == "argmax" else -logits, axis=1)
    return np.asarray(np.sqrt(p)[:, :, None] * (np.eye(n_out) - p[:, None, :]))
