"""CKKS primitives on arrays of residues, equal to SEAL's to the last bit (Chen, Laine, Player: SEAL 4's evaluator).

A ciphertext is an array (polynomials, level, n) of uint64, values at the roots of unity, each below its prime. Shapes
are checked where arrays come in from elsewhere (:mod:`fhe.rns.backend`); here they are what the caller made them.

Axes: ``polynomials`` (2, or 3 before relinearisation), ``level`` (data primes left), ``n``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from deploy.arrays import Array
from deploy.requirement import require
from fhe.plan.parameters import Parameters
from fhe.rns.tables import galois_permutation, tables_of

__all__ = ["Evaluator", "load_kernels"]


def load_kernels() -> Any:
    """The compiled kernels: from numba's cache within a second, or compiled, which takes about ten.

    Raises
    ------
    RequirementMissing : numba is not installed.
    """
    require("numba", extra="ckks")
    import fhe.rns.blake
    import fhe.rns.kernels

    return fhe.rns.kernels


class Evaluator:
    """The primitives for one set of parameters; raises RequirementMissing where numba is not installed."""

    def __init__(self, parameters: Parameters) -> None:
        self._kernels = load_kernels()
        self._tables = tables_of(parameters)
        self._constants, self._twiddles = self._tables.constants, self._tables.twiddles
        self._special = parameters.levels
        self.n = parameters.poly_modulus_degree
        self._dividing = lru_cache(maxsize=None)(self._tables.dividing)

    def forward(self, a: Array, level: int) -> None:
        """Coefficients (…, level, n) to values, in place."""
        self._transform(self._kernels.forward, a, level)

    def inverse(self, a: Array, level: int) -> None:
        """Values (…, level, n) to coefficients, in place."""
        self._transform(self._kernels.inverse, a, level)

    def _transform(self, kernel: Any, a: Array, level: int) -> None:
        rows = a.reshape(-1, self.n)
        kernel(rows, _range(len(rows)), _moduli(level, len(rows)), self._twiddles, self._constants)

    def add(self, a: Array, b: Array) -> Array:
        """a + b (…, level, n)."""
        return self._by_rows(self._kernels.add, a, b)

    def subtract(self, a: Array, b: Array) -> Array:
        """a - b (…, level, n)."""
        return self._by_rows(self._kernels.subtract, a, b)

    def _by_rows(self, kernel: Any, a: Array, b: Array) -> Array:
        rows, out = a.reshape(-1, self.n), np.empty_like(a)
        moduli = _moduli(a.shape[-2], len(rows))
        kernel(rows, b.reshape(-1, self.n), out.reshape(-1, self.n), moduli, self._constants)
        return out

    def dot(self, values: Sequence[Array], plaintexts: Sequence[Array]) -> Array:
        """Sum of ciphertexts (2, level, n) times their plaintexts (level, n)."""
        moduli = _range(values[0].shape[1])
        out = np.empty_like(values[0])
        if len(values) == 1:
            self._kernels.multiply_plain(values[0], plaintexts[0], out, moduli, self._constants)
            return out
        nothing = np.zeros_like(plaintexts[0]) if len(values) % 4 else plaintexts[0]
        for start in range(0, len(values), 4):
            four, factors = list(values[start : start + 4]), list(plaintexts[start : start + 4])
            spare = 4 - len(four)
            self._kernels.dot_four(
                (*four, *[values[0]] * spare),
                (*factors, *[nothing] * spare),
                out,
                start > 0,
                moduli,
                self._constants,
            )
        return out

    def multiply(self, a: Array, b: Array) -> Array:
        """Product (3, level, n) of two ciphertexts (2, level, n)."""
        _, level, n = a.shape
        out = np.empty((3, level, n), dtype=np.uint64)
        self._kernels.multiply(a, b, out, _range(level), self._constants)
        return out

    def apply_galois(self, a: Array, element: int, key: Array) -> Array:
        """The automorphism ``X -> X^element`` of a ciphertext (2, level, n), with the key of that element."""
        moved = np.empty_like(a)
        source = galois_permutation(self.n, element)
        self._kernels.permute(a.reshape(-1, self.n), source, moved.reshape(-1, self.n))
        return self._switched(moved[:1], moved[1], key)

    def relinearize(self, a: Array, key: Array) -> Array:
        """(3, level, n) to (2, level, n)."""
        return self._switched(a[:2], a[2], key)

    def _switched(self, rest: Array, target: Array, key: Array) -> Array:
        """`target` (level, n) times the secret that `key` was made from, added to `rest` (1 or 2, level, n)."""
        switched = self.switch_key(target, key)
        onto, rows = switched[: len(rest)].reshape(-1, self.n), rest.reshape(-1, self.n)
        self._kernels.add_onto(onto, rows, _moduli(target.shape[0], len(rows)), self._constants)
        return switched

    def switch_key(self, target: Array, key: Array) -> Array:
        """(2, level, n) from a polynomial `target` (level, n) and a key (2, primes, digits, n).

        Each residue of the target is a digit: brought to every prime and the special one, multiplied by its part of
        the key, summed, and divided by the special prime with rounding.
        """
        level, n = target.shape
        coefficients = target.copy()
        self.inverse(coefficients, level)
        moduli = _switch_moduli(level, self._special)
        digits = np.empty((level + 1, level, n), dtype=np.uint64)
        self._kernels.spread(coefficients, target, digits, moduli, self._constants)
        rows, primes = _digit_rows(level, self._special)
        self._kernels.forward(digits.reshape(-1, n), rows, primes, self._twiddles, self._constants)
        products = np.empty((2, level + 1, n), dtype=np.uint64)
        left, right, both = _product_rows(level, self._special)
        self._kernels.dot(
            digits,
            key.reshape(-1, key.shape[2], n),
            left,
            right,
            both,
            level,
            self._constants,
            products.reshape(-1, n),
        )
        return self._divide(products, self._special)

    def rescale(self, a: Array) -> Array:
        """Divide (polynomials, level, n) by its last prime and round: (polynomials, level - 1, n)."""
        return self._divide(a.copy(), a.shape[1] - 1)

    def _divide(self, a: Array, divisor: int) -> Array:
        """Divide by the prime of index `divisor`, which the last row of each polynomial belongs to; `a` is used up."""
        polynomials, rows, n = a.shape
        level = rows - 1
        kernels, constants = self._kernels, self._constants
        last = _range(polynomials) * rows + level
        kernels.inverse(a.reshape(-1, n), last, np.full(polynomials, divisor), self._twiddles, constants)
        moduli, dividing = _range(level), self._dividing(divisor, tuple(range(level)))
        rest = np.empty((polynomials, level, n), dtype=np.uint64)
        for polynomial in range(polynomials):
            kernels.round_last(a[polynomial, level], rest[polynomial], divisor, moduli, dividing, constants)
        self.forward(rest, level)
        for polynomial in range(polynomials):
            kernels.divide(a[polynomial], rest[polynomial], moduli, dividing, constants)
        return rest


@lru_cache(maxsize=256)
def _range(count: int) -> Array:
    return np.arange(count, dtype=np.int64)


@lru_cache(maxsize=256)
def _moduli(level: int, rows: int) -> Array:
    """(rows,) primes of polynomials one after the other."""
    return np.arange(rows, dtype=np.int64) % level


@lru_cache(maxsize=256)
def _switch_moduli(level: int, special: int) -> Array:
    return np.append(np.arange(level, dtype=np.int64), special)


@lru_cache(maxsize=256)
def _digit_rows(level: int, special: int) -> tuple[Array, Array]:
    """Rows of the digits that must be transformed, and their primes: all but each prime's own digit."""
    pairs = [(i * level + digit, i) for i in range(level + 1) for digit in range(level) if i != digit]
    rows, moduli = np.array(pairs, dtype=np.int64).T.copy()
    return rows, _switch_moduli(level, special)[moduli]


@lru_cache(maxsize=256)
def _product_rows(level: int, special: int) -> tuple[Array, Array, Array]:
    """Rows of the digits, of the key and of the primes for each row of the products."""
    moduli = np.tile(_switch_moduli(level, special), 2)
    left = np.tile(np.arange(level + 1, dtype=np.int64), 2)
    return left, moduli + np.repeat([0, special + 1], level + 1), moduli
