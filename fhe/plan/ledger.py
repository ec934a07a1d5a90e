"""A backend that computes nothing: it follows levels and scales and counts primitives."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from deploy.errors import PlanError
from fhe.runtime.backend import Operand, sum_of_products

__all__ = ["Ledger", "Trace"]


@dataclass(frozen=True, slots=True)
class Trace:
    """What is known of a ciphertext: primes left, scale, polynomials."""

    level: int
    scale: float
    size: int = 2


class Ledger:
    """Counts primitives by name and level, and notes which rotations and plaintexts were used.

    Parameters
    ----------
    primes : data primes.
    zero : says which operands are all zero, without building them; by default they are built.

    Attributes
    ----------
    counts : Counter of (name, level); plaintexts are counted once each as "encode".
    steps : rotation steps in slots; 0 stands for the conjugation.
    """

    def __init__(self, primes: Sequence[float]) -> None:
        self.primes = primes
        self.counts: Counter[tuple[str, int]] = Counter()
        self.rotations: set[int] = set()
        self.conjugates = False
        self._zero: dict[object, bool] = {}
        self._bits = [sum(math.log2(p) for p in primes[:n]) for n in range(len(primes) + 1)]

    def fresh(self, scale: float) -> Trace:
        """A ciphertext as the client sends it."""
        return Trace(len(self.primes), scale)

    def level(self, a: Trace) -> int:
        return a.level

    def scale(self, a: Trace) -> float:
        return a.scale

    def rotate(self, a: Trace, steps: int) -> Trace:
        self.rotations.add(steps)
        return self._count("rotate", a)

    def conjugate(self, a: Trace) -> Trace:
        self.conjugates = True
        return self._count("rotate", a)

    def add(self, a: Trace, b: Trace) -> Trace:
        return self._count("add", a)

    def add_plain(self, a: Trace, b: Operand) -> Trace:
        self.counts["encode", a.level] += 1
        return self._count("add_plain", a)

    def is_zero(self, b: Operand) -> bool:
        if b.name not in self._zero:
            self._zero[b.name] = b.slots() is None
        return self._zero[b.name]

    def multiply_plain(self, a: Trace, b: Operand) -> Trace:
        self.counts["encode", a.level] += 1
        return self._fits(self._count("multiply_plain", replace(a, scale=a.scale * b.scale)))

    def dot(self, values: Sequence[Trace], operands: Sequence[Operand]) -> Trace:
        return sum_of_products(self, values, operands)

    def multiply(self, a: Trace, b: Trace) -> Trace:
        return self._fits(self._count("multiply", replace(a, scale=a.scale * b.scale, size=3)))

    def relinearize(self, a: Trace) -> Trace:
        return self._count("relinearize", replace(a, size=2))

    def rescale(self, a: Trace) -> Trace:
        self._count("rescale", a)
        if a.level < 2:
            raise PlanError(
                f"the chain of {len(self.primes)} data primes is too short", remedy="use a longer chain"
            )
        return replace(a, level=a.level - 1, scale=a.scale / self.primes[a.level - 1])

    def lower(self, a: Trace, level: int) -> Trace:
        if level > a.level:
            raise PlanError(f"needs {level} levels, {a.level} are left", remedy="use a longer chain")
        if level < a.level:
            self._count("lower", a)
        return self._fits(replace(a, level=level))

    def _count(self, name: str, a: Trace) -> Trace:
        self.counts[name, a.level] += 1
        return a

    def _fits(self, a: Trace) -> Trace:
        if math.log2(a.scale) + 1 >= self._bits[a.level]:
            raise PlanError(
                f"scale 2^{math.log2(a.scale):.0f} does not fit in {self._bits[a.level]:.0f} bits of primes",
                remedy="use a longer chain",
            )
        return a
