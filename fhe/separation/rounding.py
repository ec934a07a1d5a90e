"""Rounding certificates: how far numbers may move before a calibration decision can change.

Three movements: of a logit (encryption noise), of a coefficient in the basis of the fit, and the rounding of
coefficients and weights to fixed-point numbers. The last is not bounded but tried and swept, so it is exact for the
rows at hand.

Axes: ``batch``, ``classes``, ``units``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deploy.arrays import Array
from deploy.model import Affine
from fhe.network import PolynomialNetwork
from fhe.separation.lift import Lift
from fhe.separation.targets import Targets, orient_logits

__all__ = ["Rounding", "certify_rounding", "coefficient_reach", "round_coefficients", "round_weights"]

_MOST_BITS = 40


@dataclass(frozen=True, slots=True)
class Rounding:
    """What the calibration decisions tolerate; None where not all of them are kept to begin with.

    Parameters
    ----------
    logit_move : every logit may move by less than this, each on its own: half the least margin.
    coefficient_move : every coefficient (in the orthonormal basis) may move by less than this.
    coefficient_bits : fewest fractional bits of coefficients that lose no decision, each coefficient scaled to what
        it contributes at the end of its unit's range.
    weight_bits : fewest fractional bits of all weights and biases that lose none.
    """

    logit_move: float | None
    coefficient_move: float | None
    coefficient_bits: int | None
    weight_bits: int | None


def certify_rounding(
    network: PolynomialNetwork, x: Array, targets: Targets, *, coefficient_move: float | None
) -> Rounding:
    """Sweep roundings of a network over rows x (batch, n_in), against the decisions that it keeps."""
    margins = targets.margins(orient_logits(network.decision, network.logits(x)))
    least = float(margins.min())
    kept = margins > 0
    return Rounding(
        logit_move=least / 2 if least > 0 else None,
        coefficient_move=coefficient_move if least > 0 else None,
        coefficient_bits=_fewest(lambda bits: round_coefficients(network, x, bits), x, targets, kept),
        weight_bits=_fewest(lambda bits: round_weights(network, bits), x, targets, kept),
    )


def _fewest(rounded, x: Array, targets: Targets, kept: Array) -> int | None:  # type: ignore[no-untyped-def]
    """Bisect, then step down while fewer bits still do: keeping decisions is nearly, not quite, monotone in bits."""

    def keeps(bits: int) -> bool:
        network = rounded(bits)
        margins = targets.margins(orient_logits(network.decision, network.logits(x)))
        return bool((margins > 0)[kept].all())

    low, high = 0, _MOST_BITS
    if not keeps(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if keeps(middle):
            high = middle
        else:
            low = middle + 1
    return high


def round_coefficients(network: PolynomialNetwork, x: Array, bits: int) -> PolynomialNetwork:
    """Round coefficients to multiples of 2**-bits, in units of their effect at the ends of ranges over rows x."""
    tables = []
    for table, z in zip(network.coefficients, network.preactivations(x), strict=False):
        reach = np.maximum(np.abs(z).max(axis=0), 2.0**-60)
        exponent = np.ceil(np.log2(reach))[:, None] * np.arange(table.shape[1])
        tables.append(
            np.ldexp(np.round(np.ldexp(table, (exponent + bits).astype(int))), (-exponent - bits).astype(int))
        )
    return PolynomialNetwork(network.affines, tuple(tables), network.decision)


def round_weights(network: PolynomialNetwork, bits: int) -> PolynomialNetwork:
    """Round every weight and bias to a multiple of 2**-bits."""
    unit = 2.0**-bits
    affines = tuple(
        Affine(np.round(layer.weight / unit) * unit, np.round(layer.bias / unit) * unit, layer.name)
        for layer in network.affines
    )
    return PolynomialNetwork(affines, network.coefficients, network.decision)


def coefficient_reach(lift: Lift, parameters: Array, targets: Targets) -> float:
    """Largest move of every coefficient at once that cannot change a decision: min margin / |row|_1 over all pairs.

    Exact for a lift that is linear; each row's 1-norm bounds what unit moves can do to its margin.
    """
    point = lift.at(parameters)
    margins = targets.margins(point.scores)
    best = np.inf
    step = max(1, (1 << 22) // lift.size)
    row, other = np.nonzero(targets.counts)
    for start in range(0, len(row), step):
        part = slice(start, start + step)
        block = np.abs(point.rows(row[part], targets.chosen[row[part]], other[part])).sum(axis=1)
        best = min(best, float((margins[row[part], other[part]] / block).min()))
    return best
