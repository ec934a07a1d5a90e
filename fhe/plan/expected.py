"""What a run will need, counted before any work."""

from __future__ import annotations

from fhe.plan.ledger import Ledger
from fhe.plan.plan import Exchange, Expected
from fhe.plan.prices import price, total_seconds
from fhe.wire.sizes import answer_bytes, evaluation_key_bytes, galois_keys_bytes, request_bytes

__all__ = ["BASE_MEMORY_BYTES", "expect"]

BASE_MEMORY_BYTES = 200_000_000
"""Interpreter, numpy, SEAL and its tables, numba with the compiled kernels (half of it)."""


def expect(exchange: Exchange, ledger: Ledger) -> Expected:
    """From the primitives that a ledger counted over one request to bytes, seconds and memory."""
    n = exchange.parameters.poly_modulus_degree
    levels = exchange.parameters.levels
    operations = dict(ledger.counts)
    operations["load", levels] = exchange.request_ciphertexts
    operations["save", 1] = operations["trim", 1] = exchange.answer_ciphertexts
    plaintext_bytes = sum(count * n * 8 * level for (name, level), count in operations.items() if name == "encode")
    keys = galois_keys_bytes(exchange)
    key_bytes = evaluation_key_bytes(exchange)
    expanded_keys = 2 * key_bytes
    ciphertexts = 2 * n * 8 * levels * (exchange.request_ciphertexts + 40)
    return Expected(
        operations={f"{name}@{level}": count for (name, level), count in sorted(operations.items())},
        server_seconds=round(total_seconds(operations, n), 6),
        client_seconds=round(
            exchange.request_ciphertexts * price("encrypt", levels, n)
            + exchange.answer_ciphertexts * price("decrypt", 1, n),
            6,
        ),
        compile_seconds=round(
            sum(count * price(name, level, n) for (name, level), count in operations.items() if name == "encode"), 6
        ),
        plaintext_bytes=plaintext_bytes,
        peak_memory_bytes=BASE_MEMORY_BYTES + plaintext_bytes + expanded_keys + ciphertexts,
        galois_key_bytes=keys,
        key_bytes=key_bytes,
        request_bytes=request_bytes(exchange),
        answer_bytes=answer_bytes(exchange),
    )
