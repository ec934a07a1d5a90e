"""Compiled kernels over residues of up to 60 bits; imported only where numba is known to be there.

Rows of residues are ``(rows, n)`` of uint64, each below the prime that ``moduli`` (rows,) names by its row in the tables
of :mod:`fhe.rns.tables`. Kernels check nothing: shapes and ranges are the callers' (:mod:`fhe.rns.evaluator`), and
what comes from outside has been through the strict parser. Nothing here is secret, so running time may depend on data.

Vector units multiply 32 bits by 32. The high half of a product of 64 bits is therefore taken as
``ah bh + ⌊ah bl / 2^32⌋ + ⌊al bh / 2^32⌋``, which is too small by two at most: a remainder that was below 2p is
below 4p, and one more conditional subtraction, as a minimum of unsigned numbers, makes up for it. (An exact high half
would be found in scalar instructions.) Transforms are Harvey's, J. Symb. Comput. 60 (2014), with values below 4p.

Kernels call each other within this file only: numba's cache looks at the file of the kernel it keeps.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from deploy.arrays import Array
from deploy.compiled import compiled

__all__ = [
    "add",
    "add_onto",
    "divide",
    "dot",
    "dot_four",
    "forward",
    "inverse",
    "multiply",
    "multiply_plain",
    "permute",
    "round_last",
    "spread",
    "subtract",
]

_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_TWO, _FOUR, _WORD = np.uint64(2), np.uint64(4), np.uint64(64)
_INDEX = numba.int64[::1]
_CUBE, _ROWS = numba.uint64[:, :, ::1], numba.uint64[:, ::1]
_FOUR_CUBES, _FOUR_ROWS = numba.types.UniTuple(_CUBE, 4), numba.types.UniTuple(_ROWS, 4)


def _inline(function: Any) -> Any:
    return compiled(inline="always")(function)


@_inline
def _high(a: Any, b: Any) -> Any:
    """⌊a b / 2^64⌋, or up to two less."""
    al, ah, bl, bh = a & _LOW, a >> _HALF, b & _LOW, b >> _HALF
    return ah * bh + ((ah * bl) >> _HALF) + ((al * bh) >> _HALF)


@_inline
def _times(a: Any, factor: Any, quotient: Any, p: Any, p2: Any) -> Any:
    """``a factor`` modulo p, below 2p, for any a; `quotient` is Shoup's."""
    v = a * factor - _high(a, quotient) * p
    return min(v, v - p2)


@_inline
def _reduced(a: Any, p: Any, quotient: Any) -> Any:
    """a modulo p, for any a; `quotient` is ⌊2^64 / p⌋."""
    v = a - _high(a, quotient) * p
    v = min(v, v - _TWO * p)
    return min(v, v - p)


@_inline
def _wide_reduced(high: Any, middle: Any, low: Any, p: Any, shift: Any, quotient: Any) -> Any:
    """``high 2^64 + middle 2^32 + low`` modulo p, where that is below 2^(shift + 64).

    Barrett's quotient is too small by two at most, and by two more for :func:`_high`.
    """
    middle += low >> _HALF
    high += middle >> _HALF
    low = (middle << _HALF) | (low & _LOW)
    v = low - _high((high << (_WORD - shift)) | (low >> shift), quotient) * p
    v = min(v, v - _FOUR * p)
    v = min(v, v - _TWO * p)
    return min(v, v - p)


