"""Rails: what inputs, biases and hidden units offer to the next row of resistors, and what clamps hang on."""

from __future__ import annotations

import numpy as np

from analog.build import CircuitBuilder
from analog.circuit import GROUND, origins
from analog.compile.summing import Rails
from deploy.arrays import Array

__all__ = ["add_clamp_rail", "add_input_rails", "buffer_rails"]


def add_input_rails(wires: CircuitBuilder, volts_per_unit: Array, bias_rail_V: float) -> Rails:
    """Differential sources +-x_j volts_per_unit_j (n_in,) and the bias rails."""
    n_in = len(volts_per_unit)
    index = np.arange(n_in)
    plus = wires.nodes([f"x{j}" for j in range(n_in)], origins("positive rail", n_in, unit=index))
    minus = wires.nodes([f"x{j} inverted" for j in range(n_in)], origins("negative rail", n_in, unit=index))
    for nodes, sign in ((plus, 1), (minus, -1)):
        marks = origins("input", n_in, source=index, sign=sign)
        wires.voltage_source(nodes, GROUND, 0.0, input=index, per_unit=sign * volts_per_unit, origin=marks)
    bias = wires.nodes(["bias rail", "bias rail inverted"], origins("bias rail", 2, sign=[1, -1]))
    volts = bias_rail_V * np.array([1.0, -1.0])
    wires.voltage_source(bias, GROUND, volts, origin=origins("bias rail", 2, sign=[1, -1]))
    return Rails(plus, minus, int(bias[0]), int(bias[1]))


def buffer_rails(wires: CircuitBuilder, hidden: Array, rails: Rails, *, layer: int) -> Rails:
    """A buffer and an inverter for each hidden node (units,); bias rails stay."""
    units = len(hidden)
    index = np.arange(units)
    found = []
    for word, sign in (("positive", 1), ("negative", -1)):
        names = [f"layer {layer} {word} {i}" for i in range(units)]
        marks = origins(f"{word} rail", units, layer=layer, unit=index, sign=sign)
        nodes = wires.nodes(names, marks)
        wires.vcvs(nodes, GROUND, hidden, GROUND, float(sign), marks)
        found.append(nodes)
    return Rails(found[0], found[1], rails.bias_plus, rails.bias_minus)


def add_clamp_rail(wires: CircuitBuilder, volts: float, layer: int) -> int:
    """A source of the clamp rail of a layer; ground where it is 0 V."""
    if volts == 0.0:
        return GROUND
    sign = 1 if volts > 0 else -1
    marks = origins("clamp rail", 1, layer=layer, sign=sign)
    rail = wires.node(f"layer {layer} clamp rail{'' if sign > 0 else ' inverted'}", marks)
    wires.voltage_source(rail, GROUND, volts, origin=marks)
    return rail
