"""Networks in floating point together with a proved bound of their error.

A dot product of n terms errs by at most ``n u / (1 - n u)`` times the sum of magnitudes, in any order of summation
(Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 3.1); u = 2⁻⁵³. Bounds are themselves
computed in floating point, so every one is raised by a factor that covers their own rounding.

Axes: ``batch``, ``units``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Enclosed"]

_UNIT = 2.0**-53
_RAISE = 1.0 + 2.0**-30
"""Covers the rounding of a bound's own arithmetic: sums of up to a million non-negative terms."""
_TINY = 1e-300


@dataclass(frozen=True, slots=True, eq=False)
class Enclosed:
    """|true - value| <= error, elementwise; (batch, units) each."""

    value: Any
    error: Any

    @classmethod
    def of(cls, values: Any) -> Enclosed:
        """Floats that are exact."""
        return cls(values, np.zeros_like(values))

    def affine(self, weight: Any, bias: Any) -> Enclosed:
        """``self @ weight.T + bias``."""
        size = np.abs(weight)
        value = self.value @ weight.T + bias
        magnitude = np.abs(self.value) @ size.T + np.abs(bias)
        terms = weight.shape[1] + 2
        error = self.error @ size.T + magnitude * (terms * _UNIT / (1 - terms * _UNIT))
        return Enclosed(value, error * _RAISE + _TINY)

    def relu(self) -> Enclosed:
        """max(0, ·) never stretches an error."""
        return Enclosed(np.maximum(self.value, 0.0), self.error)

    def polynomial(self, coefficients: Any) -> Enclosed:
        """One polynomial per column; coefficients (units, powers). Horner errs by 2 · degree roundings at most."""
        degree = coefficients.shape[1] - 1
        value = np.broadcast_to(coefficients[:, -1], self.value.shape)
        size = np.abs(self.value) + self.error
        magnitude = np.broadcast_to(np.abs(coefficients[:, -1]), self.value.shape)
        slope = np.zeros_like(self.value)
        for power in range(degree - 1, -1, -1):
            slope = slope * size + magnitude
            value = value * self.value + coefficients[:, power]
            magnitude = magnitude * size + np.abs(coefficients[:, power])
        terms = 2 * degree + 2
        error = slope * self.error + magnitude * (terms * _UNIT / (1 - terms * _UNIT))
        return Enclosed(np.asarray(value), error * _RAISE + _TINY)
