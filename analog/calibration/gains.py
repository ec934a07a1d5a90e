"""Equalised gains: positive scales of hidden units, which a ReLU network does not notice.

relu(d z) = d relu(z) for d > 0, so W_l -> D_l W_l D_(l-1)^-1, b_l -> D_l b_l leaves the logits as they are. With
D_l = volts / (largest output of the unit over the calibration rows) every hidden unit uses the full scale, and the
constant error of its diode weighs as little as it can.

Axes: ``batch``, ``units``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deploy.arrays import Array
from deploy.model import Mlp

__all__ = ["ScaledNetwork", "scale_network", "unit_scales"]

_FLOOR = 0.02
"""A unit that hardly speaks is not amplified beyond 1 / _FLOOR times the layer's loudest: its weights would dwarf
every other conductance, and rows outside the calibration set would leave the rails."""

_INPUT_FLOOR = 0.1
"""The same for inputs, against the median input range."""


@dataclass(frozen=True, eq=False)
class ScaledNetwork:
    """A network in volts: layers (weight, bias) of hidden units and the readout, in logits."""

    input_volts_per_unit: Array
    layers: tuple[tuple[Array, Array], ...]
    readout: tuple[Array, Array]


def scale_network(model: Mlp, x: Array, *, full_scale_V: float, equalise: bool) -> ScaledNetwork:
    """Scale a network so that hidden outputs reach `full_scale_V` over rows x (batch, n_in).

    Without `equalise` one scale serves a layer: its loudest unit reaches full scale.
    """
    per_unit = full_scale_V / input_ranges(x)
    found, before = [], per_unit
    for affine, z in zip(model.affines[:-1], model.preactivations(x)[:-1], strict=True):
        scale = unit_scales(z, full_scale_V, equalise=equalise)
        found.append((scale[:, None] * affine.weight / before, scale * affine.bias))
        before = scale
    last = model.affines[-1]
    return ScaledNetwork(per_unit, tuple(found), (last.weight / before, np.array(last.bias)))


def unit_scales(z: Array, full_scale_V: float, *, equalise: bool) -> Array:
    """Volts per unit of each hidden unit from its pre-activations (batch, units): (units,)."""
    largest = np.maximum(z, 0.0).max(axis=0)
    loudest = float(largest.max())
    if loudest == 0.0:
        loudest = max(float(np.abs(z).max()), 1.0)
    floor = _FLOOR * loudest if equalise else loudest
    return np.asarray(full_scale_V / np.maximum(largest, floor))


def input_ranges(x: Array) -> Array:
    """Largest magnitude of each input, not below a share of the median one: (n_in,)."""
    ranges = np.abs(x).max(axis=0)
    spoken = ranges[ranges > 0]
    if not spoken.size:
        return np.ones_like(ranges)
    return np.asarray(np.maximum(ranges, _INPUT_FLOOR * float(np.median(spoken))))
