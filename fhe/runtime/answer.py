"""What leaves the server: the coefficients of an answer in which logits stand, and no other.

The last product is not summed on the server. The sum over the slots of one output is the trace from the ring to a
subring, and a trace keeps some coefficients of a polynomial and drops the others: with slots ``s, s + P, s + 2P, …``
summed and the real part taken, those at multiples of ``N / 2P``, each with its mirror image subtracted. So the server
sends the first polynomial of its answer in coefficients, with all others set to zero. Whoever decrypts learns the
traces, which are the logits, exactly; the slots' other content, partial sums over the owner's weights, is not in what
is sent. It costs no level, no key switch and no noise. What decryption finds elsewhere, and added to a coefficient and
its mirror image alike, is noise of the prime's size: the client subtracts modulo the prime, before it reads numbers.

Axes: ``n`` (coefficients).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from deploy.arrays import Array
from fhe.plan.plan import Exchange
from fhe.wire.streams import RESIDUES_AT

__all__ = ["trace_slots", "trim_answer", "trimmed"]


def trimmed(words: Array, period: int, prime: int) -> Array:
    """The trace's coefficients (n,) of a polynomial's, all others zero.

    Parameters
    ----------
    words : (n,) of uint64 below `prime`, an odd prime below 2**62.
    period : slots that are this far apart are summed; a power of two up to n / 2.

    >>> trimmed(np.array([5, 6, 7, 8, 9, 1, 3, 2], dtype=np.uint64), 2, 11).tolist()
    [5, 0, 2, 0, 0, 0, 9, 0]
    """
    n = len(words)
    step = n // (2 * period)
    difference = _mirrored(words, step, prime)
    halves = np.where(difference & np.uint64(1), difference + np.uint64(prime), difference) >> np.uint64(1)
    halves[0] = words[0]
    found = np.zeros_like(words)
    found[::step] = halves
    return found


def _mirrored(words: Array, step: int, prime: int) -> Array:
    """(n / step,) of every step-th coefficient, its mirror image subtracted."""
    kept = words[::step]
    mirror = np.roll(kept[::-1], 1)
    return np.where(kept >= mirror, kept - mirror, kept + np.uint64(prime) - mirror)


def trim_answer(exchange: Exchange, stream: bytes) -> bytes:
    """Trim the stream of a ciphertext in coefficients at the last prime."""
    n, prime = exchange.parameters.poly_modulus_degree, exchange.parameters.data_primes[0]
    words = np.frombuffer(stream, "<u8", count=n, offset=RESIDUES_AT)
    first = trimmed(words, exchange.answer_period * exchange.rows, prime).astype("<u8").tobytes()
    return stream[:RESIDUES_AT] + first + stream[RESIDUES_AT + 8 * n :]


def trace_slots(words: Array, period: int, prime: int) -> Array:
    """Slots (n / 2,) of the trace of a decrypted polynomial (n,), at scale 1: real, and equal `period` apart.

    >>> trace_slots(np.array([5, 0, 2, 0, 0, 0, 9, 0], dtype=np.uint64), 2, 11).round(3).tolist()
    [7.828, 2.172, 7.828, 2.172]
    """
    n = len(words)
    step = n // (2 * period)
    # halved as numbers: modulo the prime, half of an odd number is as large as the prime
    difference = _mirrored(words, step, prime)
    kept = np.append(words[:1], difference[1:]).astype(np.int64)
    centred = np.where(kept > prime // 2, kept - prime, kept) / 2.0
    centred[0] *= 2
    polynomial = np.zeros(n)
    polynomial[::step] = centred
    # at the odd powers of the 2n-th root of unity; SEAL's slots are the powers of 3 among them
    values = n * np.fft.ifft(polynomial * np.exp(1j * np.pi / n * np.arange(n)))
    return np.asarray(values[_slot_powers(n) // 2].real)


@lru_cache(maxsize=8)
def _slot_powers(n: int) -> Array:
    """(n / 2,) powers of 3 modulo 2n: which root of unity each slot is."""
    powers = np.ones(n // 2, dtype=np.int64)
    for slot in range(1, n // 2):
        powers[slot] = 3 * powers[slot - 1] % (2 * n)
    return powers
