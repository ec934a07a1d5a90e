"""How far decrypted logits may lie from the network's, by a model of where noise comes from.

Every source adds an error polynomial with independent coefficients; evaluated at a slot, a coefficient variance v
becomes a variance N v of the complex value, of which the real part, all that is read, gets half. With scale s of the
ciphertext, in units of slot values:

==================  ==========================================================================================
fresh ciphertext    N sigma² / s²                                (symmetric encryption, sigma = 3.24)
encoding            N / 12 / s²                                  (rounding to integers; deterministic)
rescale             N (1 + 2N/3) / 12 / s²                       (rounding both polynomials; ternary secret)
key switching       N (N sigma² sum(q_i²) / 3 p² + (1 + 2N/3) / 12) / s² (digits in [0, q_i), not centred)
==================  ==========================================================================================

(Cheon, Kim, Kim, Song, ASIACRYPT 2017, for the terms; ternary secrets have variance 2/3.) An error of one value
reaches the logits through the derivative of what follows. Sources count as independent, which is an assumption:
figures from here are *estimated*, and the bound is `certainty` standard deviations.

Axes: ``n_out``, ``units``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from deploy.arrays import Array
from fhe.plan.stages import Ranges, Stage

__all__ = [
    "CERTAINTY",
    "Sensitivity",
    "StageNoise",
    "largest",
    "logit_sigma",
    "sensitivities_at",
    "sensitivities_over",
]

CERTAINTY = 8.0
"""Standard deviations that the bound stands for: 6 for the many logits, times 4/3 for what the model leaves out."""

SIGMA = 3.24
"""Standard deviation of SEAL's error distribution (a centred binomial)."""


def fresh_variance(n: int) -> float:
    """Variance of a slot of a fresh symmetric ciphertext at scale 1, the encoding of its plaintext included."""
    return float(n * SIGMA**2 + encoding_variance(n))


def encoding_variance(n: int) -> float:
    """Variance of a slot of a plaintext at scale 1."""
    return n / 12


def rescale_variance(n: int) -> float:
    """Variance that a rescale adds, at the scale after it."""
    return n * (1 + 2 * n / 3) / 12


def lazy_rescale_variance(n: int) -> float:
    """Variance that rescaling three polynomials adds: the third is multiplied by the square of the secret."""
    return n * (1 + 2 * n / 3 + 4 * n * n / 9) / 12


@lru_cache(maxsize=4096)
def key_switch_variance(n: int, primes_bits: tuple[float, ...], special_bits: float) -> float:
    """Variance that a rotation, conjugation or relinearisation adds at scale 1, with these data primes left."""
    ratio: float = sum(4.0 ** (bits - special_bits) for bits in primes_bits)
    return n * (n * SIGMA**2 * ratio / 3) + rescale_variance(n)


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """How errors in one stage reach each logit; (n_out,) each, or one number for the worst logit; sums of squares.

    Parameters
    ----------
    streams : of independent unit errors in each entry of the streams that come in.
    weights : of independent unit errors in each plaintext slot that multiplies them.
    values : of independent unit errors in each value that comes out.
    """

    streams: Array | float
    weights: Array | float
    values: Array | float


def sensitivities_over(stages: Sequence[Stage], ranges: Ranges, exponents: Sequence[Array]) -> list[Sensitivity]:
    """Sensitivities at the worst of many points of the ranges.

    Derivatives after the last hidden layer are taken at their largest magnitude over the range; those of earlier
    layers at points drawn from a fixed sequence.
    """
    lows = [np.ldexp(box.low, -e) for box, e in zip(ranges.preactivations, exponents, strict=True)]
    highs = [np.ldexp(box.high, -e) for box, e in zip(ranges.preactivations, exponents, strict=True)]
    energy = [float(_scaled_energy(stages[0]))]
    for low, high, stage in zip(lows, highs, stages, strict=False):
        radius = np.maximum(np.abs(low), np.abs(high))
        energy.append(float(sum((np.abs(s) ** 2).sum() for s in stage.streams(radius[None]))))
    draws = 8 if len(stages) > 2 else 1
    rng = np.random.default_rng(0)
    found: list[list[Sensitivity]] = []
    for _ in range(draws):
        z = [rng.uniform(low, high) for low, high in zip(lows, highs, strict=True)]
        jacobians = [_jacobian(stages[i], stages[i + 1], z[i]) for i in range(len(z))]
        if jacobians:
            points = np.linspace(lows[-1], highs[-1], 9)
            jacobians[-1] = np.max([np.abs(_jacobian(stages[-2], stages[-1], point)) for point in points], axis=0)
        found.append(_sensitivities(stages, jacobians, energy))
    return largest(found)


def largest(found: Sequence[Sequence[Sensitivity]]) -> list[Sensitivity]:
    """The largest of several sensitivities of the same stages, each figure by itself."""
    return [
        Sensitivity(
            np.max([one.streams for one in stage], axis=0),
            np.max([one.weights for one in stage], axis=0),
            np.max([one.values for one in stage], axis=0),
        )
        for stage in zip(*found, strict=True)
    ]


