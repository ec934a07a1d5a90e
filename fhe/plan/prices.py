"""The fixed table of costs that plans are chosen by, so that a plan does not depend on the machine that makes it.

Calibrated once on one core of a server CPU of 2024 (Microsoft SEAL 4 as TenSEAL ships it, no AVX-512 kernels):
a number-theoretic transform at N = 8192 takes 56 us and everything else follows from how many of them, and how many
passes over the residues, a primitive needs. ``benchmarks/ckks.py --prices`` measures the same figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["price", "total_seconds"]

_NTT_S = 56e-6
"""One transform of 8192 coefficients."""

_PASS_S = 18.5e-6
"""One modular multiplication pass over 8192 residues."""

_ADD_S = 4e-6
_OVERHEAD_S = 3e-6
"""Of one call."""

_MAC_S = 2.5e-11
"""One multiplication and addition of a limb in BLAS."""


def price(name: str, level: int, poly_modulus_degree: int) -> float:
    """Seconds of one primitive at `level` data primes on one core.

    >>> round(price("rotate", 2, 8192) * 1e6)
    955
    """
    size = poly_modulus_degree / 8192
    ntt = _NTT_S * size * math.log2(poly_modulus_degree) / 13
    one_pass = _PASS_S * size
    return (
        _OVERHEAD_S
        + {
            "rotate": ntt * (1.5 * level**2 + 4 * level + 3),
            "relinearize": ntt * (1.5 * level**2 + 4 * level + 3),
            "multiply_plain": 2 * one_pass * level,
            "multiply": 4 * one_pass * level,
            "rescale": ntt * 2 * level + one_pass * level,
            "add": 2 * _ADD_S * size * level,
            "add_plain": _ADD_S * size * level,
            "lower": 2 * _ADD_S * size * level,
            "encode": ntt * (5 + 2 * level) + 2e-4 * size,
            "encrypt": ntt * (6 + 4 * level) + 3e-4 * size,
            "decrypt": ntt * (6 + 2 * level) + 4e-4 * size,
            "load": 2.9e-4 * size * level,
            "save": 1.9e-4 * size * level,
            "trim": ntt * 2 + 3e-4 * size,
            "multiply_accumulate": 4 * _MAC_S * poly_modulus_degree * level,
        }[name]
    )


def total_seconds(operations: Mapping[tuple[str, int], int], poly_modulus_degree: int) -> float:
    """Seconds of counted primitives, by (name, level); encoding is left out (it is done once)."""
    return sum(
        count * price(name, level, poly_modulus_degree)
        for (name, level), count in operations.items()
        if name != "encode"
    )
