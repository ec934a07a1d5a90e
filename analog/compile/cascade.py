"""The cascade: a feed-forward ReLU network as layers of summing nodes and rectifier cells.

Every hidden unit has a summing node, an amplifier of the layer's gain, a cell, a buffer and an inverter; inputs are
differential sources. Voltages are v = T h + c with T, c in volts (:class:`CascadeDesign`); the summing node of a
logit is read directly.

Axes: ``batch``, ``n_in``, ``units``, ``n_out``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analog.build import CircuitBuilder
from analog.circuit import GROUND, Circuit, origins
from analog.compile.cells import Cell
from analog.compile.parts import Parts
from analog.compile.summing import Rails, Summing, add_summing_rows, plan_summing
from deploy.arrays import Array

__all__ = ["CascadeDesign", "CellLayer", "compile_cascade"]


@dataclass(frozen=True, eq=False)
class CellLayer:
    """One hidden layer in volts: u = weight h + bias (volts), then a cell with `rail_V`."""

    weight: Array
    bias: Array
    rail_V: float

    def plan(self, parts: Parts) -> Summing:
        """gamma and G_t of this layer."""
        return plan_summing(
            self.weight, self.bias, max_conductance_S=parts.max_conductance_S, bias_rail_V=parts.bias_rail_V
        )


@dataclass(frozen=True, eq=False)
class CascadeDesign:
    """A network in volts: everything that decides the circuit.

    Parameters
    ----------
    input_volts_per_unit : (n_in,) an input x_j is the differential pair +-x_j times this.
    layers : hidden layers.
    readout, readout_bias : logits = readout h + readout_bias; (n_out, units) logits per volt, (n_out,) logits.
    """

    parts: Parts
    input_volts_per_unit: Array
    layers: tuple[CellLayer, ...]
    readout: Array
    readout_bias: Array


def compile_cascade(design: CascadeDesign, *, title: str = "ReLU cascade") -> Circuit:
    """Build the circuit of a design."""
    parts = design.parts
    wires = CircuitBuilder(title)
    rails = _inputs(wires, design)
    for layer, cells in enumerate(design.layers):
        rails = _hidden_layer(wires, rails, cells, parts, layer)
    depth = len(design.layers)
    summing = plan_summing(
        design.readout,
        design.readout_bias,
        max_conductance_S=parts.max_conductance_S,
        bias_rail_V=parts.bias_rail_V,
    )
    outputs = add_summing_rows(
        wires,
        rails,
        design.readout,
        design.readout_bias,
        summing,
        layer=depth,
        bias_rail_V=parts.bias_rail_V,
        names=[f"logit {k}" for k in range(len(design.readout_bias))],
    )
    return wires.build(outputs=outputs, n_in=len(design.input_volts_per_unit), volts_per_unit=1 / summing.gain)


def _inputs(wires: CircuitBuilder, design: CascadeDesign) -> Rails:
    n_in = len(design.input_volts_per_unit)
    index = np.arange(n_in)
    plus = wires.nodes([f"x{j}" for j in range(n_in)], origins("positive rail", n_in, unit=index))
    minus = wires.nodes([f"x{j} inverted" for j in range(n_in)], origins("negative rail", n_in, unit=index))
    for nodes, sign in ((plus, 1), (minus, -1)):
        wires.voltage_source(
            nodes,
            GROUND,
            0.0,
            input=index,
            per_unit=sign * design.input_volts_per_unit,
            origin=origins("input", n_in, source=index, sign=sign),
        )
    bias = wires.nodes(["bias rail", "bias rail inverted"], origins("bias rail", 2, sign=[1, -1]))
    volts = design.parts.bias_rail_V * np.array([1.0, -1.0])
    wires.voltage_source(bias, GROUND, volts, origin=origins("bias rail", 2, sign=[1, -1]))
    return Rails(plus, minus, int(bias[0]), int(bias[1]))


def _hidden_layer(wires: CircuitBuilder, rails: Rails, cells: CellLayer, parts: Parts, layer: int) -> Rails:
    units = len(cells.bias)
    index = np.arange(units)

    def named(what: str) -> list[str]:
        return [f"layer {layer} {what} {i}" for i in range(units)]

    def mark(role: str, sign: int = 0) -> Array:
        return origins(role, units, layer=layer, unit=index, sign=sign)

    summing = cells.plan(parts)
    sums = add_summing_rows(
        wires,
        rails,
        cells.weight,
        cells.bias,
        summing,
        layer=layer,
        bias_rail_V=parts.bias_rail_V,
        names=named("sum"),
    )
    amplified = wires.nodes(named("amplified"), mark("amplified"))
    wires.vcvs(amplified, GROUND, sums, GROUND, summing.gain, mark("gain"))
    if parts.cell.kind == "shunt":
        hidden = amplified
        wires.diode(_clamp_rail(wires, cells, layer), sums, parts.cell.diode, mark("clamp"))
    else:
        hidden = wires.nodes(named("hidden"), mark("hidden"))
        _add_cells(wires, parts.cell, cells, amplified, hidden, layer)
    plus = wires.nodes(named("positive"), mark("positive rail"))
    minus = wires.nodes(named("negative"), mark("negative rail"))
    wires.vcvs(plus, GROUND, hidden, GROUND, 1.0, mark("positive rail", 1))
    wires.vcvs(minus, GROUND, hidden, GROUND, -1.0, mark("negative rail", -1))
    return Rails(plus, minus, rails.bias_plus, rails.bias_minus)


def _clamp_rail(wires: CircuitBuilder, cells: CellLayer, layer: int) -> int:
    if cells.rail_V == 0.0:
        return GROUND
    rail = wires.node(f"layer {layer} clamp rail", origins("clamp rail", 1, layer=layer))
    wires.voltage_source(rail, GROUND, cells.rail_V, origin=origins("clamp rail", 1, layer=layer))
    return rail


def _add_cells(
    wires: CircuitBuilder, cell: Cell, cells: CellLayer, amplified: Array, hidden: Array, layer: int
) -> None:
    units = len(amplified)

    def mark(role: str) -> Array:
        return origins(role, units, layer=layer, unit=np.arange(units))

    if cell.kind == "clamp":
        wires.resistor(amplified, hidden, cell.series_ohm, mark("series"))
        wires.diode(_clamp_rail(wires, cells, layer), hidden, cell.diode, mark("clamp"))
        return
    wires.resistor(hidden, GROUND, cell.load_ohm, mark("load"))
    if cell.kind == "series":
        wires.diode(amplified, hidden, cell.diode, mark("rectifier"))
        return
    driver = wires.nodes([f"layer {layer} op-amp {i}" for i in range(units)], mark("op-amp"))
    wires.op_amp(
        driver,
        amplified,
        hidden,
        gain=cell.op_amp_gain,
        low=-cell.op_amp_rail_V,
        high=cell.op_amp_rail_V,
        origin=mark("op-amp"),
    )
    wires.diode(driver, hidden, cell.diode, mark("rectifier"))
