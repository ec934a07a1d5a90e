"""Orthonormal polynomials of each hidden unit's pre-activation, over the calibration rows.

Fitting in raw powers is hopeless (condition 1e4 at degree 2, far worse at 6); in these bases least squares is an
inner product, and the squared distance between two coefficient vectors is the mean squared distance between the two
activations over the rows.

Axes: ``batch``, ``units``, ``powers`` (1 to degree: the constant is kept apart).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np

from deploy.arrays import Array

__all__ = ["UnitBasis"]

_DEGENERATE = 1e-9
"""A polynomial whose norm falls below this share of its predecessor's is noise: the unit took too few values."""


@dataclass(frozen=True, slots=True, eq=False)
class UnitBasis:
    """Polynomials q_1 … q_degree of every unit, orthonormal with each other and with 1 over the rows.

    They obey the three-term recurrence (Stieltjes)
    ``scale_k q_k = (t - shift_k) q_{k-1} - scale_{k-1} q_{k-2}`` with ``t = (z - mean) / std`` and ``q_0 = 1``.

    Parameters
    ----------
    mean, std : (units,) of the pre-activation; std is 1 for a constant unit.
    shift, scale : (degree, units) of the recurrence; a scale of 0 means that q_k is 0.
    """

    mean: Array
    std: Array
    shift: Array
    scale: Array

    @property
    def degree(self) -> int:
        """Number of polynomials beside the constant."""
        return len(self.shift)

    @classmethod
    def over(cls, z: Array, degree: int) -> UnitBasis:
        """Build the polynomials over rows z (batch, units)."""
        mean, std = z.mean(axis=0), z.std(axis=0)
        tiny = std <= _DEGENERATE * np.maximum(np.abs(mean), np.abs(z).max(axis=0))
        std = np.where(tiny, 1.0, std)
        t = (z - mean) / std
        before, here = np.zeros_like(t), np.ones_like(t)
        shifts, scales, last = [], [], np.zeros(z.shape[1])
        for _ in range(degree):
            shift = np.einsum("nu,nu,nu->u", t, here, here) / len(t)
            raw = (t - shift) * here - last * before
            norm = np.sqrt(np.einsum("nu,nu->u", raw, raw) / len(t))
            scale = np.where((norm > _DEGENERATE) & ~tiny & here.any(axis=0), norm, 0.0)
            before, here = here, raw * _reciprocal(scale)
            shifts.append(shift)
            scales.append(scale)
            last = scale
        return cls(mean, std, np.array(shifts), np.array(scales))

    def values(self, z: Array) -> Array:
        """Evaluate at rows z (batch, units): (powers, batch, units)."""
        return self._run(z, with_slopes=False)[0]

    def values_and_slopes(self, z: Array) -> tuple[Array, Array]:
        """Evaluate the polynomials and their derivatives by z: (powers, batch, units) each."""
        return self._run(z, with_slopes=True)

    def _run(self, z: Array, *, with_slopes: bool) -> tuple[Array, Array]:
        t = (z - self.mean) / self.std
        values = np.empty((self.degree, *z.shape))
        slopes = np.empty((self.degree, *z.shape)) if with_slopes else values
        before: Array | float = 0.0
        here: Array | float = 1.0
        slope_before: Array | float = 0.0
        slope_here: Array | float = 0.0
        last: Array | float = 0.0
        for k in range(self.degree):
            inverse = _reciprocal(self.scale[k])
            centred = t - self.shift[k]
            following = (centred * here - last * before) * inverse
            if with_slopes:
                slope = (centred * slope_here + here / self.std - last * slope_before) * inverse
                slope_before, slope_here = slope_here, slope
                slopes[k] = slope
            before, here = here, following
            values[k] = following
            last = self.scale[k]
        return values, slopes

    def monomials(self) -> Array:
        """Coefficients of q_k in ascending powers of z itself: (powers, units, degree + 1)."""
        units = len(self.mean)
        in_t = np.zeros((self.degree + 1, units, self.degree + 1))
        in_t[0, :, 0] = 1.0
        last = np.zeros(units)
        for k in range(self.degree):
            following = np.zeros((units, self.degree + 1))
            following[:, 1:] = in_t[k][:, :-1]
            following -= self.shift[k][:, None] * in_t[k]
            if k:
                following -= last[:, None] * in_t[k - 1]
            in_t[k + 1] = following * _reciprocal(self.scale[k])[:, None]
            last = self.scale[k]
        in_z = np.zeros((self.degree, units, self.degree + 1))
        for power in range(self.degree + 1):
            for lower in range(power + 1):
                factor = comb(power, lower) * (-self.mean) ** (power - lower) / self.std**power
                in_z[:, :, lower] += in_t[1:, :, power] * factor
        return in_z


def _reciprocal(values: Array) -> Array:
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > 0)