@compiled(numba.void(_ROWS, _INDEX, _INDEX, _CUBE, _ROWS))
def forward(a: Array, rows: Array, moduli: Array, twiddles: Array, constants: Array) -> None:
    """Transform rows of `a` in place, from coefficients to values at the odd powers of the root."""
    n = a.shape[1]
    eighth = n >> 3
    for index in range(len(rows)):
        x = a[rows[index]]
        p = constants[moduli[index], 0]
        p2 = _TWO * p
        w, ws = twiddles[moduli[index], 0], twiddles[moduli[index], 1]
        t, m = n >> 1, 1
        while t >= 8:
            for i in range(m):
                factor, quotient = w[m + i], ws[m + i]
                left, right = x[2 * i * t : 2 * i * t + t], x[2 * i * t + t : 2 * i * t + 2 * t]
                for j in range(t):
                    u = min(left[j], left[j] - p2)
                    v = _times(right[j], factor, quotient, p, p2)
                    left[j] = u + v
                    right[j] = u - v + p2
            m, t = 2 * m, t >> 1
        for c in range(eighth):
            i = 8 * c
            f, s = w[eighth + c], ws[eighth + c]
            a0, a1, a2, a3 = x[i], x[i + 1], x[i + 2], x[i + 3]
            a0, a1, a2, a3 = min(a0, a0 - p2), min(a1, a1 - p2), min(a2, a2 - p2), min(a3, a3 - p2)
            v = _times(x[i + 4], f, s, p, p2)
            a0, a4 = a0 + v, a0 - v + p2
            v = _times(x[i + 5], f, s, p, p2)
            a1, a5 = a1 + v, a1 - v + p2
            v = _times(x[i + 6], f, s, p, p2)
            a2, a6 = a2 + v, a2 - v + p2
            v = _times(x[i + 7], f, s, p, p2)
            a3, a7 = a3 + v, a3 - v + p2
            a0, a1, a4, a5 = min(a0, a0 - p2), min(a1, a1 - p2), min(a4, a4 - p2), min(a5, a5 - p2)
            f, s = w[2 * eighth + c], ws[2 * eighth + c]
            v = _times(a2, f, s, p, p2)
            a0, a2 = a0 + v, a0 - v + p2
            v = _times(a3, f, s, p, p2)
            a1, a3 = a1 + v, a1 - v + p2
            f, s = w[3 * eighth + c], ws[3 * eighth + c]
            v = _times(a6, f, s, p, p2)
            a4, a6 = a4 + v, a4 - v + p2
            v = _times(a7, f, s, p, p2)
            a5, a7 = a5 + v, a5 - v + p2
            a0, a2, a4, a6 = min(a0, a0 - p2), min(a2, a2 - p2), min(a4, a4 - p2), min(a6, a6 - p2)
            v = _times(a1, w[4 * eighth + c], ws[4 * eighth + c], p, p2)
            a0, a1 = a0 + v, a0 - v + p2
            v = _times(a3, w[5 * eighth + c], ws[5 * eighth + c], p, p2)
            a2, a3 = a2 + v, a2 - v + p2
            v = _times(a5, w[6 * eighth + c], ws[6 * eighth + c], p, p2)
            a4, a5 = a4 + v, a4 - v + p2
            v = _times(a7, w[7 * eighth + c], ws[7 * eighth + c], p, p2)
            a6, a7 = a6 + v, a6 - v + p2
            a0, a1, a2, a3 = min(a0, a0 - p2), min(a1, a1 - p2), min(a2, a2 - p2), min(a3, a3 - p2)
            a4, a5, a6, a7 = min(a4, a4 - p2), min(a5, a5 - p2), min(a6, a6 - p2), min(a7, a7 - p2)
            x[i], x[i + 1], x[i + 2], x[i + 3] = min(a0, a0 - p), min(a1, a1 - p), min(a2, a2 - p), min(a3, a3 - p)
            x[i + 4], x[i + 5] = min(a4, a4 - p), min(a5, a5 - p)
            x[i + 6], x[i + 7] = min(a6, a6 - p), min(a7, a7 - p)


