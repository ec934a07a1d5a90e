"""The program on arrays of residues, by compiled kernels: what it computes equals SEAL's ciphertexts bit for bit.

SEAL encodes the plaintexts, once in each process; everything after that is ours.

Axes: ``level`` (data primes left), ``n``.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from deploy.arrays import Array
from fhe.rns.evaluator import Evaluator
from fhe.rns.expand import expand_ciphertext, expand_keys
from fhe.runtime.backend import Operand, check_alike
from fhe.runtime.seal import SealContext
from fhe.wire.streams import ciphertext_stream

__all__ = ["Ciphertext", "RnsBackend", "RnsEvaluation", "RnsKeys", "constant_words"]


@dataclass(frozen=True, slots=True)
class Ciphertext:
    """Residues (polynomials, level, n) of uint64 in NTT form, and the scale."""

    words: Array
    scale: float


@dataclass(frozen=True, eq=False)
class RnsKeys:
    """Key-switching keys (2, primes, digits, n): of each Galois element, and for relinearisation."""

    galois: dict[int, Array]
    relin: Array | None


@dataclass(eq=False)
class _Plaintexts:
    """Encoded operands by name, up to so many bytes; None where an operand is all zero."""

    room: int
    kept: dict[Hashable, Array] = field(default_factory=dict)
    zero: dict[Hashable, bool] = field(default_factory=dict)


class RnsEvaluation:
    """What a server computes with: keys and requests into arrays, and the program's backend.

    Parameters
    ----------
    context : for encoding, and for the hashes that streams carry.
    kept_bytes : once so many bytes of plaintexts are kept, further ones are encoded at each use.

    Raises
    ------
    RequirementMissing : numba is not installed.
    """

    def __init__(self, context: SealContext, *, kept_bytes: int = 2_000_000_000) -> None:
        self._context = context
        self._evaluator = Evaluator(context.parameters)
        self._plaintexts = _Plaintexts(kept_bytes)

    def load_keys(self, galois: memoryview | None, relin: memoryview | None) -> RnsKeys:
        """Expand checked key streams."""
        parameters = self._context.parameters
        n, primes = parameters.poly_modulus_degree, parameters.primes
        places = {} if galois is None else expand_keys(galois, primes, n, n)
        return RnsKeys(
            {2 * place + 1: key for place, key in places.items()},
            None if relin is None else expand_keys(relin, primes, n, 1)[0],
        )

    def load(self, streams: Sequence[memoryview], scale: float) -> list[Ciphertext]:
        """Expand the checked streams of a request."""
        parameters = self._context.parameters
        n, primes = parameters.poly_modulus_degree, parameters.data_primes
        words = np.empty((len(streams), 2, len(primes), n), dtype=np.uint64)
        for stream, out in zip(streams, words, strict=True):
            expand_ciphertext(stream, primes, n, out)
        return [Ciphertext(out, scale) for out in words]

    def backend(self, keys: object) -> RnsBackend:
        """The primitives with one client's keys."""
        if not isinstance(keys, RnsKeys):
            raise TypeError("keys that another evaluation loaded")
        return RnsBackend(self._context, self._evaluator, keys, self._plaintexts)