def sensitivities_at(stages: Sequence[Stage], streams: Sequence[Array]) -> list[Sensitivity]:
    """Sensitivities at one row, given its input streams (1, columns) each."""
    energy, jacobians = [], []
    given = list(streams)
    for index, stage in enumerate(stages):
        energy.append(float(sum((np.abs(stream) ** 2).sum() for stream in given)))
        z = stage.values(given)
        if index + 1 < len(stages):
            jacobians.append(_jacobian(stage, stages[index + 1], z[0]))
            given = stage.streams(z)
    return _sensitivities(stages, jacobians, energy)


def _scaled_energy(first: Stage) -> float:
    """Sum of squares of a scaled input at its largest: every feature at the end of its box."""
    per_entry = 2.0 if first.is_complex else 1.0
    return per_entry * float(sum(matrix.shape[1] for matrix in first.matrices))


def _jacobian(stage: Stage, after: Stage, z: Array) -> Array:
    """(after.rows, stage.rows): derivative of the next values by these, at z (rows,)."""
    total = np.zeros((after.rows, stage.rows))
    for k, matrix in enumerate(after.matrices, 1):
        slope = 2 * k * z ** (2 * k - 1)
        total += matrix.real * slope
        if stage.odd:
            total -= matrix.imag * ((2 * k - 1) * z ** (2 * k - 2))
    return total


def _sensitivities(
    stages: Sequence[Stage], jacobians: Sequence[Array], energy: Sequence[float]
) -> list[Sensitivity]:
    found: list[Sensitivity] = []
    reach: Array | None = None  # the identity, which is never built: there may be thousands of outputs
    for index in reversed(range(len(stages))):
        row_norms = np.sum([(np.abs(matrix) ** 2).sum(axis=1) for matrix in stages[index].matrices], axis=0)
        squares = None if reach is None else reach**2
        total = np.ones(stages[-1].rows) if squares is None else squares.sum(axis=1)
        streams = row_norms if squares is None else squares @ row_norms
        found.append(Sensitivity(streams, total * energy[index], total))
        if index:
            reach = jacobians[index - 1] if reach is None else reach @ jacobians[index - 1]
    return found[::-1]


@dataclass(frozen=True, slots=True)
class StageNoise:
    """Scales (log2) and multiplicities of one stage, as far as noise is concerned.

    Parameters
    ----------
    stream_bits : scale of the streams that come in (of the least precise).
    weight_bits : scale of the plaintexts.
    product_bits : scale of what comes out, after its rescale if it has one.
    primes_bits : data primes left during the product.
    baby_switches : key switches that an average baby rotation has gone through.
    giants : giant steps.
    summed : how many blocks are summed.
    folded : whether rotations sum them; otherwise the client does, which adds no noise.
    rescaled : whether a rescale follows the product.
    early : whether it comes before the folds.
    lazy : whether the streams were relinearised after their rescale.
    fresh : whether the streams are fresh ciphertexts.
    streams : number of streams.
    closing : whether the product and its conjugate are added, which doubles what it has gathered.
    """

    stream_bits: float
    weight_bits: float
    product_bits: float
    primes_bits: tuple[float, ...]
    baby_switches: float
    giants: int
    summed: float
    folded: bool
    rescaled: bool
    early: bool
    fresh: bool
    lazy: bool
    streams: int
    closing: bool


def logit_sigma(
    n: int, special_bits: float, stages: Sequence[StageNoise], sensitivities: Sequence[Sensitivity]
) -> Array:
    """(n_out,) standard deviation of each logit's error."""
    variance: Array | float = 0.0
    for stage, sensitivity in zip(stages, sensitivities, strict=True):
        switch = key_switch_variance(n, stage.primes_bits, special_bits)
        arriving = (
            fresh_variance(n) if stage.fresh else stage.streams * (rescale_variance(n) + encoding_variance(n))
        )
        streams = (arriving + stage.baby_switches * switch) * 4.0**-stage.stream_bits
        doubled = 4.0 if stage.closing else 1.0
        weights = doubled * encoding_variance(n) * 4.0**-stage.weight_bits
        values = _value_variance(n, special_bits, stage)
        variance = variance + sensitivity.streams * streams + sensitivity.weights * weights
        variance = variance + sensitivity.values * values
    return np.asarray(np.sqrt(variance / 2))


def _value_variance(n: int, special_bits: float, stage: StageNoise) -> float:
    """What giant steps, folds, conjugation, bias and rescale add to each value, in its own units."""
    doubled = 4.0 if stage.closing else 1.0
    before, after = 4.0 ** -(stage.stream_bits + stage.weight_bits), 4.0**-stage.product_bits
    switch = key_switch_variance(n, stage.primes_bits, special_bits)
    giants = doubled * stage.giants * stage.summed * switch
    if not stage.early:
        folds = doubled * (stage.summed * stage.folded + float(stage.closing)) * switch
        rescale = rescale_variance(n) * after if stage.rescaled else 0.0
        return float((giants + folds + encoding_variance(n)) * before + rescale)
    low = key_switch_variance(n, stage.primes_bits[:-1], special_bits)
    folds = doubled * (stage.summed * (low + rescale_variance(n)) + float(stage.closing) * low)
    return float(giants * before + (folds + encoding_variance(n)) * after)
