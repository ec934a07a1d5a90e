"""Chains of primes and scales for a given number of products and powers, and the error that each would have.

Two families. *Merged*: no rescale after a product; one prime of up to 60 bits is dropped after each multiplication
of ciphertexts. Fewest primes, so fastest. *Split*: one more prime is dropped after each product but the last, which
keeps hidden values at the scale of the streams and costs primes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from deploy.errors import PlanError
from fhe.noise import Sensitivity, StageNoise, logit_sigma
from fhe.plan.layout import Layout
from fhe.plan.parameters import MAX_MODULUS_BITS, MAX_PRIME_BITS

__all__ = ["Arrangement", "Chain", "Shape", "best_chain", "levels_needed"]

_PRIME_SLACK = 1e-3
"""Primes are a little smaller than the power of two that their length stands for."""

_HEADROOM_BITS = 2
"""One for the sign, one so that a logit at twice its declared range still does not wrap around."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the levels must do: `powers` streams after each hidden stage, and the range of the logits."""

    powers: tuple[int, ...]
    logit_bits: float

    @property
    def products(self) -> int:
        """Number of stages."""
        return len(self.powers) + 1


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How one stage sits in the slots, as far as noise and cost are concerned."""

    layout: Layout
    rows_period: int
    babies: int
    chained: bool
    closing: bool
    streams: int

    @property
    def giants(self) -> int:
        """Giant steps, the zeroth among them."""
        return -(-self.layout.stride // self.babies)

    def folds(self, positions: int) -> tuple[int, ...]:
        """Rotations that sum the blocks; the period counts as all positions where it is no smaller."""
        steps = []
        step = self.rows_period
        while step < min(self.layout.period, positions):
            steps.append(step)
            step *= 2
        return tuple(steps)


@dataclass(frozen=True, slots=True)
class Chain:
    """Primes and scales, in bits.

    Parameters
    ----------
    bits : primes as SEAL takes them, key-switching prime last.
    split : whether products are rescaled.
    input_bits : scale of fresh ciphertexts.
    weight_bits : of each stage's plaintexts (of its last stream).
    """

    bits: tuple[int, ...]
    split: bool
    input_bits: int
    weight_bits: tuple[float, ...]


def levels_needed(shape: Shape, *, split: bool) -> int:
    """Data primes that a run needs."""
    return 1 + sum(shape.powers) + (len(shape.powers) if split else 0)


def levels_at(shape: Shape, levels: int, *, split: bool) -> list[int]:
    """Data primes left during each product."""
    found = [levels]
    for powers in shape.powers:
        found.append(found[-1] - powers - int(split))
    return found


def best_chain(
    n: int,
    shape: Shape,
    arrangements: Sequence[Arrangement],
    positions: int,
    sensitivities: Sequence[Sensitivity],
    *,
    split: bool,
    pinned: tuple[int, ...] | None = None,
) -> tuple[Chain, float] | None:
    """The chain of least error at ring degree n, with its largest logit sigma; None where none fits."""
    worst = [
        Sensitivity(*(np.array([values.max()]) for values in (s.streams, s.weights, s.values)))
        for s in sensitivities
    ]
    best: tuple[Chain, float] | None = None
    candidates = _pinned(shape, pinned, split) if pinned else _candidates(n, shape, split)
    for chain in candidates:
        noise = stage_noise(chain, shape, arrangements, positions)
        if noise is None:
            continue
        sigma = float(logit_sigma(n, chain.bits[-1], noise, worst)[0])
        if best is None or sigma < best[1] * (1 - 1e-9):
            best = (chain, sigma)
    return best


def _candidates(n: int, shape: Shape, split: bool) -> Iterator[Chain]:
    budget = MAX_MODULUS_BITS[n]
    hidden = len(shape.powers)
    smallest = n.bit_length() + 1
    extra = sum(powers - 1 for powers in shape.powers)
    for last in (60, 57, 54, 50, 45, 40):
        for special in sorted({last, min(last + 3, MAX_PRIME_BITS), MAX_PRIME_BITS}):
            if special < last:
                continue
            if hidden == 0:
                yield from _scales((last, special), shape, split, 0, 0)
                continue
            for stream in range(16, 51):
                if extra and stream < smallest:
                    continue
                room = (budget - last - special - extra * stream) // hidden
                if split:
                    weight = min(room - stream, 45, special)
                    if weight < smallest or not smallest <= stream <= special:
                        continue
                    bits = [last]
                    for powers in reversed(shape.powers):
                        bits += [stream] * powers + [weight]
                    yield from _scales((*bits, special), shape, split, stream, weight)
                else:
                    first = min(room, MAX_PRIME_BITS, special)
                    if first < max(smallest, stream):
                        continue
                    bits = [last]
                    for powers in reversed(shape.powers):
                        bits += [stream] * (powers - 1) + [first]
                    yield from _scales((*bits, special), shape, split, stream, (first - stream) / 2)


def _pinned(shape: Shape, bits: tuple[int, ...], split: bool) -> Iterator[Chain]:
    spare = len(bits) - 1 - levels_needed(shape, split=split)
    if spare < 0:
        return
    if not shape.powers:
        yield from _scales(bits, shape, split, 0, 0)
    for stream in range(16, 51):
        for weight in range(6, 40, 2):
            yield from _scales(bits, shape, split, stream, weight)


def _scales(bits: tuple[int, ...], shape: Shape, split: bool, stream: float, weight: float) -> Iterator[Chain]:
    """Weight scales that keep hidden streams near 2**stream; the input scale runs over a range."""
    hidden = len(shape.powers)
    spare = len(bits) - 1 - levels_needed(shape, split=split)
    room = sum(bits[: spare + 1]) - _HEADROOM_BITS - shape.logit_bits - _PRIME_SLACK
    if hidden == 0:
        for start in range(10, int(room) - 5, 2):
            yield Chain(bits, split, start, (room - start,))
        return
    final = room - stream
    if final < 8 or weight < 4:
        return
    for start in range(14, int(2 * stream)):
        first = stream + weight - start
        if first >= 6:
            yield Chain(bits, split, start, (first, *[weight] * (hidden - 1), min(final, 50)))


def stage_noise(
    chain: Chain, shape: Shape, arrangements: Sequence[Arrangement], positions: int
) -> list[StageNoise] | None:
    """Scales and multiplicities of each stage, or None where a scale does not fit its primes."""
    data = list(chain.bits[:-1])
    stream, streams = float(chain.input_bits), arrangements[0].streams
    found = []
    for index, arrangement in enumerate(arrangements):
        product = stream + chain.weight_bits[index]
        last = index == len(shape.powers)
        if product + _HEADROOM_BITS + (shape.logit_bits if last else 1) > sum(data):
            return None
        primes = tuple(float(bits) for bits in data)
        rescaled = chain.split and not last
        value = product - data.pop() if rescaled else product
        found.append(
            StageNoise(
                stream_bits=stream,
                weight_bits=float(chain.weight_bits[index]),
                product_bits=value,
                primes_bits=primes,
                baby_switches=_baby_switches(arrangement),
                late_switches=_late_switches(arrangement, positions),
                rescaled=rescaled,
                fresh=index == 0,
                streams=streams,
                closing=arrangement.closing,
            )
        )
        if last:
            return found
        if 2 * value + 2 > sum(data) or value < 12:
            return None
        stream = even = 2 * value - data.pop()
        streams = shape.powers[index]
        for _ in range(streams - 1):
            if stream + even + 2 > sum(data):
                return None
            stream = stream + even - data.pop()
        if stream < 10 or stream + 2 > sum(data):
            return None
    raise PlanError("no stage")


def _baby_switches(arrangement: Arrangement) -> float:
    babies = min(arrangement.babies, arrangement.layout.stride)
    return (babies - 1) / 2 if arrangement.chained else (babies - 1) / babies


def _late_switches(arrangement: Arrangement, positions: int) -> float:
    summed = 2.0 ** len(arrangement.folds(positions))
    return arrangement.giants * summed + summed + float(arrangement.closing)
