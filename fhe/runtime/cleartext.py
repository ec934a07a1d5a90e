"""The program in the clear: the same primitives on arrays of complex numbers.

Levels and scales are carried along, so that a plan that runs out of either fails here as it would on ciphertexts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from deploy.arrays import Array
from fhe.plan.parameters import Parameters
from fhe.runtime.backend import Operand, check_alike, sum_of_products

__all__ = ["ClearValue", "Cleartext"]


@dataclass(frozen=True, slots=True)
class ClearValue:
    """Slots (slots,) with the level and scale that the ciphertext would have."""

    slots: Array
    level: int
    scale: float


class Cleartext:
    """A backend (:class:`fhe.runtime.backend.Backend`) in double precision.

    >>> backend = Cleartext(Parameters(poly_modulus_degree=4096, coeff_modulus_bits=(30, 31)))
    >>> backend.rotate(backend.fresh(np.arange(2048.0), 1.0), 1).slots[:2]
    array([1., 2.])
    """

    def __init__(self, parameters: Parameters) -> None:
        self._primes: Sequence[int] = parameters.data_primes
        self._zero: dict[object, bool] = {}

    def fresh(self, slots: Array, scale: float) -> ClearValue:
        """What the client would encrypt."""
        return ClearValue(slots, len(self._primes), scale)

    def level(self, a: ClearValue) -> int:
        return a.level

    def scale(self, a: ClearValue) -> float:
        return a.scale

    def rotate(self, a: ClearValue, steps: int) -> ClearValue:
        return replace(a, slots=np.roll(a.slots, -steps))

    def conjugate(self, a: ClearValue) -> ClearValue:
        return replace(a, slots=np.conj(a.slots))

    def add(self, a: ClearValue, b: ClearValue) -> ClearValue:
        check_alike(a.level, b.level, a.scale, b.scale)
        return replace(a, slots=a.slots + b.slots)

    def add_plain(self, a: ClearValue, b: Operand) -> ClearValue:
        check_alike(a.level, b.level, a.scale, b.scale)
        return replace(a, slots=a.slots + b.slots())

    def is_zero(self, b: Operand) -> bool:
        if b.name not in self._zero:
            self._zero[b.name] = b.slots() is None
        return self._zero[b.name]

    def multiply_plain(self, a: ClearValue, b: Operand) -> ClearValue:
        check_alike(a.level, b.level, 1.0, 1.0)
        return replace(a, slots=a.slots * b.slots(), scale=a.scale * b.scale)

    def dot(self, values: Sequence[ClearValue], operands: Sequence[Operand]) -> ClearValue:
        return sum_of_products(self, values, operands)

    def multiply(self, a: ClearValue, b: ClearValue) -> ClearValue:
        check_alike(a.level, b.level, 1.0, 1.0)
        return replace(a, slots=a.slots * b.slots, scale=a.scale * b.scale)

    def relinearize(self, a: ClearValue) -> ClearValue:
        return a

    def rescale(self, a: ClearValue) -> ClearValue:
        if a.level < 2:
            raise ArithmeticError("no prime is left to rescale by")
        return replace(a, level=a.level - 1, scale=a.scale / self._primes[a.level - 1])

    def lower(self, a: ClearValue, level: int) -> ClearValue:
        if level > a.level:
            raise ArithmeticError(f"level {a.level} cannot be raised to {level}")
        return replace(a, level=level)