@compiled(numba.void(_ROWS, _INDEX, _INDEX, _CUBE, _ROWS))
def inverse(a: Array, rows: Array, moduli: Array, twiddles: Array, constants: Array) -> None:
    """Undo :func:`forward`: rows of `a` from values to coefficients, in place; values stay below 2p."""
    n = a.shape[1]
    eighth = n >> 3
    for index in range(len(rows)):
        x = a[rows[index]]
        p = constants[moduli[index], 0]
        p2 = _TWO * p
        w, ws = twiddles[moduli[index], 2], twiddles[moduli[index], 3]
        for c in range(eighth):
            i = 8 * c
            a0, a1, a2, a3 = x[i], x[i + 1], x[i + 2], x[i + 3]
            a4, a5, a6, a7 = x[i + 4], x[i + 5], x[i + 6], x[i + 7]
            a0, a1 = a0 + a1, _times(a0 - a1 + p2, w[4 * eighth + c], ws[4 * eighth + c], p, p2)
            a2, a3 = a2 + a3, _times(a2 - a3 + p2, w[5 * eighth + c], ws[5 * eighth + c], p, p2)
            a4, a5 = a4 + a5, _times(a4 - a5 + p2, w[6 * eighth + c], ws[6 * eighth + c], p, p2)
            a6, a7 = a6 + a7, _times(a6 - a7 + p2, w[7 * eighth + c], ws[7 * eighth + c], p, p2)
            a0, a2, a4, a6 = min(a0, a0 - p2), min(a2, a2 - p2), min(a4, a4 - p2), min(a6, a6 - p2)
            f, s = w[2 * eighth + c], ws[2 * eighth + c]
            a0, a2 = a0 + a2, _times(a0 - a2 + p2, f, s, p, p2)
            a1, a3 = a1 + a3, _times(a1 - a3 + p2, f, s, p, p2)
            f, s = w[3 * eighth + c], ws[3 * eighth + c]
            a4, a6 = a4 + a6, _times(a4 - a6 + p2, f, s, p, p2)
            a5, a7 = a5 + a7, _times(a5 - a7 + p2, f, s, p, p2)
            a0, a1, a4, a5 = min(a0, a0 - p2), min(a1, a1 - p2), min(a4, a4 - p2), min(a5, a5 - p2)
            f, s = w[eighth + c], ws[eighth + c]
            u0, u1, u2, u3 = a0 + a4, a1 + a5, a2 + a6, a3 + a7
            x[i], x[i + 1], x[i + 2], x[i + 3] = (
                min(u0, u0 - p2),
                min(u1, u1 - p2),
                min(u2, u2 - p2),
                min(u3, u3 - p2),
            )
            x[i + 4] = _times(a0 - a4 + p2, f, s, p, p2)
            x[i + 5] = _times(a1 - a5 + p2, f, s, p, p2)
            x[i + 6] = _times(a2 - a6 + p2, f, s, p, p2)
            x[i + 7] = _times(a3 - a7 + p2, f, s, p, p2)
        t, m = 8, eighth >> 1
        while m >= 1:
            for i in range(m):
                factor, quotient = w[m + i], ws[m + i]
                left, right = x[2 * i * t : 2 * i * t + t], x[2 * i * t + t : 2 * i * t + 2 * t]
                for j in range(t):
                    u, v = left[j], right[j]
                    left[j] = min(u + v, u + v - p2)
                    right[j] = _times(u - v + p2, factor, quotient, p, p2)
            m, t = m >> 1, 2 * t
        factor, quotient = constants[moduli[index], 4], constants[moduli[index], 5]
        for j in range(n):
            v = _times(x[j], factor, quotient, p, p2)
            x[j] = min(v, v - p)


@compiled(numba.void(_ROWS, _ROWS, _CUBE, _INDEX, _ROWS))
def spread(coefficients: Array, values: Array, out: Array, moduli: Array, constants: Array) -> None:
    """out (moduli, digits, n): the digits (digits, n) modulo each prime; a digit's own prime gets its values."""
    for i in range(len(moduli)):
        p, quotient = constants[moduli[i], 0], constants[moduli[i], 1]
        for digit in range(len(coefficients)):
            to = out[i, digit]
            if i == digit:
                to[:] = values[digit]
            else:
                source = coefficients[digit]
                for j in range(len(to)):
                    to[j] = _reduced(source[j], p, quotient)


@_inline
def _gathered(high: Any, middle: Any, low: Any, carried: Any, a: Any, b: Any) -> Any:
    """Add ``a b``, both below 2^60: up to eight such products fit."""
    al, ah, bl, bh = a & _LOW, a >> _HALF, b & _LOW, b >> _HALF
    lowest = al * bl
    return high + ah * bh, middle + al * bh + ah * bl, low + (lowest & _LOW), carried + (lowest >> _HALF)