class RnsBackend:
    """A backend (:class:`fhe.runtime.backend.CiphertextBackend`) on arrays of residues."""

    def __init__(self, context: SealContext, evaluator: Evaluator, keys: RnsKeys, plaintexts: _Plaintexts) -> None:
        self._context = context
        self._evaluator = evaluator
        self._keys = keys
        self._plaintexts = plaintexts
        self._order = 2 * context.parameters.poly_modulus_degree

    def level(self, a: Ciphertext) -> int:
        return int(a.words.shape[1])

    def scale(self, a: Ciphertext) -> float:
        return a.scale

    def rotate(self, a: Ciphertext, steps: int) -> Ciphertext:
        return self._galois(a, pow(3, steps % (self._order // 4), self._order))

    def conjugate(self, a: Ciphertext) -> Ciphertext:
        return self._galois(a, self._order - 1)

    def _galois(self, a: Ciphertext, element: int) -> Ciphertext:
        return replace(a, words=self._evaluator.apply_galois(a.words, element, self._keys.galois[element]))

    def add(self, a: Ciphertext, b: Ciphertext) -> Ciphertext:
        check_alike(self.level(a), self.level(b), a.scale, b.scale)
        shared = min(len(a.words), len(b.words))
        total = self._evaluator.add(a.words[:shared], b.words[:shared])
        rest = [words.words[shared:] for words in (a, b) if len(words.words) > shared]
        return replace(a, words=np.concatenate([total, *rest]) if rest else total)

    def subtract(self, a: Ciphertext, b: Ciphertext) -> Ciphertext:
        check_alike(self.level(a), self.level(b), a.scale, b.scale)
        return replace(a, words=self._evaluator.subtract(a.words, b.words))

    def add_plain(self, a: Ciphertext, b: Operand) -> Ciphertext:
        check_alike(self.level(a), b.level, a.scale, b.scale)
        first = self._evaluator.add(a.words[:1], self._plaintext(b)[None])
        return replace(a, words=np.concatenate([first, a.words[1:]]))

    def is_zero(self, b: Operand) -> bool:
        zero = self._plaintexts.zero
        if b.name not in zero:
            zero[b.name] = b.slots() is None
        return zero[b.name]

    def multiply_plain(self, a: Ciphertext, b: Operand) -> Ciphertext:
        return self.dot([a], [b])

    def dot(self, values: Sequence[Ciphertext], operands: Sequence[Operand]) -> Ciphertext:
        scale = values[0].scale * operands[0].scale
        for value, operand in zip(values, operands, strict=True):
            check_alike(self.level(value), operand.level, scale, value.scale * operand.scale)
        plaintexts = [self._plaintext(operand) for operand in operands]
        return Ciphertext(self._evaluator.dot([value.words for value in values], plaintexts), scale)

    def multiply(self, a: Ciphertext, b: Ciphertext) -> Ciphertext:
        check_alike(self.level(a), self.level(b), 1.0, 1.0)
        return Ciphertext(self._evaluator.multiply(a.words, b.words), a.scale * b.scale)

    def relinearize(self, a: Ciphertext) -> Ciphertext:
        if self._keys.relin is None:
            raise ArithmeticError("no relinearisation key")
        return replace(a, words=self._evaluator.relinearize(a.words, self._keys.relin))

    def rescale(self, a: Ciphertext) -> Ciphertext:
        prime = self._context.parameters.data_primes[self.level(a) - 1]
        return Ciphertext(self._evaluator.rescale(a.words), a.scale / prime)

    def lower(self, a: Ciphertext, level: int) -> Ciphertext:
        if level == self.level(a):
            return a
        return replace(a, words=np.ascontiguousarray(a.words[:, :level]))

    def words(self, a: Ciphertext) -> Array:
        return a.words

    def value(self, words: Array, scale: float) -> Ciphertext:
        return Ciphertext(np.ascontiguousarray(words), scale)

    def stream(self, a: Ciphertext) -> bytes:
        return ciphertext_stream(a.words, self._context.parms_ids[self.level(a)], a.scale)

    def coefficients(self, a: Ciphertext) -> bytes:
        words = a.words.copy()
        self._evaluator.inverse(words, self.level(a))
        return ciphertext_stream(words, self._context.parms_ids[self.level(a)], a.scale, transformed=False)

    def _plaintext(self, operand: Operand) -> Array:
        """(level, n) residues."""
        kept = self._plaintexts.kept
        if operand.name in kept:
            return kept[operand.name]
        values = operand.slots()
        if values is None:
            raise AssertionError("a product with nothing")
        if isinstance(values, float):
            primes = self._context.parameters.data_primes[: operand.level]
            return constant_words(values * operand.scale, primes, self._order // 2)
        plain = self._context.encode(values, operand.level, operand.scale)
        words = self._context.plain_words(plain, operand.level).astype(np.uint64)
        if self._plaintexts.room >= words.nbytes:
            self._plaintexts.room -= words.nbytes
            kept[operand.name] = words
        return words


def constant_words(value: float, primes: Sequence[int], n: int) -> Array:
    """Residues (primes, n) of one number for all slots, rounded as SEAL does: ties away from zero."""
    whole = math.trunc(value)
    if abs(value - whole) >= 0.5:
        whole += 1 if value > 0 else -1
    words = np.empty((len(primes), n), dtype=np.uint64)
    for row, prime in zip(words, primes, strict=True):
        row[:] = whole % prime
    return words
