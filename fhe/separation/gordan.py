"""Gordan certificates in integers: proofs that no coefficients keep all decisions.

From the float shortfalls of :mod:`fhe.separation.exact`: the constraint rows of their support are written as exact
integers (weights and rows are binary fractions), all multipliers but those of a basis are rounded, and those of the
basis follow from one exact linear system. If they come out positive, ``λ >= 0`` and ``Aᵀ λ = 0`` hold without any
rounding, and no parameters whatsoever satisfy ``A θ > 0``.

Axes: ``pairs`` (row, other class), ``columns`` (unit and power, then constants).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import qr

from deploy.arrays import Array
from deploy.model import Affine
from deploy.requirement import require

__all__ = ["ExactMultipliers", "exact_columns", "exact_multipliers", "to_integers"]

_ROUNDING_BITS = 50


@dataclass(frozen=True, slots=True, eq=False)
class ExactMultipliers:
    """Non-negative integers, one for each pair, with ``Aᵀ λ = 0`` exactly."""

    row: Array
    other: Array
    weights: tuple[int, ...]


def to_integers(values: Array) -> tuple[Array, int]:
    """Write floats as integers times 2**-shift, exactly: (object array of the same shape, shift)."""
    mantissa, exponent = np.frexp(values)
    used = values != 0
    shift = int((53 - exponent[used]).max()) if used.any() else 0
    whole = (mantissa * 2.0**53).astype(np.int64).astype(object)
    left = np.where(used, exponent - 53 + shift, 0).astype(object)
    return np.left_shift(whole, left), shift


def _matrix(values: Array) -> Any:
    flint = require("flint", extra="ckks")
    return flint.fmpz_mat(values.shape[0], values.shape[1], [int(v) for v in values.ravel()])


def exact_columns(
    first: Affine, after: Affine, free: Array, x: Array, chosen: Array, other: Array, degree: int
) -> Any:
    """Constraint rows as integers: (pairs, columns) ``fmpz_mat``; every column has a scale of its own.

    Parameters
    ----------
    first, after : affine layers around the hidden layer; `after` oriented.
    free : (units,) of bool.
    x : (pairs, n_in) row of each pair.
    chosen, other : (pairs,) classes.
    """
    x_int, x_shift = to_integers(x)
    w_int, w_shift = to_integers(first.weight[free])
    b_int, b_shift = to_integers(first.bias[free])
    product = _matrix(x_int) * _matrix(w_int.T)
    shift = max(x_shift + w_shift, b_shift)
    z = np.array([[int(v) for v in line] for line in product.tolist()], dtype=object)
    z = z * (1 << (shift - x_shift - w_shift)) + (b_int * (1 << (shift - b_shift)))[None]
    v_int, _ = to_integers(after.weight[:, free])
    difference = v_int[chosen] - v_int[other]
    blocks = [difference * z**power for power in range(1, degree + 1)]
    constants = np.zeros((len(x), after.n_out), dtype=object)
    constants[np.arange(len(x)), chosen] += 1
    constants[np.arange(len(x)), other] -= 1
    return _matrix(np.hstack([*blocks, constants]))


def exact_multipliers(
    rows: Array, columns: Any, weights: Array, row: Array, other: Array
) -> ExactMultipliers | None:
    """Make float multipliers exact, or return None where no positive exact ones lie near them.

    Parameters
    ----------
    rows : (pairs, parameters) the same constraints in floats, well scaled: the basis is chosen with them.
    columns : the same in integers, from :func:`exact_columns`; the constants come last and sum to zero.
    weights : (pairs,) float multipliers, positive.
    """
    flint = require("flint", extra="ckks")
    _, triangle, order = qr((rows * weights[:, None]).T, mode="economic", pivoting=True)
    size = np.abs(np.diag(triangle))
    rank = int(np.count_nonzero(size > 1e-11 * size[0]))
    kept_columns = _independent(rows[order[:rank]], rank)
    basis, rest = np.sort(order[:rank]), np.sort(order[rank:])
    scaled = weights / weights.max()
    rounded = [int(v) + 1 for v in np.ldexp(scaled[rest], _ROUNDING_BITS)]
    table = columns.table() if hasattr(columns, "table") else columns.tolist()
    matrix = flint.fmpz_mat([[table[i][j] for i in basis] for j in kept_columns])
    right = flint.fmpz_mat(
        [[-sum((table[i][j] * w for i, w in zip(rest, rounded, strict=True)), flint.fmpz(0))] for j in kept_columns]
    )
    try:
        solution = matrix.solve(right)
    except ZeroDivisionError:
        return None
    found = [solution[i, 0] for i in range(rank)]
    if any(value.p <= 0 for value in found):
        return None
    denominator = flint.fmpz(1)
    for value in found:
        denominator = denominator.lcm(value.q)
    exact = {int(i): int(value.p * (denominator // value.q)) for i, value in zip(basis, found, strict=True)}
    exact.update({int(i): int(denominator) * w for i, w in zip(rest, rounded, strict=True)})
    ordered = tuple(exact[i] for i in range(len(row)))
    if not _cancels(table, ordered):
        return None
    return ExactMultipliers(row, other, ordered)


def _independent(rows: Array, rank: int) -> list[int]:
    """Columns that make the basis rows a square, well-conditioned matrix."""
    _, _, order = qr(rows, mode="economic", pivoting=True)
    return sorted(order[:rank].tolist())


def _cancels(table: Any, weights: tuple[int, ...]) -> bool:
    """Σ λ_i row_i = 0 in every column, also those that the system left out."""
    flint = require("flint", extra="ckks")
    line = flint.fmpz_mat([list(weights)])
    total = line * flint.fmpz_mat(table)
    return all(value == 0 for value in total.entries())
