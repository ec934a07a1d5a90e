"""Row certificates: decisions that cannot flip, row by row.

If the deployed logits differ from the original's by at most ``bound``, output by output, the decision of a row
survives where the chosen output, at its worst, still beats every other at its best. A certificate is as sure as the
bound it comes from.

Axes: ``batch``, ``n_out``.
"""

from __future__ import annotations

import numpy as np

from deploy.arrays import Array
from deploy.model.decision import Decision

__all__ = ["certify_rows"]


def certify_rows(decision: Decision, original: Array, bound: Array) -> Array:
    """Say which rows decide alike under every error within the bound.

    Parameters
    ----------
    original : (batch, n_out) logits of the original.
    bound : (batch, n_out) largest |deployed - original|, never negative.

    Returns
    -------
    (batch,) of bool.

    Examples
    --------
    >>> original = np.array([[3.0, 0.0], [3.0, 0.0]])
    >>> certify_rows(Decision("argmax"), original, np.array([[1.0, 1.9], [1.0, 2.1]])).tolist()
    [True, False]
    """
    if decision.rule == "value":
        return np.asarray((bound <= decision.tolerance).all(axis=1))
    if decision.rule == "sign":
        return np.asarray(bound[:, 0] < np.abs(original[:, 0]))
    logits = original if decision.rule == "argmax" else -original
    rows = np.arange(len(logits))
    chosen = np.argmax(logits, axis=1)
    worst = logits[rows, chosen] - bound[rows, chosen]
    best = logits + bound
    best[rows, chosen] = -np.inf
    return np.asarray(worst > best.max(axis=1))
