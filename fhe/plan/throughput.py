"""Plans for many rows at once: one ciphertext per feature, one row per slot and part (real and imaginary).

No rotation is needed. A plaintext matrix times ciphertexts is an integer matrix times their residues
(:mod:`fhe.runtime.throughput`), so weights are integers: of ``weight_bits`` bits against the largest of their row. A
hidden unit costs one conjugation (to part the two rows of a slot), two squarings and one relinearisation.

Axes: ``units``, ``columns``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deploy.arrays import Array
from deploy.errors import PlanError
from fhe.network import PolynomialNetwork
from fhe.noise import CERTAINTY, fresh_variance, key_switch_variance, rescale_variance
from fhe.plan.expected import BASE_MEMORY_BYTES
from fhe.plan.layout import Layout
from fhe.plan.options import PlanOptions
from fhe.plan.parameters import MAX_MODULUS_BITS, Parameters
from fhe.plan.plan import Exchange, Expected, Plan, StagePlan
from fhe.plan.prices import price, total_seconds
from fhe.plan.stages import InputScaling, Ranges, Reduced, reduce_network
from fhe.wire.sizes import answer_bytes, evaluation_key_bytes, galois_keys_bytes, request_bytes

__all__ = ["UnitStage", "plan_throughput", "unit_stages"]

_COEFFICIENT_BITS = 24
"""Least scale of a unit's polynomial coefficients."""

_PRIME_BITS = 60
_SMALL_PRIME_BITS = 22
_INPUT_BITS = 24
_STREAM_BITS = 36
"""Scale that every hidden value comes out at."""

_WEIGHT_BITS = (12, 20)
"""Whole-number weights of so many bits are tried in turn: two limbs of residues, or three and one more prime."""
_ONE = Layout(period=1, block=1, stride=1)


@dataclass(frozen=True, eq=False)
class UnitStage:
    """One layer with its rows scaled so that their largest weight lies in [1/2, 1), then one polynomial per unit.

    Parameters
    ----------
    weight, bias : (units, columns) and (units,), of values scaled by 2**-exponents of the layer before.
    square, linear : (units,) coefficients of z² and z that give values scaled by 2**-exponent; empty for the last.
    """

    weight: Array
    bias: Array
    square: Array
    linear: Array

    def values(self, h: Array) -> Array:
        """(batch, columns) -> (batch, units): the scaled values, or the logits after the last layer."""
        z = h @ self.weight.T + self.bias
        return z if not self.square.size else self.square * z * z + self.linear * z


def unit_stages(
    network: PolynomialNetwork, scaling: InputScaling, exponents: Sequence[Array]
) -> tuple[UnitStage, ...]:
    """Layers of a reduced network of degree 2; `exponents` (units,) bring each unit's value into [-1, 1]."""
    stages = []
    arriving = scaling.exponents
    offset = scaling.offset
    for index, layer in enumerate(network.affines):
        weight = np.ldexp(layer.weight, arriving)
        bias = layer.bias + layer.weight @ offset
        if index == len(network.coefficients):
            stages.append(UnitStage(weight, bias, np.zeros(0), np.zeros(0)))
            break
        largest = np.abs(weight).max(axis=1)
        rows = np.where(largest > 0, np.floor(np.log2(np.where(largest > 0, largest, 1.0))) + 1, 0).astype(np.int64)
        table = network.coefficients[index]
        square = table[:, 2] if table.shape[1] > 2 else np.zeros(len(table))
        stages.append(
            UnitStage(
                np.ldexp(weight, -rows[:, None]),
                np.ldexp(bias, -rows),
                np.ldexp(square, 2 * rows - exponents[index]),
                np.ldexp(table[:, 1], rows - exponents[index]),
            )
        )
        arriving, offset = exponents[index], np.zeros(len(table))
    return tuple(stages)


