"""Networks on exact integers: a float is an integer times a power of two, so no step rounds.

Axes: ``batch``, ``units``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

__all__ = ["Exact"]


@dataclass(frozen=True, slots=True, eq=False)
class Exact:
    """An array of integers (dtype object) times ``2**-shift``."""

    whole: Any
    shift: int

    @classmethod
    def of(cls, values: Any) -> Self:
        """Take floats as they are."""
        array = np.asarray(values, dtype=np.float64)
        flat = [float(value).as_integer_ratio() for value in array.ravel()]
        shift = max((bottom.bit_length() - 1 for _, bottom in flat), default=0)
        whole = np.empty(len(flat), dtype=object)
        whole[:] = [top << (shift - (bottom.bit_length() - 1)) for top, bottom in flat]
        return cls(whole.reshape(array.shape), shift)

    def at_shift(self, shift: int) -> Any:
        """The integers for a larger shift."""
        return self.whole * (1 << (shift - self.shift))

    def plus(self, other: Exact) -> Exact:
        """Sum, with broadcasting."""
        shift = max(self.shift, other.shift)
        return Exact(self.at_shift(shift) + other.at_shift(shift), shift)

    def times(self, other: Exact) -> Exact:
        """Elementwise product, with broadcasting."""
        return Exact(self.whole * other.whole, self.shift + other.shift)

    def affine(self, weight: Any, bias: Any) -> Exact:
        """``self @ weight.T + bias`` for floats weight (n_out, n_in) and bias (n_out,)."""
        factor = Exact.of(weight)
        return Exact(self.whole @ factor.whole.T, self.shift + factor.shift).plus(Exact.of(bias))

    def relu(self) -> Exact:
        """max(0, ·)."""
        return Exact(np.maximum(self.whole, 0), self.shift)

    def polynomial(self, coefficients: Any) -> Exact:
        """One polynomial per column; coefficients (units, powers) as floats."""
        value = Exact.of(np.broadcast_to(coefficients[:, -1], self.whole.shape))
        for power in range(coefficients.shape[1] - 2, -1, -1):
            value = value.times(self).plus(Exact.of(coefficients[:, power]))
        return value
