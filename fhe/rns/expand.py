"""From checked streams straight into arrays: what SEAL's loading would give, without SEAL.

A seeded ciphertext holds its first polynomial and a seed; the second is drawn from the seed as SEAL's
``sample_poly_uniform`` does: a run of words, each reduced modulo its prime; a word too large to be uniform is replaced
by the next one of the generator, after all others.

Axes: ``primes``, ``digits`` (parts of a key), ``n``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deploy.arrays import Array
from fhe.rns.blake import BLOCK_WORDS, fill_blocks
from fhe.wire.sizes import HEADER_BYTES, ciphertext_bytes
from fhe.wire.streams import RESIDUES_AT

__all__ = ["expand_ciphertext", "expand_keys", "uniform_polynomial"]

_LARGEST = 2**64 - 1


def uniform_polynomial(seed: bytes | memoryview, primes: Sequence[int], n: int) -> Array:
    """(primes, n) of uint64 from 64 bytes of seed."""
    words = np.frombuffer(seed, "<u8", count=8).astype(np.uint64)
    count = len(primes) * n
    blocks = -(-count // BLOCK_WORDS)
    stream = np.empty(blocks * BLOCK_WORDS, dtype=np.uint64)
    fill_blocks(words, 0, stream)
    found = stream[:count].reshape(len(primes), n)
    spare = _Spare(words, blocks, stream[count:])
    for row, prime in zip(found, primes, strict=True):
        limit = _LARGEST - _LARGEST % prime - 1
        for place in np.flatnonzero(row >= np.uint64(limit)).tolist():
            row[place] = spare.below(limit)
        np.remainder(row, np.uint64(prime), out=row)
    return found


class _Spare:
    """The words of a generator after those of the polynomial."""

    def __init__(self, seed: Array, block: int, words: Array) -> None:
        self._seed, self._block, self._words = seed, block, words.tolist()

    def below(self, limit: int) -> int:
        """The next word that is below a limit."""
        while True:
            if not self._words:
                fresh = np.empty(BLOCK_WORDS, dtype=np.uint64)
                fill_blocks(self._seed, self._block, fresh)
                self._block, self._words = self._block + 1, fresh.tolist()
            word: int = self._words.pop(0)
            if word < limit:
                return word


def expand_ciphertext(stream: bytes | memoryview, primes: Sequence[int], n: int, out: Array) -> None:
    """A checked seeded ciphertext into out (2, primes, n)."""
    count = len(primes) * n
    out[0] = np.frombuffer(stream, "<u8", count=count, offset=RESIDUES_AT).reshape(len(primes), n)
    seed = memoryview(stream)[RESIDUES_AT + 8 * count + HEADER_BYTES + 1 :]
    out[1] = uniform_polynomial(seed, primes, n)


def expand_keys(stream: bytes | memoryview, primes: Sequence[int], n: int, index: int) -> dict[int, Array]:
    """Checked seeded keys, by their place in the table of `index` places: arrays (2, primes, digits, n)."""
    data, found = memoryview(stream), {}
    digits, size = len(primes) - 1, ciphertext_bytes(n, len(primes), seeded=True)
    part = np.empty((2, len(primes), n), dtype=np.uint64)
    at = HEADER_BYTES + 40
    for place in range(index):
        filled, at = data[at] != 0, at + 8
        if not filled:
            continue
        key = np.empty((2, len(primes), digits, n), dtype=np.uint64)
        for digit in range(digits):
            expand_ciphertext(data[at : at + size], primes, n, part)
            key[:, :, digit] = part
            at += size
        found[place] = key
    return found