@compiled(numba.void(_CUBE, _CUBE, _INDEX, _INDEX, _INDEX, numba.int64, _ROWS, _ROWS))
def dot(
    a: Array, b: Array, left: Array, right: Array, moduli: Array, terms: int, constants: Array, out: Array
) -> None:
    """out[r] = sum over t < terms of ``a[left[r], t] b[right[r], t]``: four products at a time, then what is left."""
    zero = np.uint64(0)
    for row in range(len(left)):
        p, shift, quotient = constants[moduli[row], 0], constants[moduli[row], 2], constants[moduli[row], 3]
        to = out[row]
        for start in range(0, terms - 3, 4):
            a0, b0 = a[left[row], start], b[right[row], start]
            a1, b1 = a[left[row], start + 1], b[right[row], start + 1]
            a2, b2 = a[left[row], start + 2], b[right[row], start + 2]
            a3, b3 = a[left[row], start + 3], b[right[row], start + 3]
            before = zero if start == 0 else ~zero
            for j in range(len(to)):
                high, middle, low, carried = zero, zero, to[j] & before & _LOW, (to[j] & before) >> _HALF
                high, middle, low, carried = _gathered(high, middle, low, carried, a0[j], b0[j])
                high, middle, low, carried = _gathered(high, middle, low, carried, a1[j], b1[j])
                high, middle, low, carried = _gathered(high, middle, low, carried, a2[j], b2[j])
                high, middle, low, carried = _gathered(high, middle, low, carried, a3[j], b3[j])
                to[j] = _wide_reduced(high, middle + carried, low, p, shift, quotient)
        start = terms & ~3
        if terms - start >= 2:
            a0, b0 = a[left[row], start], b[right[row], start]
            a1, b1 = a[left[row], start + 1], b[right[row], start + 1]
            before = zero if start == 0 else ~zero
            for j in range(len(to)):
                high, middle, low, carried = zero, zero, to[j] & before & _LOW, (to[j] & before) >> _HALF
                high, middle, low, carried = _gathered(high, middle, low, carried, a0[j], b0[j])
                high, middle, low, carried = _gathered(high, middle, low, carried, a1[j], b1[j])
                to[j] = _wide_reduced(high, middle + carried, low, p, shift, quotient)
            start += 2
        if terms > start:
            a0, b0 = a[left[row], start], b[right[row], start]
            before = zero if start == 0 else ~zero
            for j in range(len(to)):
                high, middle, low, carried = zero, zero, to[j] & before & _LOW, (to[j] & before) >> _HALF
                high, middle, low, carried = _gathered(high, middle, low, carried, a0[j], b0[j])
                to[j] = _wide_reduced(high, middle + carried, low, p, shift, quotient)


@compiled(numba.void(_FOUR_CUBES, _FOUR_ROWS, _CUBE, numba.boolean, _INDEX, _ROWS))
def dot_four(
    a: tuple[Array, ...], b: tuple[Array, ...], out: Array, onto: bool, moduli: Array, constants: Array
) -> None:
    """out (polynomials, primes, n) = sum of four ciphertexts times their plaintexts (primes, n), onto `out` or not."""
    zero = np.uint64(0)
    kept = ~zero if onto else zero
    for polynomial in range(len(out)):
        for row in range(len(moduli)):
            p, shift, quotient = constants[moduli[row], 0], constants[moduli[row], 2], constants[moduli[row], 3]
            a0, a1, a2, a3 = (
                a[0][polynomial, row],
                a[1][polynomial, row],
                a[2][polynomial, row],
                a[3][polynomial, row],
            )
            b0, b1, b2, b3 = b[0][row], b[1][row], b[2][row], b[3][row]
            to = out[polynomial, row]
            for j in range(len(to)):
                high, middle, low, carried = zero, zero, to[j] & kept & _LOW, (to[j] & kept) >> _HALF
                high, middle, low, carried = _gathered(high, middle, low, carried, a0[j], b0[j])
                high, middle, low, carried = _gathered(high, middle, low, carried, a1[j], b1[j])
                high, middle, low, carried = _gathered(high, middle, low, carried, a2[j], b2[j])
                high, middle, low, carried = _gathered(high, middle, low, carried, a3[j], b3[j])
                to[j] = _wide_reduced(high, middle + carried, low, p, shift, quotient)


@compiled(numba.void(_CUBE, _ROWS, _CUBE, _INDEX, _ROWS))
def multiply_plain(a: Array, b: Array, out: Array, moduli: Array, constants: Array) -> None:
    """out (polynomials, primes, n) = a times a plaintext (primes, n)."""
    zero = np.uint64(0)
    for polynomial in range(len(out)):
        for row in range(len(moduli)):
            p, shift, quotient = constants[moduli[row], 0], constants[moduli[row], 2], constants[moduli[row], 3]
            left, right, to = a[polynomial, row], b[row], out[polynomial, row]
            for j in range(len(to)):
                high, middle, low, carried = _gathered(zero, zero, zero, zero, left[j], right[j])
                to[j] = _wide_reduced(high, middle + carried, low, p, shift, quotient)


