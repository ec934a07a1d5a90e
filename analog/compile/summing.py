"""Summing nodes: a row of weights as resistors from differential rails.

Row i of v = T h + c becomes resistors of gamma |T_ij| from the rail +h_j or -h_j, gamma |c_i| / V_b from +V_b or
-V_b, and a pad resistor to ground that brings every row to the same total G_t. The open-circuit voltage of the
node is then exactly (gamma / G_t) (T h + c)_i, and one gain A = G_t / gamma serves the whole layer.

Axes: ``rows``, ``rails``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analog.build import CircuitBuilder
from analog.circuit import GROUND, origins
from deploy.arrays import Array

__all__ = ["Rails", "Summing", "add_summing_rows", "plan_summing"]

_PAD_ROUNDING = 1e-13
"""A pad below this share of the total is rounding, not a part."""

_WEIGHT_ROUNDING = 1e-16
"""The same for a weight: against the layer's largest it is below the rounding of the sum (some trained networks hold
weights of 1e-33, resistors of 1e37 ohm)."""


@dataclass(frozen=True, slots=True)
class Rails:
    """Nodes of +h and -h (rails,) and of +V_b, -V_b."""

    plus: Array
    minus: Array
    bias_plus: int
    bias_minus: int


@dataclass(frozen=True, slots=True)
class Summing:
    """gamma (S per unit of T) and G_t (S) of a layer."""

    gamma_S: float
    total_S: float

    @property
    def gain(self) -> float:
        """A = G_t / gamma: what brings the open-circuit voltage back to T h + c."""
        return self.total_S / self.gamma_S


def plan_summing(weight: Array, bias: Array, *, max_conductance_S: float, bias_rail_V: float) -> Summing:
    """Choose gamma so that the largest conductance is `max_conductance_S`; weight (rows, rails), bias (rows,)."""
    scaled = np.abs(bias) / bias_rail_V
    largest = max(float(np.abs(weight).max(initial=0.0)), float(scaled.max(initial=0.0)))
    if largest == 0.0:
        return Summing(max_conductance_S, max_conductance_S)
    gamma = max_conductance_S / largest
    return Summing(gamma, float(gamma * (np.abs(weight).sum(axis=1) + scaled).max()))


def add_summing_rows(
    wires: CircuitBuilder,
    rails: Rails,
    weight: Array,
    bias: Array,
    summing: Summing,
    *,
    layer: int,
    bias_rail_V: float,
    names: Sequence[str],
) -> Array:
    """Add the summing nodes of a layer, named `names`, with their resistors; gives the nodes (rows,)."""
    rows, _ = weight.shape
    weight = np.where(np.abs(weight) > _WEIGHT_ROUNDING * np.abs(weight).max(initial=0.0), weight, 0.0)
    nodes = wires.nodes(names, origins("sum", rows, layer=layer, unit=np.arange(rows)))
    i, j = np.nonzero(weight)
    if i.size:
        sign = np.sign(weight[i, j]).astype(int)
        wires.resistor(
            np.where(sign > 0, rails.plus[j], rails.minus[j]),
            nodes[i],
            1 / (summing.gamma_S * np.abs(weight[i, j])),
            origins("weight", len(i), layer=layer, unit=i, source=j, sign=sign),
        )
    (k,) = np.nonzero(bias)
    if k.size:
        sign = np.sign(bias[k]).astype(int)
        wires.resistor(
            np.where(sign > 0, rails.bias_plus, rails.bias_minus),
            nodes[k],
            bias_rail_V / (summing.gamma_S * np.abs(bias[k])),
            origins("bias", len(k), layer=layer, unit=k, sign=sign),
        )
    pad = summing.total_S - summing.gamma_S * (np.abs(weight).sum(axis=1) + np.abs(bias) / bias_rail_V)
    (k,) = np.nonzero(pad > _PAD_ROUNDING * summing.total_S)
    if k.size:
        wires.resistor(nodes[k], GROUND, 1 / pad[k], origins("pad", len(k), layer=layer, unit=k))
    return nodes
