"""Ring degree and primes, inside the 128-bit table of the Homomorphic Encryption Standard (2018, ternary secrets).

The primes are the ones that Microsoft SEAL's ``CoeffModulus::Create`` finds, found here without it, so that a plan
can be made, read and checked where SEAL is not installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from deploy.errors import PlanError

__all__ = ["MAX_MODULUS_BITS", "MAX_PRIME_BITS", "Parameters", "ntt_primes"]

MAX_MODULUS_BITS = {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881}
"""Largest total bits of all primes, the special one included, at 128 bits of security."""

MAX_PRIME_BITS = 60
"""Largest prime that SEAL takes."""

_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


def _is_prime(n: int) -> bool:
    """Miller–Rabin with the first twelve primes: exact below 3.3e24 (Sorenson and Webster, 2015)."""
    if n < 2 or any(n % p == 0 for p in _WITNESSES):
        return n in _WITNESSES
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for witness in _WITNESSES:
        x = pow(witness, odd, n)
        if x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


def ntt_primes(poly_modulus_degree: int, bits: Sequence[int]) -> tuple[int, ...]:
    """The largest distinct primes of the given bit lengths that are 1 modulo 2N, in the order asked for.

    >>> ntt_primes(8192, [60, 60, 60])
    (1152921504606683137, 1152921504606748673, 1152921504606830593)
    """
    step = 2 * poly_modulus_degree
    found: dict[int, list[int]] = {}
    for size in set(bits):
        candidate = ((1 << size) - 1) // step * step + 1
        primes: list[int] = []
        while len(primes) < list(bits).count(size):
            if candidate < 1 << (size - 1):
                raise PlanError(
                    f"fewer than {list(bits).count(size)} primes of {size} bits at N={poly_modulus_degree}"
                )
            if candidate.bit_length() == size and _is_prime(candidate):
                primes.append(candidate)
            candidate -= step
        found[size] = primes
    return tuple(found[size].pop() for size in bits)


class Parameters(BaseModel):
    """Ring degree N and the chain of primes: the first stays to the end, the last is the key-switching prime.

    A rescale at ``levels`` data primes divides by the last of them.

    >>> Parameters(poly_modulus_degree=8192, coeff_modulus_bits=(60, 60, 60)).slots
    4096
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    poly_modulus_degree: int
    coeff_modulus_bits: tuple[int, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        limit = MAX_MODULUS_BITS.get(self.poly_modulus_degree)
        if limit is None:
            raise PlanError(
                f"N={self.poly_modulus_degree} has no row in the 128-bit table",
                remedy=f"use one of {', '.join(map(str, MAX_MODULUS_BITS))}",
            )
        total = sum(self.coeff_modulus_bits)
        if total > limit:
            larger = next((n for n, bits in MAX_MODULUS_BITS.items() if bits >= total), None)
            raise PlanError(
                f"{total} bits of primes {list(self.coeff_modulus_bits)} at N={self.poly_modulus_degree}: "
                f"the 128-bit table allows {limit}",
                remedy=f"use N={larger}" if larger else "use fewer levels",
            )
        if len(self.coeff_modulus_bits) < 2:
            raise PlanError("a chain needs a data prime and a key-switching prime")
        smallest = self.poly_modulus_degree.bit_length() + 1
        for bits in self.coeff_modulus_bits:
            if not smallest <= bits <= MAX_PRIME_BITS:
                raise PlanError(
                    f"a prime of {bits} bits at N={self.poly_modulus_degree}: {smallest} to 60 are possible"
                )
        return self

    @property
    def slots(self) -> int:
        """N / 2 complex slots."""
        return self.poly_modulus_degree // 2

    @property
    def levels(self) -> int:
        """Number of data primes: rescales that can be done, plus one."""
        return len(self.coeff_modulus_bits) - 1

    @cached_property
    def primes(self) -> tuple[int, ...]:
        """Every prime, the key-switching one last."""
        return ntt_primes(self.poly_modulus_degree, self.coeff_modulus_bits)

    @property
    def data_primes(self) -> tuple[int, ...]:
        """Primes of ciphertexts."""
        return self.primes[:-1]

    @property
    def galois_key_bytes(self) -> int:
        """Bytes of one seeded key-switching key on the wire, headers left out."""
        return self.levels * len(self.primes) * self.poly_modulus_degree * 8