@compiled(numba.void(_CUBE, _CUBE, _CUBE, _INDEX, _ROWS))
def multiply(a: Array, b: Array, out: Array, moduli: Array, constants: Array) -> None:
    """out (3, primes, n): a0 b0, a0 b1 + a1 b0, a1 b1 of two ciphertexts (2, primes, n)."""
    zero = np.uint64(0)
    for row in range(len(moduli)):
        p, shift, quotient = constants[moduli[row], 0], constants[moduli[row], 2], constants[moduli[row], 3]
        a0, a1, b0, b1 = a[0, row], a[1, row], b[0, row], b[1, row]
        to0, to1, to2 = out[0, row], out[1, row], out[2, row]
        for j in range(len(to0)):
            high, middle, low, carried = _gathered(zero, zero, zero, zero, a0[j], b0[j])
            to0[j] = _wide_reduced(high, middle + carried, low, p, shift, quotient)
            high, middle, low, carried = _gathered(zero, zero, zero, zero, a1[j], b1[j])
            to2[j] = _wide_reduced(high, middle + carried, low, p, shift, quotient)
            high, middle, low, carried = _gathered(zero, zero, zero, zero, a0[j], b1[j])
            high, middle, low, carried = _gathered(high, middle, low, carried, a1[j], b0[j])
            to1[j] = _wide_reduced(high, middle + carried, low, p, shift, quotient)


@compiled(numba.void(_ROWS, _ROWS, _ROWS, _INDEX, _ROWS))
def add(a: Array, b: Array, out: Array, moduli: Array, constants: Array) -> None:
    """out = a + b."""
    for row in range(len(moduli)):
        p = constants[moduli[row], 0]
        left, right, to = a[row], b[row], out[row]
        for j in range(len(to)):
            v = left[j] + right[j]
            to[j] = min(v, v - p)


@compiled(numba.void(_ROWS, _ROWS, _INDEX, _ROWS))
def add_onto(a: Array, b: Array, moduli: Array, constants: Array) -> None:
    """a += b. (Named apart from :func:`add`: where arrays may overlap, the vector loop is not taken.)"""
    for row in range(len(moduli)):
        p = constants[moduli[row], 0]
        to, other = a[row], b[row]
        for j in range(len(to)):
            v = to[j] + other[j]
            to[j] = min(v, v - p)


@compiled(numba.void(_ROWS, _ROWS, _ROWS, _INDEX, _ROWS))
def subtract(a: Array, b: Array, out: Array, moduli: Array, constants: Array) -> None:
    """out = a - b."""
    for row in range(len(moduli)):
        p = constants[moduli[row], 0]
        left, right, to = a[row], b[row], out[row]
        for j in range(len(to)):
            v = left[j] - right[j]
            to[j] = min(v, v + p)


@compiled(numba.void(_ROWS, _INDEX, _ROWS))
def permute(a: Array, source: Array, out: Array) -> None:
    """out[:, j] = a[:, source[j]]."""
    for row in range(len(a)):
        values, to = a[row], out[row]
        for j in range(len(source)):
            to[j] = values[source[j]]


@compiled(numba.void(numba.uint64[::1], _ROWS, numba.int64, _INDEX, _ROWS, _ROWS))
def round_last(last: Array, out: Array, divisor: int, moduli: Array, dividing: Array, constants: Array) -> None:
    """out (primes, n): the centred remainder of a division by the prime `divisor`, from coefficients modulo it."""
    q = constants[divisor, 0]
    half = q >> np.uint64(1)
    for row in range(len(moduli)):
        p, quotient = constants[moduli[row], 0], constants[moduli[row], 1]
        offset, to = p - dividing[row, 2], out[row]
        for j in range(len(to)):
            v = last[j] + half
            v = _reduced(min(v, v - q), p, quotient) + offset
            to[j] = min(v, v - p)


@compiled(numba.void(_ROWS, _ROWS, _INDEX, _ROWS, _ROWS))
def divide(a: Array, remainder: Array, moduli: Array, dividing: Array, constants: Array) -> None:
    """remainder = (a - remainder) / divisor: exact, since the remainder is taken from what is divided."""
    for row in range(len(moduli)):
        p, factor, quotient = constants[moduli[row], 0], dividing[row, 0], dividing[row, 1]
        values, to = a[row], remainder[row]
        for j in range(len(to)):
            v = _times(values[j] - to[j] + p, factor, quotient, p, _TWO * p)
            to[j] = min(v, v - p)
