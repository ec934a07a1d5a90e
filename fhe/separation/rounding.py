"""Rounding certificates: how far numbers may move before a calibration decision can change.

Three movements: of a logit (encryption noise), of a coefficient in the basis of the fit, and the rounding of
coefficients and weights to fixed-point numbers. The last is not bounded but tried and swept, so it is exact for the
rows at hand.

Axes: ``batch``, ``classes``, ``units``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from deploy.arrays import Array
from deploy.model import Affine
from fhe.network import PolynomialNetwork, evaluate_polynomials
from fhe.separation.lift import UnitLift
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
    seen = network.preactivations(x)
    margins = targets.margins(orient_logits(network.decision, seen[-1]))
    least = float(margins.min())
    kept = margins > 0

    def keeps(logits: Array) -> bool:
        found = targets.margins(orient_logits(network.decision, logits))
        return bool((found > 0)[kept].all())

    def rounded_coefficients_keep(bits: int) -> bool:
        rounded = round_coefficients(network, seen[:-1], bits)
        z = seen[0]
        for table, after in zip(rounded.coefficients, rounded.affines[1:], strict=True):
            z = after(evaluate_polynomials(table, z))
        return keeps(z)

    return Rounding(
        logit_move=least / 2 if least > 0 else None,
        coefficient_move=coefficient_move if least > 0 else None,
        coefficient_bits=_fewest(rounded_coefficients_keep),
        weight_bits=_fewest(lambda bits: keeps(round_weights(network, bits).logits(x))),
    )


def _fewest(keeps: Callable[[int], bool]) -> int | None:
    """The smallest number of bits that bisection finds; more bits keep more decisions nearly, not quite, always."""
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


def round_coefficients(network: PolynomialNetwork, preactivations: Sequence[Array], bits: int) -> PolynomialNetwork:
    """Round coefficients to multiples of 2**-bits, in units of their effect at the end of a unit's range.

    Parameters
    ----------
    preactivations : of each hidden layer over the calibration rows, (batch, units).
    """
    tables = []
    for table, z in zip(network.coefficients, preactivations, strict=True):
        reach = np.maximum(np.abs(z).max(axis=0), 2.0**-60)
        exponent = (np.ceil(np.log2(reach))[:, None] * np.arange(table.shape[1])).astype(int) + bits
        tables.append(np.ldexp(np.round(np.ldexp(table, exponent)), -exponent))
    return PolynomialNetwork(network.affines, tuple(tables), network.decision)


def round_weights(network: PolynomialNetwork, bits: int) -> PolynomialNetwork:
    """Round every weight and bias to a multiple of 2**-bits."""
    unit = 2.0**-bits
    affines = tuple(
        Affine(np.round(layer.weight / unit) * unit, np.round(layer.bias / unit) * unit, layer.name)
        for layer in network.affines
    )
    return PolynomialNetwork(affines, network.coefficients, network.decision)


def coefficient_reach(lift: UnitLift, parameters: Array, targets: Targets) -> float:
    """Largest move of every parameter at once that cannot change a decision: min margin / |row|_1 over all pairs.

    A row's 1-norm is what unit moves can do to its margin. It is ``Σ_j |W_yj - W_kj| Σ_p |q_p(z_j)|`` plus 2 for the
    two constants: one product for each class, and no row is formed.
    """
    margins = targets.margins(lift.at(parameters).scores)
    units = lift.weight.shape[1]
    size = np.abs(lift.features).reshape(len(lift), lift.powers, units).sum(axis=1)
    best = np.inf
    for chosen in np.unique(targets.chosen):
        mine = targets.chosen == chosen
        norms = size[mine] @ np.abs(lift.weight - lift.weight[chosen]).T + 2.0
        best = min(best, float((margins[mine] / norms).min()))
    return best
