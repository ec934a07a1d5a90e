"""One cell cut out of a circuit, driven through the conductance of its summing row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from analog.build import CircuitBuilder
from analog.circuit import GROUND, ROLES, Circuit
from analog.netlist.cells import CELL_ROLES
from deploy.arrays import Array
from deploy.errors import InputError

__all__ = ["extract_cell"]


def extract_cell(circuit: Circuit, layer: int, unit: int) -> Circuit:
    """Cut out the cell of one hidden unit.

    Its summing node is driven by an ideal source behind 1 / G_t, the row's total conductance, which is all that the
    cell sees of the row. The input is the amplified sum in volts (gain times open-circuit voltage), the output is
    the hidden node, or the amplifier's where the cell has no other (the shunt).

    Raises
    ------
    InputError : no such unit, or a circuit whose units have no summing node (equilibrium networks).
    """
    node = {role: _find_node(circuit, role, layer, unit) for role in ("sum", "amplified", "hidden")}
    if node["sum"] is None or node["amplified"] is None:
        raise InputError(
            f"layer {layer} has no unit {unit} with a summing node",
            remedy="choose a hidden layer and unit of a cascade",
        )
    row = (circuit.resistors.a == node["sum"]) | (circuit.resistors.b == node["sum"])
    total_S = float(np.sum(1 / circuit.resistors.ohm[row]))
    gains = circuit.vcvs.plus == node["amplified"]
    gain = float(circuit.vcvs.gain[gains][0])
    wires = CircuitBuilder(f"cell of layer {layer}, unit {unit}")
    index = {GROUND: GROUND}

    def place(old: int) -> int:
        if old not in index:
            index[old] = wires.node(circuit.node_names[old], circuit.node_origins[old : old + 1])
            _add_rail(wires, circuit, old, index[old])
        return index[old]

    drive = wires.node("open-circuit sum")
    wires.voltage_source(drive, GROUND, 0.0, input=0, per_unit=1 / gain)
    wires.resistor(drive, place(node["sum"]), 1 / total_S)
    _copy_elements(wires, circuit, layer, unit, place)
    output = node["amplified"] if node["hidden"] is None else node["hidden"]
    return wires.build(outputs=[place(output)], n_in=1)


def _copy_elements(
    wires: CircuitBuilder, circuit: Circuit, layer: int, unit: int, place: Callable[[int], int]
) -> None:
    for k in _rows(circuit.resistors.origin, layer, unit):
        r = circuit.resistors
        wires.resistor(place(int(r.a[k])), place(int(r.b[k])), r.ohm[k])
    for k in _rows(circuit.vcvs.origin, layer, unit):
        e = circuit.vcvs
        ends = [place(int(column[k])) for column in (e.plus, e.minus, e.control_plus, e.control_minus)]
        wires.vcvs(ends[0], ends[1], ends[2], ends[3], e.gain[k])
    for k in _rows(circuit.op_amps.origin, layer, unit):
        o = circuit.op_amps
        ends = [place(int(column[k])) for column in (o.out, o.plus, o.minus)]
        wires.op_amp(ends[0], ends[1], ends[2], gain=o.gain[k], offset=o.offset[k], low=o.low[k], high=o.high[k])
    for k in _rows(circuit.diodes.origin, layer, unit):
        d = circuit.diodes
        wires.diode(place(int(d.anode[k])), place(int(d.cathode[k])), circuit.models[int(d.model[k])])


def _rows(origin: Array, layer: int, unit: int) -> list[int]:
    roles = [ROLES.index(role) for role in CELL_ROLES]
    chosen = np.isin(origin["role"], roles) & (origin["layer"] == layer) & (origin["unit"] == unit)
    return [int(k) for k in np.flatnonzero(chosen)]


def _find_node(circuit: Circuit, role: str, layer: int, unit: int) -> int | None:
    origin = circuit.node_origins
    found = (origin["role"] == ROLES.index(role)) & (origin["layer"] == layer) & (origin["unit"] == unit)
    return int(np.flatnonzero(found)[0]) if found.any() else None


def _add_rail(wires: CircuitBuilder, circuit: Circuit, old: int, new: int) -> None:
    """Give a rail its source: a constant voltage against ground."""
    table = circuit.voltage_sources
    for k in np.flatnonzero((table.plus == old) & (table.minus == GROUND)).tolist():
        wires.voltage_source(new, GROUND, float(table.value[k]))
