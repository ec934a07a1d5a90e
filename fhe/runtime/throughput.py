"""Many rows at once: plaintext matrices times ciphertexts as integer matrices times residues.

A ciphertext is residues modulo each prime; a sum of ciphertexts with integer weights is the same sum of residues.
Residues are cut into limbs small enough that double-precision products and sums stay below 2**53, so that BLAS
computes exact integers; the limbs are put together modulo the prime.

Axes: ``columns`` (ciphertexts that come in), ``units`` (ciphertexts that come out), ``n`` (coefficients).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from deploy.arrays import Array
from fhe.network import PolynomialNetwork
from fhe.plan.plan import Exchange, Plan
from fhe.plan.stages import reduce_network
from fhe.plan.throughput import UnitStage, unit_stages
from fhe.runtime.backend import CiphertextBackend, Operand, sum_of_products
from fhe.runtime.seal import SealContext

__all__ = ["ThroughputProgram", "batch_slots", "integer_product", "read_batch", "run_batch_in_clear"]

Ct = TypeVar("Ct")

_EXACT_BITS = 53
_TURN = complex(0, math.sqrt(2))
"""The plaintext of this number at scale 1 has whole coefficients, so no rounding."""


def batch_slots(exchange: Exchange, x: Array) -> list[Array]:
    """Slots (slots,) of one ciphertext per feature: row r is the real part of slot r, row slots + r the imaginary."""
    slots = exchange.parameters.slots
    scaled = np.zeros((2 * slots, exchange.n_in))
    scaled[: len(x)] = exchange.scaling(x)
    return list((scaled[:slots] + 1j * scaled[slots:]).T)


def read_batch(slots: Sequence[Array]) -> Array:
    """Logits (2 slots, n_out) from one array (slots,) per output."""
    table = np.stack(slots, axis=1)
    return np.concatenate([table.real, table.imag])


def integer_product(weight: Array, columns: Array, prime: int) -> Array:
    """Exact ``weight @ columns`` modulo a prime below 2**61.

    Parameters
    ----------
    weight : (units, columns) whole numbers.
    columns : (columns, n) of uint64 residues.

    >>> integer_product(np.array([[3.0, -1.0]]), np.array([[5], [7]], dtype=np.uint64), 1009).tolist()
    [[8]]
    """
    largest = max(1.0, float(np.abs(weight).max()))
    room = _EXACT_BITS - math.ceil(math.log2(largest + 1)) - math.ceil(math.log2(weight.shape[1] + 1))
    limbs = max(1, math.ceil(prime.bit_length() / room))
    width = math.ceil(prime.bit_length() / limbs)
    mask = np.uint64((1 << width) - 1)
    part = np.empty(columns.shape)
    limb_words = np.empty(columns.shape, dtype=np.uint64)
    total: Array | None = None
    for limb in reversed(range(limbs)):
        np.right_shift(columns, np.uint64(limb * width), out=limb_words)
        np.bitwise_and(limb_words, mask, out=limb_words)
        np.copyto(part, limb_words, casting="unsafe")
        product = weight @ part
        total = _shift_and_add(total, width, product, prime)
    if total is None:
        raise AssertionError("no limb")
    return np.asarray(total.view(np.uint64))


def _shift_and_add(value: Array | None, width: int, addend: Array, prime: int) -> Array:
    """``(value * 2**width + addend) mod prime`` as int64, for 0 <= value < prime and whole |addend| < 2**53.

    The quotient is found in double precision and is right to within one; the remainder is computed in integers that
    wrap around, which is exact since it is known to lie within one prime of zero.
    """
    if value is None:
        quotient = np.floor(addend / prime)
        remainder = addend.astype(np.int64)
    else:
        quotient = np.ldexp(value.astype(np.float64), width)
        quotient += addend
        quotient /= prime
        np.rint(quotient, out=quotient)
        remainder = value << width
        remainder += addend.astype(np.int64)
    remainder -= quotient.astype(np.int64) * np.int64(prime)
    remainder += (remainder >> 63) & np.int64(prime)
    remainder -= np.where(remainder >= prime, np.int64(prime), np.int64(0))
    return np.asarray(remainder)


def _integer_stages(plan: Plan, network: PolynomialNetwork) -> tuple[tuple[UnitStage, ...], list[Array], list[int]]:
    """Stages, their weights as whole numbers, and the bits of the scale of those."""
    bits = [int(stage.weight_scale_bits) for stage in plan.stages]
    stages = unit_stages(reduce_network(network).network, plan.exchange.scaling, plan.exponents)
    weights = [np.rint(np.ldexp(stage.weight, scale)) for stage, scale in zip(stages, bits, strict=True)]
    for weight in weights:
        if not weight.any():
            weight[0, 0] = 1.0
    return stages, weights, bits


def run_batch_in_clear(plan: Plan, network: PolynomialNetwork, x: Array) -> Array:
    """Logits (batch, n_out) of rows x (batch, n_in) with the integer weights of the encrypted run."""
    h = plan.exchange.scaling(x)
    for stage, weight, bits in zip(*_integer_stages(plan, network), strict=True):
        h = UnitStage(np.ldexp(weight, -bits), stage.bias, stage.square, stage.linear).values(h)
    return h


class ThroughputProgram:
    """A plan of packing=throughput with the numbers of its network."""

    def __init__(self, plan: Plan, network: PolynomialNetwork, context: SealContext) -> None:
        self._exchange = plan.exchange
        self._context = context
        self._stages, self._weights, self._bits = _integer_stages(plan, network)
        self._plans = plan.stages
        self._turns: dict[int, Array] = {}

    def run(self, backend: CiphertextBackend[Ct], inputs: Sequence[Ct]) -> list[Ct]:
        """One ciphertext per output from one per feature."""
        values, scale = inputs, self._exchange.input_scale
        for index, stage in enumerate(self._stages):
            scale *= 2.0 ** self._bits[index]
            words = self._product(index, self._residues(backend, values), scale)
            products = [backend.value(unit, scale) for unit in words]
            if not stage.square.size:
                return products
            values = [self._activate(backend, index, unit, y) for unit, y in enumerate(products)]
            scale = backend.scale(values[0])
        raise AssertionError("no last stage")

    def _residues(self, backend: CiphertextBackend[Ct], values: Sequence[Ct]) -> Array:
        """(values, 2, level, n) of uint64."""
        n, level = self._exchange.parameters.poly_modulus_degree, backend.level(values[0])
        table = np.empty((len(values), 2, level, n), dtype=np.uint64)
        for row, value in zip(table, values, strict=True):
            row[:] = backend.words(value)
        return table

    def _product(self, index: int, columns: Array, scale: float) -> Array:
        """Residues (units, 2, level, n) of weight @ columns + bias."""
        weight, stage = self._weights[index], self._stages[index]
        _, _, level, n = columns.shape
        primes = self._exchange.parameters.data_primes[:level]
        words = np.empty((len(weight), 2, level, n), dtype=np.uint64)
        for place, prime in enumerate(primes):
            for polynomial in range(2):
                words[:, polynomial, place] = integer_product(weight, columns[:, polynomial, place], prime)
            shifted = words[:, 0, place]
            shifted += self._bias_words(stage.bias, scale, level, place)
            shifted -= np.where(shifted >= prime, np.uint64(prime), np.uint64(0))
        return words

    def _bias_words(self, bias: Array, scale: float, level: int, place: int) -> Array:
        """(units, n) residues of ``bias (1 + i)``: the same bias for both rows of a slot.

        SEAL's slots are the powers of 3, where ``X^(N/4) + X^(3N/4)`` is sqrt(2) i; in transformed form that is a
        square root of -2 modulo the prime, one or the other at each point.
        """
        prime = self._exchange.parameters.data_primes[place]
        turn = self._turn_words(level)[place]
        root = int(turn[0])
        real = [round(value * scale) for value in bias.tolist()]
        imaginary = [round(value * scale / math.sqrt(2)) for value in bias.tolist()]
        pairs = list(zip(real, imaginary, strict=True))
        along = np.array([(a + b * root) % prime for a, b in pairs], dtype=np.uint64)
        against = np.array([(a - b * root) % prime for a, b in pairs], dtype=np.uint64)
        return np.where(turn == turn[0], along[:, None], against[:, None])

    def _turn_words(self, level: int) -> Array:
        """(level, n) residues of sqrt(2) i at scale 1."""
        if level not in self._turns:
            self._turns[level] = self._context.plain_words(self._context.encode(_TURN, level, 1.0), level)
        return self._turns[level]

    def _activate(self, backend: CiphertextBackend[Ct], index: int, unit: int, y: Ct) -> Ct:
        """``square * (a² + i b²) + linear * (a + i b)`` for slots a + i b, one or two primes lower.

        With u = y + conj y = 2a and v = y - conj y = 2ib that is ``(square / 4) (u² - i v²) + linear * y``.
        """
        stage, plan = self._stages[index], self._plans[index]
        scale, level = backend.scale(y), backend.level(y)
        conjugate = backend.conjugate(y)
        u, v = backend.add(y, conjugate), backend.subtract(y, conjugate)
        turn = Operand(("turn", level), lambda: _TURN, 1.0, level)
        turned = backend.multiply_plain(backend.multiply(v, v), turn)
        # a factor of zero would be transparent: the least coefficient is one unit of the plaintext
        quarter = float(stage.square[unit]) / 4
        fine = 2.0**plan.coefficient_bits
        total = sum_of_products(
            backend,
            (backend.multiply(u, u), turned, y),
            (
                _number(quarter or 1 / fine, fine, level),
                _number(-quarter / math.sqrt(2) or 1 / fine, fine, level),
                _number(float(stage.linear[unit]) or 1 / (scale * fine), scale * fine, level),
            ),
        )
        total = backend.rescale(backend.relinearize(total))
        return backend.rescale(total) if plan.rescale else total


def _number(value: float, scale: float, level: int) -> Operand:
    """One number for all slots; encoded at each use, which costs next to nothing."""
    return Operand(None, lambda: value, scale, level)
