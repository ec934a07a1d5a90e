"""What a program of CKKS primitives runs on.

The same program runs on four of them: in the clear on arrays (:mod:`fhe.runtime.cleartext`), on ciphertexts by SEAL
(:mod:`fhe.runtime.seal`) or by kernels of our own (:mod:`fhe.rns.backend`), and on nothing but levels and scales
(:mod:`fhe.plan.ledger`), which is how costs are foretold.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol, TypeVar

from deploy.arrays import Array

__all__ = ["Backend", "CiphertextBackend", "Evaluation", "Operand", "check_alike", "sum_of_products"]

Ct = TypeVar("Ct")


@dataclass(frozen=True, slots=True)
class Operand:
    """A plaintext: what it is called within its program, its slots, and the scale and level to encode it at.

    `slots` gives the (slots,) array, one number for all slots (a real one is encoded at each use, whatever its name), or
    None where it is all zero: a product with it is skipped.
    """

    name: Hashable
    slots: Callable[[], Array | complex | float | None]
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
    def dot(self, values: Sequence[Ct], operands: Sequence[Operand]) -> Ct:
        """Sum of products with plaintexts, none of which is zero."""
        ...

    def multiply(self, a: Ct, b: Ct) -> Ct:
        """Product, not yet relinearised."""
        ...

    def relinearize(self, a: Ct) -> Ct: ...
    def rescale(self, a: Ct) -> Ct: ...
    def lower(self, a: Ct, level: int) -> Ct:
        """Drop primes without dividing."""
        ...


class CiphertextBackend(Backend[Ct], Protocol[Ct]):
    """A backend on ciphertexts, whose residues can be read and written."""

    def subtract(self, a: Ct, b: Ct) -> Ct: ...
    def words(self, a: Ct) -> Array:
        """Residues (2, level, n) of uint64 in NTT form."""
        ...

    def value(self, words: Array, scale: float) -> Ct:
        """The ciphertext of residues (2, level, n), each below its prime."""
        ...

    def stream(self, a: Ct) -> bytes:
        """SEAL's uncompressed stream."""
        ...

    def coefficients(self, a: Ct) -> bytes:
        """The stream of a ciphertext whose polynomials are written as coefficients; `a` may be used up."""
        ...


class Evaluation(Protocol):
    """Keys and requests as one backend wants them, and that backend."""

    def load_keys(self, galois: memoryview | None, relin: memoryview | None) -> object:
        """From checked streams."""
        ...

    def load(self, streams: Sequence[memoryview], scale: float) -> Sequence[Any]:
        """The ciphertexts of a checked request."""
        ...

    def backend(self, keys: object) -> CiphertextBackend[Any]:
        """With what :meth:`load_keys` gave; raises TypeError for anything else."""
        ...


def sum_of_products(backend: Backend[Ct], values: Sequence[Ct], operands: Sequence[Operand]) -> Ct:
    """:meth:`Backend.dot` one product after the other."""
    first, *rest = (backend.multiply_plain(*pair) for pair in zip(values, operands, strict=True))
    return reduce(backend.add, rest, first)


def check_alike(level: int, other_level: int, scale: float, other_scale: float) -> None:
    """Raise ArithmeticError where two values cannot be added: a fault of the program, never of what is sent to it."""
    if level != other_level or abs(scale - other_scale) > 1e-12 * scale:
        raise ArithmeticError(
            f"level {level} and {other_level}, scale {scale} and {other_scale} do not go together"
        )