def plan_throughput(network: PolynomialNetwork, ranges: Ranges, options: PlanOptions) -> Plan:
    """Plan a network for requests of N rows; see :func:`fhe.plan.plan_network`."""
    reduced = reduce_network(network)
    small, left = reduced.network, reduced.ranges(ranges)
    if max(small.degrees, default=2) > 2:
        raise PlanError(
            f"polynomials of degree {max(small.degrees)} with packing=throughput",
            remedy="use degree 2, or packing=latency",
        )
    scaling = InputScaling.for_box(left.inputs)
    exponents = tuple(
        _value_exponents(table, box.low, box.high)
        for table, box in zip(small.coefficients, left.preactivations, strict=True)
    )
    stages = unit_stages(small, scaling, exponents)
    hidden = len(small.coefficients)
    logit_bits = max(0.0, math.log2(max(float(left.logits.radius.max()), 2.0**-20)))
    target = options.logit_error * max(1.0, 2.0**logit_bits / 64)
    choice: tuple[Parameters, list[_Step], Array] | None = None
    for weight_bits in _WEIGHT_BITS:
        steps = _schedule(hidden, weight_bits, logit_bits)
        parameters = _parameters(options, steps)
        if parameters is None:
            continue
        sigma = _sigma(stages, steps, parameters, left, scaling)
        if choice is None or sigma.max() < choice[2].max():
            choice = parameters, steps, sigma
        if CERTAINTY * sigma.max() <= target:
            break
    if choice is None:
        raise _no_room(options, hidden)
    return _plan(network, reduced, left, scaling, exponents, *choice, logit_bits)


@dataclass(frozen=True, slots=True)
class _Step:
    """One layer: bits of its weights, of its polynomial coefficients, and of the primes dropped after it."""

    weight_bits: int
    coefficient_bits: int
    drops: tuple[int, ...]


def _schedule(hidden: int, weight_bits: int, logit_bits: float) -> list[_Step]:
    """Scales that bring every hidden value out at 2**36: twice (stream + weight) plus coefficient, less the primes."""
    stream, steps = _INPUT_BITS, []
    for _ in range(hidden):
        squared = 2 * (stream + weight_bits)
        extra = squared + _COEFFICIENT_BITS - _STREAM_BITS - _PRIME_BITS
        extra = max(extra, _SMALL_PRIME_BITS) if extra > 0 else 0
        drops = (_PRIME_BITS, extra) if extra else (_PRIME_BITS,)
        steps.append(_Step(weight_bits, _STREAM_BITS + sum(drops) - squared, drops))
        stream = _STREAM_BITS
    room = int(_PRIME_BITS - 2 - logit_bits - stream)
    return [*steps, _Step(min(26, room), 0, ())]


def _parameters(options: PlanOptions, steps: Sequence[_Step]) -> Parameters | None:
    data = [_PRIME_BITS]
    for step in reversed(steps):
        data += reversed(step.drops)
    bits = (*data, _PRIME_BITS)
    for n in (options.poly_modulus_degree,) if options.poly_modulus_degree else (8192, 16384, 32768):
        if MAX_MODULUS_BITS.get(n, 0) >= sum(bits):
            return Parameters(poly_modulus_degree=n, coeff_modulus_bits=bits)
    return None


def _value_exponents(table: Array, low: Array, high: Array) -> Array:
    """(units,) least e with |polynomial| <= 2**e over the range."""
    points = np.linspace(low, high, 33)
    values = sum(table[:, power] * points**power for power in range(table.shape[1]))
    radius = np.abs(values).max(axis=0)
    return np.ceil(np.log2(np.where(radius > 0, radius, 1.0))).astype(np.int64)


def _no_room(options: PlanOptions, hidden: int) -> PlanError:
    parameters = sum(sum(step.drops) for step in _schedule(hidden, _WEIGHT_BITS[0], 0.0)) + 2 * _PRIME_BITS
    n = options.poly_modulus_degree or 32768
    return PlanError(
        f"{hidden} hidden layers need {parameters} bits of primes, the 128-bit table allows "
        f"{MAX_MODULUS_BITS.get(n, 0)} at N={n}",
        remedy="use packing=latency or fewer layers",
    )


def _sigma(
    stages: Sequence[UnitStage],
    steps: Sequence[_Step],
    parameters: Parameters,
    ranges: Ranges,
    scaling: InputScaling,
) -> Array:
    """(n_out,) standard deviation of each logit: rounded weights and noise, on typical rows or the box's corners."""
    rows = ranges.rows if ranges.rows is not None else np.stack([ranges.inputs.low, ranges.inputs.high])
    h = scaling(rows)
    n, special = parameters.poly_modulus_degree, float(parameters.coeff_modulus_bits[-1])
    stream = float(_INPUT_BITS)
    arriving = fresh_variance(n) * 4.0**-stream / 2
    variance = np.zeros((len(h), h.shape[1])) + arriving
    levels = [float(bits) for bits in parameters.coeff_modulus_bits[:-1]]
    for step, stage in zip(steps, stages, strict=True):
        rounding = 4.0**-step.weight_bits / 12 * (h**2).sum(axis=1, keepdims=True)
        spread = variance @ (stage.weight**2).T + rounding
        z = h @ stage.weight.T + stage.bias
        if not stage.square.size:
            return np.asarray(np.sqrt(spread.max(axis=0)))
        product = stream + step.weight_bits
        switch = key_switch_variance(n, tuple(levels), special)
        stream = float(_STREAM_BITS)
        slope = 2 * stage.square * z + stage.linear
        constants = 4.0**-step.coefficient_bits / 12 * z**4
        variance = slope**2 * (spread + switch * 4.0**-product) + constants + rescale_variance(n) * 4.0**-stream / 2
        levels = levels[: -len(step.drops)]
        h = stage.values(h)
    raise AssertionError("no last stage")


