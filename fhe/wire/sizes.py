"""Exact sizes of uncompressed SEAL 4 streams, and of what goes over the wire.

Streams are nested: each object starts with a 16-byte header, arrays with one more and a count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fhe.plan.plan import Exchange

__all__ = [
    "ENVELOPE_BYTES",
    "HEADER_BYTES",
    "PLAINTEXT_DATA_AT",
    "SEED_BYTES",
    "answer_bytes",
    "ciphertext_bytes",
    "envelope_bytes",
    "evaluation_key_bytes",
    "galois_keys_bytes",
    "key_switching_keys_bytes",
    "relin_keys_bytes",
    "request_bytes",
    "secret_key_bytes",
]

HEADER_BYTES = 16
CIPHERTEXT_FIELDS_BYTES = 32 + 1 + 8 * 5
"""parms_id, NTT flag, polynomials, N, primes, scale, correction factor."""

ARRAY_FIELDS_BYTES = HEADER_BYTES + 8
PLAINTEXT_DATA_AT = HEADER_BYTES + 32 + 8 + 8 + ARRAY_FIELDS_BYTES
"""Where the residues of a plaintext stream start, after parms_id, count and scale."""

SEED_BYTES = HEADER_BYTES + 1 + 64
"""The generator's header, its kind, and 512 bits of seed."""

ENVELOPE_BYTES = 80
"""Fixed part of our envelope; eight more per stream."""


def ciphertext_bytes(n: int, primes: int, *, seeded: bool) -> int:
    """One ciphertext of two polynomials; a seeded one holds the first and a seed.

    >>> ciphertext_bytes(8192, 2, seeded=True)
    131266
    """
    polynomial = 8 * n * primes
    body = CIPHERTEXT_FIELDS_BYTES + ARRAY_FIELDS_BYTES
    return HEADER_BYTES + body + (polynomial + SEED_BYTES if seeded else 2 * polynomial)


def key_switching_keys_bytes(n: int, primes: int, *, index: int, keys: int) -> int:
    """Seeded keys: `keys` of them in an index of `index` places; `primes` counts the key-switching prime."""
    one = (primes - 1) * ciphertext_bytes(n, primes, seeded=True)
    return HEADER_BYTES + 32 + 8 + 8 * index + keys * one


def galois_keys_bytes(exchange: Exchange) -> int:
    """The stream of the Galois keys; 0 where none is needed."""
    n, primes = exchange.parameters.poly_modulus_degree, len(exchange.parameters.primes)
    keys = len(exchange.galois_elements)
    return key_switching_keys_bytes(n, primes, index=n, keys=keys) if keys else 0


def relin_keys_bytes(exchange: Exchange) -> int:
    """The stream of the relinearisation key; 0 where none is needed."""
    n, primes = exchange.parameters.poly_modulus_degree, len(exchange.parameters.primes)
    return key_switching_keys_bytes(n, primes, index=1, keys=1) if exchange.relinearization else 0


def secret_key_bytes(n: int, primes: int) -> int:
    """The stream of a secret key, which no server may be given."""
    return HEADER_BYTES + 32 + 8 + 8 + ARRAY_FIELDS_BYTES + 8 * n * primes


def envelope_bytes(streams: int) -> int:
    """Our envelope around so many streams."""
    return ENVELOPE_BYTES + 8 * streams


def evaluation_key_bytes(exchange: Exchange) -> int:
    """What a client uploads once."""
    streams = int(bool(exchange.galois_elements)) + int(exchange.relinearization)
    return envelope_bytes(streams) + galois_keys_bytes(exchange) + relin_keys_bytes(exchange)


def request_bytes(exchange: Exchange) -> int:
    """One request."""
    n, levels = exchange.parameters.poly_modulus_degree, exchange.parameters.levels
    count = exchange.request_ciphertexts
    return envelope_bytes(count) + count * ciphertext_bytes(n, levels, seeded=True)


def answer_bytes(exchange: Exchange) -> int:
    """One answer: ciphertexts at the last level."""
    n = exchange.parameters.poly_modulus_degree
    count = exchange.answer_ciphertexts
    return envelope_bytes(count) + count * ciphertext_bytes(n, 1, seeded=False)
