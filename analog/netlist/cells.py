"""Cells as subcircuits: what belongs to one unit (amplifier, clamp, load) becomes an instance of a ``.subckt``.

Units whose cells have the same shape share one definition; values that are equal in all of them stand in it, values
that differ become its parameters. Nodes that only the cell touches move inside.

Axes: ``nodes``, ``elements`` (of one kind).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analog.circuit import GROUND, ROLES, Circuit
from analog.netlist.names import legal_name
from analog.netlist.op_amp import OpAmpCard
from deploy.arrays import Array

__all__ = ["CELL_ROLES", "Cells", "group_cells"]

CELL_ROLES = ("gain", "series", "load", "clamp", "rectifier", "op-amp", "positive rail", "negative rail")
_PORT_ROLES = ("sum", "hidden", "mirror", "logit", "positive rail", "negative rail")
"""Nodes that other layers may read stay outside, so that cells of one layer keep one shape."""
_KINDS = {"resistors": "r", "vcvs": "e", "vccs": "g", "diodes": "d", "op_amps": "x"}
_Element = tuple[str, int]
"""Kind and row in its table."""


@dataclass(frozen=True, slots=True)
class _Cell:
    layer: int
    unit: int
    elements: tuple[_Element, ...]
    ports: tuple[int, ...]
    inside: Mapping[int, str]

    @property
    def instance(self) -> str:
        return f"xcell_{self.layer}_{self.unit}"


@dataclass(frozen=True, slots=True)
class _Definition:
    """One shape and the cells that have it; `values` (cells, numbers) in the order of the elements."""

    name: str
    local: Mapping[int, str]
    cells: tuple[_Cell, ...]
    values: Array

    def varies(self) -> Array:
        """Which numbers differ between the cells."""
        return np.asarray((self.values != self.values[0]).any(axis=0))


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a circuit.

    Parameters
    ----------
    cell_of : per kind, the cell (an index, or -1) of each element.
    """

    circuit: Circuit
    cell_of: Mapping[str, Array]
    shapes: tuple[_Definition, ...]

    def vectors(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """Name of each node's voltage in ngspice: (nodes,); a node inside a cell is ``instance.node``."""
        found = list(nodes)
        for shape in self.shapes:
            for cell in shape.cells:
                for node, local in cell.inside.items():
                    found[node] = f"{cell.instance}.{local}"
        return tuple(found)

    def definitions(self, models: Sequence[str], op_amp: OpAmpCard) -> list[str]:
        """The ``.subckt`` blocks."""
        lines = []
        for shape in self.shapes:
            first = shape.cells[0]
            varies = shape.varies().tolist()
            values = shape.values[0].tolist()
            defaults = " ".join(
                f"p{k}={v!r}" for k, (v, free) in enumerate(zip(values, varies, strict=True)) if free
            )
            ports = " ".join(shape.local[node] for node in first.ports)
            lines.append(f"* cell of {len(shape.cells)} units, from layer {first.layer} on")
            lines.append(f".subckt {shape.name} {ports} {defaults}".rstrip())
            at = 0
            for number, (kind, row) in enumerate(first.elements):
                table: Any = getattr(self.circuit, kind)
                ends = [shape.local[int(getattr(table, terminal)[row])] for terminal in table.terminals]
                name = f"{legal_name(ROLES[int(table.origin['role'][row])])}_{number}"
                if kind == "diodes":
                    lines.append(f"d{name} {' '.join(ends)} {models[int(table.model[row])]}")
                elif kind == "op_amps":
                    gain, offset, low, high = values[at : at + 4]
                    lines.append(op_amp.instance(name, *ends, gain=gain, offset=offset, low=low, high=high))
                else:
                    value = f"{{p{at}}}" if varies[at] else repr(values[at])
                    lines.append(f"{_KINDS[kind]}{name} {' '.join(ends)} {value}")
                at += len(table.numbers)
            lines.append(f".ends {shape.name}")
        return lines

    def instances(self, nodes: Sequence[str]) -> list[str]:
        """One ``x`` card per cell."""
        lines = []
        for shape in self.shapes:
            free = np.flatnonzero(shape.varies()).tolist()
            for cell, values in zip(shape.cells, shape.values.tolist(), strict=True):
                ports = " ".join(nodes[node] for node in cell.ports)
                given = " ".join(f"p{k}={values[k]!r}" for k in free)
                lines.append(f"{cell.instance} {ports} {shape.name} {given}".rstrip())
        return lines


def group_cells(circuit: Circuit) -> Cells:
    """Find the cells of a circuit; a unit with one element of its own is left flat."""
    members: dict[tuple[int, int], list[_Element]] = defaultdict(list)
    roles = [ROLES.index(role) for role in CELL_ROLES]
    for kind in _KINDS:
        origin = getattr(circuit, kind).origin
        chosen = np.isin(origin["role"], roles) & (origin["layer"] >= 0) & (origin["unit"] >= 0)
        for row in np.flatnonzero(chosen).tolist():
            members[int(origin["layer"][row]), int(origin["unit"][row])].append((kind, row))
    touches = _touches(circuit)
    seen = [ROLES.index(role) for role in _PORT_ROLES]
    kept = {
        GROUND,
        *circuit.outputs.tolist(),
        *np.flatnonzero(np.isin(circuit.node_origins["role"], seen)).tolist(),
    }
    by_shape: dict[tuple[Any, ...], list[_Cell]] = defaultdict(list)
    locals_of: dict[tuple[Any, ...], Mapping[int, str]] = {}
    for (layer, unit), elements in members.items():
        if len(elements) < 2:
            continue
        cell, local = _make_cell(circuit, layer, unit, tuple(elements), touches, kept)
        shape = _shape(circuit, cell, local)
        by_shape[shape].append(cell)
        locals_of.setdefault(shape, local)
    cell_of = {kind: np.full(len(table), -1) for kind, table in circuit.tables().items()}
    shapes = []
    index = 0
    for number, (shape, cells) in enumerate(by_shape.items(), start=1):
        for cell in cells:
            for kind, row in cell.elements:
                cell_of[kind][row] = index
            index += 1
        values = np.array([_numbers(circuit, cell) for cell in cells])
        shapes.append(_Definition(f"cell_{number}", locals_of[shape], tuple(cells), values))
    return Cells(circuit, cell_of, tuple(shapes))


def _touches(circuit: Circuit) -> Array:
    """How many terminals each node has: (nodes,)."""
    count = np.zeros(circuit.n_nodes, dtype=np.int64)
    for table in circuit.tables().values():
        for terminal in table.terminals:
            count += np.bincount(getattr(table, terminal), minlength=circuit.n_nodes)
    return count


def _terminals(circuit: Circuit, element: _Element) -> list[int]:
    kind, row = element
    table: Any = getattr(circuit, kind)
    return [int(getattr(table, terminal)[row]) for terminal in table.terminals]


def _make_cell(
    circuit: Circuit, layer: int, unit: int, elements: tuple[_Element, ...], touches: Array, kept: set[int]
) -> tuple[_Cell, Mapping[int, str]]:
    own = Counter(node for element in elements for node in _terminals(circuit, element))
    local = {GROUND: "0"}
    roles: Counter[str] = Counter()
    for node in own:
        if node != GROUND:
            role = legal_name(ROLES[int(circuit.node_origins["role"][node])])
            roles[role] += 1
            local[node] = role if roles[role] == 1 else f"{role}_{roles[role]}"
    inside = {node: local[node] for node, count in own.items() if touches[node] == count and node not in kept}
    ports = tuple(node for node in own if node != GROUND and node not in inside)
    return _Cell(layer, unit, elements, ports, inside), local


def _shape(circuit: Circuit, cell: _Cell, local: Mapping[int, str]) -> tuple[Any, ...]:
    parts: list[Any] = [tuple(local[node] for node in cell.ports)]
    for kind, row in cell.elements:
        table: Any = getattr(circuit, kind)
        ends = tuple(local[node] for node in _terminals(circuit, (kind, row)))
        fixed: tuple[Any, ...] = ()
        if kind == "diodes":
            fixed = (int(table.model[row]),)
        elif kind == "op_amps":
            fixed = tuple(float(getattr(table, number)[row]) for number in table.numbers)
        parts.append((kind, int(table.origin["role"][row]), ends, fixed))
    return tuple(parts)


def _numbers(circuit: Circuit, cell: _Cell) -> list[float]:
    return [
        float(getattr(getattr(circuit, kind), number)[row])
        for kind, row in cell.elements
        for number in getattr(circuit, kind).numbers
    ]