def _plan(
    network: PolynomialNetwork,
    reduced: Reduced,
    ranges: Ranges,
    scaling: InputScaling,
    exponents: Sequence[Array],
    parameters: Parameters,
    steps: Sequence[_Step],
    sigma: Array,
    logit_bits: float,
) -> Plan:
    n, small = parameters.poly_modulus_degree, reduced.network
    plans, scale, level = [], 2.0**_INPUT_BITS, parameters.levels
    for step in steps:
        last = not step.drops
        scale *= 2.0**step.weight_bits
        if not last:
            scale = scale * scale * 2.0**step.coefficient_bits
            for _ in step.drops:
                level -= 1
                scale /= parameters.data_primes[level]
        plans.append(
            StagePlan(
                layout=_ONE,
                rows_layout=_ONE,
                row_tile=1,
                babies=1,
                chained=False,
                folds=(),
                closing=False,
                weight_scale_bits=step.weight_bits,
                coefficient_bits=step.coefficient_bits,
                rescale=len(step.drops) > 1,
                degree=0 if last else 2,
                odd=not last,
            )
        )
    exchange = Exchange(
        parameters=parameters,
        packing="throughput",
        rows=n,
        n_in=small.n_in,
        n_out=small.n_out,
        pairs=True,
        input_layout=_ONE,
        tile=1,
        input_scale_bits=_INPUT_BITS,
        offset=tuple(scaling.offset.tolist()),
        exponents=tuple(scaling.exponents.tolist()),
        answer_tile=1,
        answer_period=1,
        answer_scale=scale,
        galois_elements=(2 * n - 1,) if small.coefficients else (),
        relinearization=bool(small.coefficients),
    )
    return Plan(
        exchange=exchange,
        network_sha256=network.sha256,
        widths=small.widths,
        hidden_exponents=tuple(tuple(row.tolist()) for row in exponents),
        stages=tuple(plans),
        sigma=tuple(sigma.tolist()),
        bound=tuple((2 * CERTAINTY * sigma).tolist()),
        certainty=CERTAINTY,
        ranges_kind="proved" if ranges.kind == "proved" else "estimated",
        logit_range=2.0 ** (logit_bits + 1),
        expected=_expected(exchange, small, steps),
        notes=reduced.notes(network),
    )


def _expected(exchange: Exchange, small: PolynomialNetwork, steps: Sequence[_Step]) -> Expected:
    n, levels = exchange.parameters.poly_modulus_degree, exchange.parameters.levels
    operations: dict[tuple[str, int], int] = {("load", levels): exchange.n_in, ("save", 1): exchange.n_out}
    level = levels
    for layer, step in zip(small.affines, steps, strict=True):
        units, columns = layer.weight.shape
        operations["multiply_accumulate", level] = units * columns
        if step.drops:
            operations["rotate", level] = units
            operations["relinearize", level] = units
            operations["multiply", level] = 2 * units
            # one after the other, where the table counts them four at a time
            operations["multiply_plain", level] = 8 * units
            operations["add", level] = 5 * units
            for drop in range(len(step.drops)):
                operations["rescale", level - drop] = units
            level -= len(step.drops)
    widest = max(small.widths[1:])
    tables = 16 * n * (levels * (2 * exchange.n_in + 3 * widest) + exchange.n_in)
    memory = BASE_MEMORY_BYTES + 2 * evaluation_key_bytes(exchange) + tables
    return Expected(
        operations={f"{name}@{level}": count for (name, level), count in sorted(operations.items())},
        server_seconds=round(total_seconds(operations, n), 6),
        client_seconds=round(
            exchange.n_in * price("encrypt", levels, n) + exchange.n_out * price("decrypt", 1, n), 6
        ),
        compile_seconds=0.0,
        plaintext_bytes=0,
        peak_memory_bytes=memory + request_bytes(exchange),
        galois_key_bytes=galois_keys_bytes(exchange),
        key_bytes=evaluation_key_bytes(exchange),
        request_bytes=request_bytes(exchange),
        answer_bytes=answer_bytes(exchange),
    )
