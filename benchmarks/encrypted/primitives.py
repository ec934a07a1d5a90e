"""Each primitive of the cost table, on kernels and by SEAL, beside what the table says."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np
from encrypted.contenders import interleaved

from fhe.plan import Parameters, Plan
from fhe.plan.parameters import MAX_MODULUS_BITS
from fhe.plan.prices import price
from fhe.rns.backend import RnsEvaluation
from fhe.runtime.answer import trimmed
from fhe.runtime.backend import CiphertextBackend, Evaluation, Operand
from fhe.runtime.seal import SealContext, SealEvaluation, save_stream
from fhe.wire.streams import StreamKind, check_ciphertext

__all__ = ["calibrated_seconds", "calibration", "prices"]

_EVALUATIONS: dict[str, Callable[[SealContext], Evaluation]] = {"kernels": RnsEvaluation, "seal": SealEvaluation}


def primitives(n: int, levels: int, which: str) -> dict[str, Callable[[], Any]]:
    """Primitives as something to time, at `levels` data primes of 40 bits, or as many as fit."""
    bits = min(40, MAX_MODULUS_BITS[n] // (levels + 1))
    context = SealContext(Parameters(poly_modulus_degree=n, coeff_modulus_bits=(bits,) * (levels + 1)))
    seal, evaluation = context.seal, _EVALUATIONS[which](context)
    generator = seal.KeyGenerator(context.context)
    galois = save_stream(generator.create_galois_keys([3]))
    keys = evaluation.load_keys(memoryview(galois), memoryview(save_stream(generator.create_relin_keys())))
    backend: CiphertextBackend[Any] = evaluation.backend(keys)
    slots, scale = np.random.default_rng(0).random(n // 2), 2.0**12
    encryptor = seal.Encryptor(context.context, generator.secret_key())
    stream = memoryview(save_stream(encryptor.encrypt_symmetric(context.encode(slots, levels, scale))))
    (a,) = evaluation.load([stream], scale)
    kind = StreamKind(n, context.parameters.data_primes, context.parms_ids[levels], scale, seeded=True)
    square, low, names = backend.multiply(a, a), backend.lower(a, 1), iter(range(10**9))
    words = backend.words(low)[0, 0]

    def fresh() -> Operand:
        return Operand(next(names), lambda: slots, scale, levels)

    operand = Operand("kept", lambda: slots, scale, levels)
    work: dict[str, Callable[[], Any]] = {
        "rotate": lambda: backend.rotate(a, 1),
        "relinearize": lambda: backend.relinearize(square),
        "multiply_plain": lambda: backend.dot([a] * 4, [operand] * 4),
        "multiply": lambda: backend.multiply(a, a),
        "add": lambda: backend.add(a, a),
        "add_plain": lambda: backend.add_plain(a, operand),
        "encode": lambda: (
            context.encode(slots, levels, scale) if which == "seal" else backend.multiply_plain(a, fresh())
        ),
        "load": lambda: (sha256(stream), check_ciphertext(stream, kind), evaluation.load([stream], scale)),
        "save": lambda: sha256(backend.stream(low)),
        "trim": lambda: (
            backend.coefficients(backend.add(low, low)),
            trimmed(words, 8, context.parameters.data_primes[0]),
        ),
    }
    if levels > 1:
        work["rescale"] = lambda: backend.rescale(a)
        work["lower"] = lambda: backend.lower(a, levels - 1)
    return work


_REPEATS = {"multiply_plain": 4}


def _seconds(n: int, levels: int, which: str, rounds: int) -> dict[str, float]:
    medians = interleaved(primitives(n, levels, which), rounds, {})
    return {name: seconds / _REPEATS.get(name, 1) for name, seconds in medians.items()}


def prices(arguments: argparse.Namespace) -> dict[str, Any]:
    """Microseconds of each primitive, by both backends and by the table, which is that of the kernels."""
    found = {}
    for n, levels in ((8192, 1), (8192, 2), (8192, 3), (8192, 5), (16384, 4)):
        times = {which: _seconds(n, levels, which, arguments.rounds * 10) for which in _EVALUATIONS}
        for name, seconds in times["kernels"].items():
            found[f"{name}@{levels} N={n}"] = {
                "kernels_us": round(seconds * 1e6, 1),
                "table_us": round(price(name, levels, n) * 1e6, 1),
                "seal_us": round(times["seal"][name] * 1e6, 1),
            }
    return found


def calibration(rounds: int) -> dict[tuple[str, int, int], float]:
    """What each primitive takes here over what the table says, by name, data primes and ring degree."""
    found = {}
    for n, most in ((8192, 4), (16384, 8), (32768, 12)):
        for levels in (1, 2, 3, 4, 6, 8, 10, 12):
            if levels <= most:
                times = _seconds(n, levels, "kernels", rounds)
                found.update({(name, levels, n): s / price(name, levels, n) for name, s in times.items()})
    return found


def calibrated_seconds(plan: Plan, measured: dict[tuple[str, int, int], float]) -> float:
    """Server seconds of a plan by the calibrated table; primitives that were not measured cost what the table says."""
    n, total = plan.exchange.parameters.poly_modulus_degree, 0.0
    for operation, count in plan.expected.operations.items():
        name, _, level_text = operation.partition("@")
        level = int(level_text)
        if name == "encode":
            continue
        known = {key[1]: ratio for key, ratio in measured.items() if key[0] == name and key[2] == n}
        ratio = known[min(known, key=lambda at: abs(at - level))] if known else 1.0
        total += count * price(name, level, n) * ratio
    return total
