"""What a program of CKKS primitives runs on.

The same program runs on three of them: in the clear on arrays (:mod:`fhe.runtime.cleartext`), on ciphertexts
(:mod:`fhe.runtime.seal`), and on nothing but levels and scales (:mod:`fhe.plan.ledger`), which is how costs are
foretold.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from deploy.arrays import Array

__all__ = ["Backend", "Operand"]

Ct = TypeVar("Ct")


@dataclass(frozen=True, slots=True)
class Operand:
    """A plaintext: what it is called within its program, its slots, and the scale and level to encode it at.

    `slots` gives the (slots,) array, or None where it is all zero: a product with it is skipped.
    """

    name: Hashable
    slots: Callable[[], Array | complex | None]
    scale: float
    level: int


class Backend(Protocol[Ct]):
    """The primitives, as functions from values to new values. Levels count data primes that are left."""

    def level(self, a: Ct) -> int: ...
    def scale(self, a: Ct) -> float: ...
    def rotate(self, a: Ct, steps: int) -> Ct:
        """Slot s of the result is slot s + steps of `a`, cyclically."""
        ...

    def conjugate(self, a: Ct) -> Ct: ...
    def add(self, a: Ct, b: Ct) -> Ct: ...
    def add_plain(self, a: Ct, b: Operand) -> Ct: ...
    def is_zero(self, b: Operand) -> bool: ...
    def multiply_plain(self, a: Ct, b: Operand) -> Ct: ...
    def multiply(self, a: Ct, b: Ct) -> Ct:
        """Product, not yet relinearised."""
        ...

    def relinearize(self, a: Ct) -> Ct: ...
    def rescale(self, a: Ct) -> Ct: ...
    def lower(self, a: Ct, level: int) -> Ct:
        """Drop primes without dividing."""
        ...
