"""Chains of primes and scales for a given number of products and powers, and the error that each would have.

Three families. *Merged*: no rescale after a product; one prime of up to 60 bits is dropped after each multiplication
of ciphertexts. Fewest primes, so fastest. *Split*: one more prime is dropped after each product but the last, which
keeps hidden values at the scale of the streams and costs primes. *Early*: split, and the prime is dropped before the
folds, which are cheaper there and noisier.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from deploy.errors import PlanError
from fhe.noise import Sensitivity, StageNoise, logit_sigma
from fhe.plan.arrangement import Arrangement
from fhe.plan.parameters import MAX_MODULUS_BITS, MAX_PRIME_BITS, ntt_primes

__all__ = [
    "FAMILIES",
    "Chain",
    "Family",
    "Shape",
    "best_chain",
    "chain_is_lazy",
    "level_weights",
    "levels_needed",
    "stage_noise",
]

Family = Literal["merged", "split", "early"]
FAMILIES: tuple[Family, ...] = ("merged", "split", "early")

_PRIME_SLACK = 1e-3
"""Primes are a little smaller than the power of two that their length stands for."""

_PRIME_MARGIN_BITS = 8
"""Primes that are 1 modulo 2N are few below 2N * 2**7: shorter ones are not planned with."""

_LAZY_STREAM_BITS = 33

_HEADROOM_BITS = 2
"""One for the sign, one so that a logit at twice its declared range still does not wrap around."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the levels must do: the depth of the powers after each hidden stage, and the range of the logits."""

    depths: tuple[int, ...]
    logit_bits: float

    @property
    def products(self) -> int:
        """Number of stages."""
        return len(self.depths) + 1


@dataclass(frozen=True, slots=True)
class Chain:
    """Primes and scales, in bits.

    Parameters
    ----------
    bits : primes as SEAL takes them, key-switching prime last.
    family : what is dropped where.
    input_bits : scale of fresh ciphertexts.
    weight_bits : of each stage's plaintexts (of its last stream).
    """

    bits: tuple[int, ...]
    family: Family
    input_bits: int
    weight_bits: tuple[float, ...]


def levels_needed(shape: Shape, *, family: Family) -> int:
    """Data primes that a run needs."""
    return 1 + sum(shape.depths) + (0 if family == "merged" else len(shape.depths))


def levels_at(shape: Shape, levels: int, *, family: Family) -> list[int]:
    """Data primes left during each product."""
    found = [levels]
    for depth in shape.depths:
        found.append(found[-1] - depth - int(family != "merged"))
    return found


def best_chain(
    n: int,
    shape: Shape,
    arrangements: Sequence[Arrangement],
    positions: int,
    sensitivities: Sequence[Sensitivity],
    *,
    family: Family,
    pinned: tuple[int, ...] | None = None,
) -> tuple[Chain, float] | None:
    """The chain of least error at ring degree n, with its largest logit sigma; None where none fits."""
    roomy = replace(shape, logit_bits=_answer_bits(shape, arrangements[-1], positions))
    worst = [
        Sensitivity(float(np.max(s.streams)), float(np.max(s.weights)), float(np.max(s.values)))
        for s in sensitivities
    ]
    best: tuple[Chain, float] | None = None
    candidates = _pinned(roomy, pinned, family) if pinned else _candidates(n, roomy, family)
    for chain in candidates:
        noise = stage_noise(chain, shape, arrangements, positions)
        if noise is None:
            continue
        sigma = float(logit_sigma(n, chain.bits[-1], noise, worst))
        if best is None or sigma < best[1] * (1 - 1e-9):
            best = (chain, sigma)
    return best


def level_weights(chain: Chain, n: int, shape: Shape, streams: Sequence[int]) -> tuple[float, ...]:
    """Scales in bits of each stage's plaintexts that make every layer's last stream arrive at the scale meant for it.

    Short primes lie up to a third of a bit below their length. Each multiplication of ciphertexts doubles what a scale
    is off by, so that over many layers it would leave the primes behind. `streams` counts those after each hidden
    stage.
    """
    data = [math.log2(prime) for prime in ntt_primes(n, chain.bits)[:-1]]
    scale, weights = float(chain.input_bits), []
    for depth, count, meant in zip(shape.depths, streams, _stream_bits(chain, shape), strict=True):
        dropped = 0.0 if chain.family == "merged" else data.pop()
        offset = _last_stream_bits(0.0, data, count)
        value = (meant - offset) / (
            _last_stream_bits(1.0, data, count) - offset
        )  # it is linear in the values' scale
        weights.append(value + dropped - scale)
        scale = meant
        del data[len(data) - depth :]
    return (*weights, chain.weight_bits[-1])


