"""The fixed table of costs that plans are chosen by, so that a plan does not depend on the machine that makes it.

Calibrated once on one core of a server CPU of 2024 with AVX-512: the server's own kernels (:mod:`fhe.rns.kernels`), and
Microsoft SEAL 4 as TenSEAL ships it for what the client does and for encoding. A transform at N = 8192 takes 16 us, and
everything else follows from how many of them, and how many passes over rows of residues, a primitive needs.
``benchmarks/ckks.py prices`` measures the same figures, and those of a server without numba, where SEAL takes two to
eight times as long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["price", "total_seconds"]

_NTT_S = 16.3e-6
"""One transform of 8192 residues."""

_ROW_S = 4e-6
"""One pass over 8192 residues that multiplies and reduces."""

_SEAL_NTT_S = 56e-6
"""One transform by SEAL."""

_OVERHEAD_S = 3e-6
_SWITCH_OVERHEAD_S = 12e-6
"""Of one call."""

_MAC_S = 4e-11
"""One multiplication and addition of a limb in BLAS, with cutting and joining limbs."""


def price(name: str, level: int, poly_modulus_degree: int) -> float:
    """Seconds of one primitive at `level` data primes on one core.

    >>> round(price("rotate", 2, 8192) * 1e6)
    275
    """
    size = poly_modulus_degree / 8192
    stages = size * math.log2(poly_modulus_degree) / 13
    ntt, seal_ntt, row = _NTT_S * stages, _SEAL_NTT_S * stages, _ROW_S * size
    switch = _SWITCH_OVERHEAD_S + ntt * (level + 1) * (level + 2) + row * (2 * level**2 + 4 * level)
    return (
        _OVERHEAD_S
        + {
            "rotate": switch,
            "relinearize": switch,
            "multiply_plain": 1.2 * row * level,
            "multiply": 2.5 * row * level,
            "rescale": ntt * 2 * level + 2 * row * level,
            "add": 1.2 * row * level,
            "add_plain": 1.6 * row * level,
            "lower": 0.75 * row * level,
            "encode": (3.2e-4 + 3e-4 * level) * size,
            "encrypt": seal_ntt * (6 + 4 * level) + 3e-4 * size,
            "decrypt": seal_ntt * (6 + 2 * level) + 4e-4 * size,
            "load": (6e-5 + 8.5e-5 * level) * size,
            "save": 9e-5 * size,
            "trim": 2 * ntt + 9e-5 * size,
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
