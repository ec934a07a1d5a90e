"""Constants of one ring degree and its primes, in SEAL's order, for :mod:`fhe.rns.kernels`.

Axes: ``primes``, ``n`` (coefficients, or values at roots of unity in bit-reversed order).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from deploy.arrays import Array
from fhe.plan.parameters import Parameters

__all__ = ["Tables", "bit_reversal", "galois_permutation", "minimal_root", "tables_of"]


@dataclass(frozen=True, eq=False)
class Tables:
    """What the kernels read.

    Parameters
    ----------
    primes : every prime, the key-switching one last.
    constants : (primes, 6) of uint64: p, ⌊2^64 / p⌋, bits of p less one, ⌊2^(63 + bits) / p⌋, 1 / n mod p and
        Shoup's quotient of it.
    twiddles : (primes, 4, n) of uint64: powers of the root, their quotients, those of the inverse root, theirs.
    """

    n: int
    primes: tuple[int, ...]
    constants: Array
    twiddles: Array

    def dividing(self, last: int, moduli: tuple[int, ...]) -> Array:
        """(moduli, 3) of uint64: 1 / prime[last] modulo each prime, its Shoup quotient, and half of it rounded down."""
        divisor = self.primes[last]
        rows = []
        for modulus in moduli:
            prime = self.primes[modulus]
            inverse = pow(divisor, -1, prime)
            rows.append((inverse, _quotient(inverse, prime), (divisor >> 1) % prime))
        return np.array(rows, dtype=np.uint64).reshape(len(moduli), 3)


def _quotient(factor: int, prime: int) -> int:
    """Shoup's ⌊factor 2^64 / prime⌋ of a factor below its prime."""
    return (factor << 64) // prime


def bit_reversal(count: int) -> Array:
    """(count,) each index with its bits in reverse; count is a power of two.

    >>> bit_reversal(8).tolist()
    [0, 4, 2, 6, 1, 5, 3, 7]
    """
    found = np.zeros(1, dtype=np.int64)
    while len(found) < count:
        found = np.concatenate([2 * found, 2 * found + 1])
    return found


def minimal_root(n: int, prime: int) -> int:
    """The least primitive 2n-th root of unity modulo a prime that is 1 modulo 2n.

    >>> minimal_root(4, 17)
    2
    """
    exponent = (prime - 1) // (2 * n)
    root = next(
        found for base in range(2, prime) if pow(found := pow(base, exponent, prime), n, prime) == prime - 1
    )
    step, least = root * root % prime, root
    for _ in range(n - 1):
        root = root * step % prime
        least = min(least, root)
    return least


def _powers(root: int, n: int, prime: int) -> Array:
    """(2, n) of uint64: powers of a root in bit-reversed order and their quotients; the last three stages' apart.

    Those stages work on eight neighbours at once, so that what the k-th of their butterflies multiplies by is
    contiguous: entry m + c r + k of stage m, of r butterflies' factors in each eight, goes to m + k n / 8 + c.
    """
    power, powers = 1, []
    for _ in range(n):
        powers.append((power, _quotient(power, prime)))
        power = power * root % prime
    table = np.array(powers, dtype=np.uint64).T[:, bit_reversal(n)]
    for stage, each in ((n // 4, 2), (n // 2, 4)):
        table[:, stage : 2 * stage] = (
            table[:, stage : 2 * stage].reshape(2, n // 8, each).transpose(0, 2, 1).reshape(2, stage)
        )
    return np.ascontiguousarray(table)


@lru_cache(maxsize=8)
def tables_of(parameters: Parameters) -> Tables:
    """The tables of these parameters; made once in a process."""
    n, primes = parameters.poly_modulus_degree, parameters.primes
    constants, twiddles = [], []
    for prime in primes:
        bits, inverse = prime.bit_length(), pow(n, -1, prime)
        constants.append(
            (prime, 2**64 // prime, bits - 1, 2 ** (63 + bits) // prime, inverse, _quotient(inverse, prime))
        )
        root = minimal_root(n, prime)
        twiddles.append(np.concatenate([_powers(root, n, prime), _powers(pow(root, -1, prime), n, prime)]))
    return Tables(n, primes, np.array(constants, dtype=np.uint64), np.stack(twiddles))


@lru_cache(maxsize=256)
def galois_permutation(n: int, element: int) -> Array:
    """(n,) of int64: where each value of the automorphism ``X -> X^element`` comes from, both bit-reversed."""
    odd = 2 * bit_reversal(n) + 1
    return np.asarray(bit_reversal(n)[(odd * element % (2 * n)) >> 1])
