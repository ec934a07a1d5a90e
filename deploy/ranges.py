"""Boxes that hold a network's pre-activations: proved by interval arithmetic, or seen on rows.

A proved box holds for every input of a declared box, rounding included: each bound is widened by the standard
dot-product error n u / (1 - n u) times the sum of magnitudes (Higham, "Accuracy and Stability of Numerical
Algorithms", 2nd ed., section 3.1), so that it also holds for the floating-point evaluation.

Axes: ``batch``, ``units``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from deploy.arrays import Array, frozen
from deploy.errors import InputError
from deploy.interface import Feature, InputGuard
from deploy.model import Mlp, Model

__all__ = ["Box", "calibrated_boxes", "calibration_guard", "input_box", "interval_boxes"]


@dataclass(frozen=True, eq=False)
class Box:
    """low <= value <= high, elementwise; (units,) each. `kind` is "proved" or "estimated" (seen on rows)."""

    low: Array
    high: Array
    kind: Literal["proved", "estimated"]

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", frozen(self.low, ndim=1))
        object.__setattr__(self, "high", frozen(self.high, ndim=1))
        if self.low.shape != self.high.shape or not (self.low <= self.high).all():
            raise InputError("the lower end of a box exceeds its upper end")

    @property
    def radius(self) -> Array:
        """(units,) largest magnitude."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    def contains(self, values: Array) -> Array:
        """Say which rows lie inside: (batch, units) -> (batch,) of bool."""
        return np.asarray(np.all((values >= self.low) & (values <= self.high), axis=1))


def interval_boxes(model: Mlp, box: Box) -> list[Box]:
    """Propagate an input box: one proved box per pre-activation, then one for the logits.

    Parameters
    ----------
    model : a feed-forward network.
    box : (n_in,) box of inputs; its kind is taken over, so a box seen on rows proves nothing.

    Raises
    ------
    InputError : values outgrow double precision.
    """
    found: list[Box] = []
    low, high = box.low, box.high
    for index, layer in enumerate(model.affines):
        positive, negative = np.maximum(layer.weight, 0.0), np.minimum(layer.weight, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            magnitude = np.abs(layer.weight) @ np.maximum(np.abs(low), np.abs(high)) + np.abs(layer.bias)
            slack = _dot_error(layer.n_in + 1) * magnitude
            below = positive @ low + negative @ high + layer.bias - slack
            above = positive @ high + negative @ low + layer.bias + slack
        if not (np.isfinite(below).all() and np.isfinite(above).all()):
            raise InputError(
                f"layer {index + 1} overflows double precision in the box of inputs", remedy="state a narrower box"
            )
        found.append(Box(below, above, box.kind))
        if index < len(model.activations):
            if model.activations[index] == "relu":
                low, high = np.maximum(below, 0.0), np.maximum(above, 0.0)
            else:
                with np.errstate(over="ignore"):
                    squares = below * below, above * above
                high = np.nextafter(np.maximum(*squares), np.inf)
                low = np.where((below <= 0) & (above >= 0), 0.0, np.minimum(*squares))
                low = np.maximum(np.nextafter(low, -np.inf), 0.0)
    return found


def _dot_error(terms: int) -> float:
    """Twice the relative bound of a dot product of `terms` terms: once for our sum, once for the evaluation's."""
    unit = terms * np.finfo(np.float64).eps / 2
    return 2 * unit / (1 - unit)


def calibrated_boxes(model: Model, x: Array, *, margin: float = 0.0) -> list[Box]:
    """Boxes seen on rows (batch, n_in): one per pre-activation, then one for the logits.

    Each is widened on both sides by `margin` times its width.
    """
    found = []
    for values in model.preactivations(x):
        low, high = values.min(axis=0), values.max(axis=0)
        widening = margin * (high - low)
        found.append(Box(low - widening, high + widening, "estimated"))
    return found


def input_box(guard: InputGuard) -> Box:
    """The box of a guard; proved where the user stated it."""
    return Box(guard.low, guard.high, "proved" if guard.source == "stated" else "estimated")


def calibration_guard(x: Array, names: tuple[str, ...] | None = None) -> InputGuard:
    """Box per feature from rows (batch, n_in), rounded outwards to two digits of its width.

    The rounding keeps exact extremes of the calibration rows out of what is shipped to clients.

    >>> guard = calibration_guard(np.array([[0.0, 3.17], [1.0, 7.42]]))
    >>> [(f.name, f.low, f.high) for f in guard.features]
    [('x0', 0.0, 1.0), ('x1', 3.1, 7.5)]
    """
    features = []
    for index, (low, high) in enumerate(zip(x.min(axis=0), x.max(axis=0), strict=True)):
        width = max(float(high - low), abs(float(high)) * 1e-3, np.finfo(np.float64).tiny)
        step = 10.0 ** (np.floor(np.log10(width)) - 1)
        name = names[index] if names is not None else f"x{index}"
        features.append(
            Feature(
                name,
                min(_tidy(np.floor(low / step) * step), float(low)),
                max(_tidy(np.ceil(high / step) * step), float(high)),
            )
        )
    return InputGuard(tuple(features), "calibration")


def _tidy(value: float) -> float:
    """Drop the binary noise of a decimal rounding."""
    return float(f"{value:.12g}") + 0.0
