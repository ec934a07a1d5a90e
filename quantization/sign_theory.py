"""Sign flips against magnitude noise behind an RMSNorm: exact finite-rate figures, and their measurement.

Setting of the sign-magnitude analysis (Dong, arXiv 2605.18933; companion code donglei628/sign-magnitude-pre-norm):
``y = W2 relu(W1 x)``, W1 ~ N(0, 1/n), W2 ~ N(0, 1/m), x on the unit sphere; W1 is changed, W2 is not, and an
RMSNorm follows, whose derivative removes the part of a change along y. What is left is the *transverse* energy
``|δy|² - (ŷ·δy)²``.

Two changes of equal Frobenius norm are compared. Sign flips at rate p: ``-2 W ⊙ M``, M Bernoulli(p). Magnitude
noise that keeps signs: ``δ sign(W)`` with *one* δ for the matrix; with random δ of mean zero the ratio below is
1, so the definition decides the result.

With the arc-cosine kernel ``K(s, ρ) = E[relu(u) relu(v)]`` of Gaussians of variances 1 and s² and correlation ρ
(Cho and Saul, 2009), ``K = s (sin t + (π - t) cos t) / 2π``, t = arccos ρ, all figures are exact for every p as
n grows (docs/ternary.md derives them):

    T_sign = 1/2 - 2 K(1, 1 - 2p)²
    T_mag  = v/2 - 2 K(√v, (1 + dC)/√v)²,    d = 2√p,  C = √(2/π),  v = 1 + 2dC + d²
    c(p)   = T_sign / T_mag -> 1/(1 - 2/π) = 2.7519 as p -> 0

These are theorems about random Gaussian layers. On trained layers with real inputs the ratio can be below 1: it
is a diagnostic, not a guarantee, and nothing in the quantisers relies on it.

Axes: ``n`` inputs, ``m`` hidden units, ``rows``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deploy.arrays import Array

__all__ = [
    "EnergySplit",
    "arc_cosine_kernel",
    "column_leverage_ratio",
    "measure_transverse_ratio",
    "radial_fraction_of_signs",
    "rms_norm",
    "rms_norm_derivative",
    "split_energy",
    "transverse_ratio",
    "transverse_ratio_asymptotic",
]

_C = np.sqrt(2 / np.pi)


def rms_norm(y: Array, *, epsilon: float = 0.0) -> Array:
    """Rows y (rows, n) over their root mean square."""
    return np.asarray(y / np.sqrt(np.mean(y**2, axis=-1, keepdims=True) + epsilon))


def rms_norm_derivative(y: Array, change: Array) -> Array:
    """Derivative of :func:`rms_norm` at y (rows, n) along `change` (rows, n): the part across y over its RMS."""
    unit = y / np.linalg.norm(y, axis=-1, keepdims=True)
    across = change - np.sum(unit * change, axis=-1, keepdims=True) * unit
    return np.asarray(across / np.sqrt(np.mean(y**2, axis=-1, keepdims=True)))


@dataclass(frozen=True, slots=True)
class EnergySplit:
    """Energy of a change along y and across it, summed over rows."""

    radial: float
    transverse: float


def split_energy(y: Array, change: Array) -> EnergySplit:
    """Split changes (rows, n) of y (rows, n)."""
    unit = y / np.linalg.norm(y, axis=-1, keepdims=True)
    radial = float(np.sum(np.sum(unit * change, axis=-1) ** 2))
    return EnergySplit(radial, float(np.sum(change**2)) - radial)


def arc_cosine_kernel(s: float, correlation: float) -> float:
    """E[relu(u) relu(v)] of Gaussians u, v with variances 1 and s² and this correlation.

    >>> round(arc_cosine_kernel(1.0, 1.0), 12), round(arc_cosine_kernel(1.0, 0.0) * 2 * np.pi, 12)
    (0.5, 1.0)
    """
    t = np.arccos(np.clip(correlation, -1.0, 1.0))
    return float(s * (np.sin(t) + (np.pi - t) * np.cos(t)) / (2 * np.pi))


def transverse_ratio(p: float) -> float:
    """c(p), transverse energy of sign flips at rate p over that of sign-preserving noise of equal norm, n -> ∞.

    >>> [round(transverse_ratio(p), 4) for p in (0.001, 0.01, 0.1)]
    [2.7334, 2.6683, 2.292]
    """
    flips = 0.5 - 2 * arc_cosine_kernel(1.0, 1 - 2 * p) ** 2
    d = 2 * np.sqrt(p)
    v = 1 + 2 * d * _C + d**2
    noise = v / 2 - 2 * arc_cosine_kernel(float(np.sqrt(v)), float((1 + d * _C) / np.sqrt(v))) ** 2
    return float(flips / noise)


def transverse_ratio_asymptotic(p: float) -> float:
    """The paper's formula for small p (its Theorem 3), for comparison.

    >>> round(transverse_ratio_asymptotic(0.01), 3)
    2.61
    """
    radial = p - 4 * p**1.5 / (3 * np.pi)
    return float((1 - radial) / (1 - 2 / np.pi) * (1 - 4 * np.sqrt(p) / (3 * np.pi)))


def column_leverage_ratio(n: int, alpha: float) -> float:
    """Energy of a flip in a column of amplitude alpha (x_j² / |x|² = alpha²) over that in an average other column.

    A flip of one weight in such a column is a sign flip at rate alpha² for its unit; n alpha² for small alpha.

    >>> round(column_leverage_ratio(1024, 0.1), 2)
    10.03
    """

    def energy(share: float) -> float:
        return 1 - 2 * arc_cosine_kernel(1.0, 1 - 2 * share)

    return energy(alpha**2) / energy((1 - alpha**2) / (n - 1))


def radial_fraction_of_signs() -> float:
    """Share of the change relu(s sign(W) x) - relu(W x) that lies along relu(W x), s = mean |W|, n -> ∞.

    >>> round(radial_fraction_of_signs(), 6)
    0.364893
    """
    s = float(_C)
    inner = arc_cosine_kernel(s, s)
    change = s**2 / 2 + 0.5 - 2 * inner
    return float((inner - 0.5) ** 2 / 0.5 / change)


def measure_transverse_ratio(
    rng: np.random.Generator, *, n: int, p: float, trials: int, rows: int = 500
) -> tuple[float, float]:
    """c(p) measured at width n: mean over trials of the ratio of sums, and its standard error."""
    ratios = []
    for _ in range(trials):
        first, second = rng.normal(size=(2, n, n)) / np.sqrt(n)
        x = rng.normal(size=(rows, n))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        mask = rng.random((n, n)) < p
        flips = -2 * first * mask
        noise = np.sign(first) * (np.linalg.norm(flips) / n)
        clean = np.maximum(x @ first.T, 0.0)
        y = clean @ second.T
        energies = [
            split_energy(y, (np.maximum(x @ (first + change).T, 0.0) - clean) @ second.T).transverse
            for change in (flips, noise)
        ]
        ratios.append(energies[0] / energies[1])
    return float(np.mean(ratios)), float(np.std(ratios, ddof=1) / np.sqrt(trials))
