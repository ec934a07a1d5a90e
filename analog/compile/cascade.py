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
from analog.compile.rails import add_clamp_rail, add_input_rails, buffer_rails
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
    rails = add_input_rails(wires, design.input_volts_per_unit, parts.bias_rail_V)
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
        wires.diode(add_clamp_rail(wires, cells.rail_V, layer), sums, parts.cell.diode, mark("clamp"))
    else:
        hidden = wires.nodes(named("hidden"), mark("hidden"))
        _add_cells(wires, parts.cell, cells, amplified, hidden, layer)
    return buffer_rails(wires, hidden, rails, layer=layer)


def _add_cells(
    wires: CircuitBuilder, cell: Cell, cells: CellLayer, amplified: Array, hidden: Array, layer: int
) -> None:
    units = len(amplified)

    def mark(role: str) -> Array:
        return origins(role, units, layer=layer, unit=np.arange(units))

    if cell.kind == "clamp":
        wires.resistor(amplified, hidden, cell.series_ohm, mark("series"))
        wires.diode(add_clamp_rail(wires, cells.rail_V, layer), hidden, cell.diode, mark("clamp"))
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