def _last_stream_bits(value: float, data: Sequence[float], streams: int) -> float:
    """Scale in bits of the last of so many streams of values, by the steps of :meth:`fhe.runtime.program.Program.powers`."""

    def product(a: tuple[float, int], b: tuple[float, int]) -> tuple[float, int]:
        level = min(a[1], b[1])
        return a[0] + b[0] - data[level - 1], level - 1

    first = product((value, len(data)), (value, len(data)))
    evens, found = {1: first}, {1: first}
    for stream in range(2, streams + 1):
        half = 1 << (stream - 1).bit_length() - 1
        if half not in evens:
            evens[half] = product(evens[half // 2], evens[half // 2])
        found[stream] = product(evens[half], found[stream - half])
    return found[streams][0]


def _candidates(n: int, shape: Shape, family: Family) -> Iterator[Chain]:
    budget = MAX_MODULUS_BITS[n]
    hidden = len(shape.depths)
    smallest = n.bit_length() + _PRIME_MARGIN_BITS
    extra = sum(depth - 1 for depth in shape.depths)
    for last in (60, 57, 54, 50, 45, 40):
        for special in sorted({last, min(last + 3, MAX_PRIME_BITS), MAX_PRIME_BITS}):
            if special < last:
                continue
            if hidden == 0:
                yield from _scales((last, special), shape, family, 0, 0)
                continue
            for stream in range(16, 51):
                if extra and stream < smallest:
                    continue
                room = (budget - last - special - extra * stream) // hidden
                if family != "merged":
                    weight = min(room - stream, 45, special)
                    if weight < smallest or not smallest <= stream <= special:
                        continue
                    bits = [last]
                    for depth in reversed(shape.depths):
                        bits += [stream] * depth + [weight]
                    yield from _scales((*bits, special), shape, family, stream, weight)
                else:
                    first = min(room, MAX_PRIME_BITS, special)
                    if first < max(smallest, stream):
                        continue
                    bits = [last]
                    for depth in reversed(shape.depths):
                        bits += [stream] * (depth - 1) + [first]
                    yield from _scales((*bits, special), shape, family, stream, (first - stream) / 2)


def _answer_bits(shape: Shape, last: Arrangement, positions: int) -> float:
    """Size of what is read of the last product: twice the mean over blocks, whose sum the client takes.

    Twice, because the client subtracts a coefficient's mirror image from it before it halves the difference.
    """
    return max(0.0, shape.logit_bits + 1 - math.log2(last.blocks(positions)))


def _pinned(shape: Shape, bits: tuple[int, ...], family: Family) -> Iterator[Chain]:
    spare = len(bits) - 1 - levels_needed(shape, family=family)
    if spare < 0:
        return
    if not shape.depths:
        yield from _scales(bits, shape, family, 0, 0)
    for stream in range(16, 51):
        for weight in range(6, 40, 2):
            yield from _scales(bits, shape, family, stream, weight)


def _scales(bits: tuple[int, ...], shape: Shape, family: Family, stream: float, weight: float) -> Iterator[Chain]:
    """Weight scales that keep hidden streams near 2**stream; the input scale runs over a range."""
    hidden = len(shape.depths)
    # an answer leaves at one prime, however many a pinned chain has to spare
    room = bits[0] - _HEADROOM_BITS - shape.logit_bits - _PRIME_SLACK
    if hidden == 0:
        for start in range(10, int(room) - 5, 2):
            yield Chain(bits, family, start, (room - start,))
        return
    final = room - stream
    if final < 8 or weight < 4:
        return
    for start in range(14, int(2 * stream)):
        first = stream + weight - start
        if first >= 6:
            yield Chain(bits, family, start, (first, *[weight] * (hidden - 1), min(final, 50)))


def chain_is_lazy(chain: Chain, shape: Shape, index: int) -> bool:
    """Whether squares after stage `index` are relinearised after their rescale.

    Rescaling three polynomials adds an error of about 2**17 at N = 8192, which the scale that is left must drown.
    """
    streams = _stream_bits(chain, shape)
    return index < len(shape.depths) and shape.depths[index] == 1 and streams[index] >= _LAZY_STREAM_BITS


def _stream_bits(chain: Chain, shape: Shape) -> list[float]:
    """Scale of the streams after each hidden stage, as far as the chain goes."""
    data, stream, found = list(chain.bits[:-1]), float(chain.input_bits), []
    for index, depth in enumerate(shape.depths):
        value = stream + chain.weight_bits[index]
        if chain.family != "merged":
            value -= data.pop()
        stream = 2 * value - data.pop()
        for _ in range(depth - 1):
            stream = 2 * stream - data.pop()
        found.append(stream)
    return found


def stage_noise(
    chain: Chain, shape: Shape, arrangements: Sequence[Arrangement], positions: int
) -> list[StageNoise] | None:
    """Scales and multiplicities of each stage, or None where a scale does not fit its primes."""
    data = list(chain.bits[:-1])
    stream, streams = float(chain.input_bits), arrangements[0].streams
    found = []
    for index, arrangement in enumerate(arrangements):
        product = stream + chain.weight_bits[index]
        last = index == len(shape.depths)
        reach = _answer_bits(shape, arrangement, positions) if last else 1
        if product + _HEADROOM_BITS + reach > (chain.bits[0] if last else sum(data)):
            return None
        primes = tuple(float(bits) for bits in data)
        rescaled = chain.family != "merged" and not last
        value = product - data.pop() if rescaled else product
        found.append(
            StageNoise(
                stream_bits=stream,
                weight_bits=float(chain.weight_bits[index]),
                product_bits=value,
                primes_bits=primes,
                baby_switches=_baby_switches(arrangement),
                giants=arrangement.giants,
                summed=float(arrangement.blocks(positions)),
                folded=not arrangement.unfolded,
                rescaled=rescaled,
                early=rescaled and chain.family == "early",
                fresh=index == 0,
                lazy=index > 0 and chain_is_lazy(chain, shape, index - 1),
                streams=streams,
                closing=arrangement.closing,
            )
        )
        if last:
            return found
        if 2 * value + 2 > sum(data) or value < 12:
            return None
        stream = 2 * value - data.pop()
        streams = arrangements[index + 1].streams
        for _ in range(shape.depths[index] - 1):
            if 2 * stream + 2 > sum(data):
                return None
            stream = 2 * stream - data.pop()
        if stream < 10 or stream + 2 > sum(data):
            return None
    raise PlanError("no stage")


def _baby_switches(arrangement: Arrangement) -> float:
    if arrangement.presented:
        return 0.0
    babies = min(arrangement.babies, arrangement.layout.stride)
    return (babies - 1) / 2 if arrangement.chained else (babies - 1) / babies
