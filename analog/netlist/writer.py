"""A circuit as a netlist that runs unmodified in ngspice.

Names tell provenance: ``Rweight_0_3_17`` is the weight of layer 0 from input 17 to unit 3. The cells of a layer
(everything of one unit that is no summing resistor) become instances of one ``.subckt``. Numbers are written with
all their digits.

Axes: ``nodes``, ``n_in``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from analog.circuit import ROLES, Circuit
from analog.netlist.cells import Cells, group_cells
from analog.netlist.drive import Drive, Hold, Sweep
from analog.netlist.model_cards import write_model_card
from analog.netlist.names import legal_name, legal_names, unique_names
from analog.netlist.op_amp import IDEAL_OP_AMP, OpAmpCard
from analog.netlist.settings import Settings
from deploy.arrays import Array

__all__ = ["Netlist", "write_netlist"]

_LETTERS = {
    "resistors": "r",
    "diodes": "d",
    "voltage_sources": "v",
    "current_sources": "i",
    "vcvs": "e",
    "vccs": "g",
    "gyrators": "g",
    "op_amps": "x",
}


@dataclass(frozen=True, eq=False)
class Netlist:
    """Text, and what its names stand for.

    Parameters
    ----------
    text : ends with ``.end`` and a newline.
    vectors : (nodes,) name under which ngspice gives each node's voltage; "0" for ground.
    voltage_sources, current_sources : name of each source, in the circuit's order.
    settings : temperature and tolerances that stand in it.
    """

    text: str
    vectors: tuple[str, ...]
    voltage_sources: tuple[str, ...]
    current_sources: tuple[str, ...]
    settings: Settings


@dataclass
class _Sheet:
    """The lines so far, and the names that the elements got."""

    circuit: Circuit
    nodes: tuple[str, ...]
    models: tuple[str, ...]
    names: Mapping[str, tuple[str, ...]]
    lines: list[str] = field(default_factory=list)


def write_netlist(
    circuit: Circuit,
    drive: Drive | None = None,
    *,
    settings: Settings | None = None,
    analyses: Sequence[str] | None = None,
    op_amp: OpAmpCard = IDEAL_OP_AMP,
    node_F: float = 0.0,
) -> Netlist:
    """Write a netlist.

    Parameters
    ----------
    drive : how sources get their levels; default: every input at 0.
    settings : temperature and tolerances; default :class:`Settings`.
    analyses : analysis cards with their dot; default ``.op``, or the sweep's own.
    op_amp : subcircuit that stands for every op-amp.
    node_F : capacitance to ground at every node (F), for transients.

    Examples
    --------
    >>> from analog.build import CircuitBuilder
    >>> wires = CircuitBuilder("divider")
    >>> top, middle = wires.nodes(["Top", "middle"])
    >>> wires.voltage_source(top, 0, 10.0)
    >>> wires.resistor([top, middle], [middle, 0], [9e3, 1e3])
    >>> print(write_netlist(wires.build(outputs=[middle])).text)
    * divider
    * written by relu-deploy: 2 resistors, 1 voltage_sources; element names: role_layer_unit_source
    * node top is "Top"
    .options reltol=1e-07 abstol=1e-15 vntol=1e-09 gmin=1e-12 itl1=200
    .temp 27.0
    v1 top 0 10.0
    r1 top middle 9000.0
    r2 middle 0 1000.0
    .op
    .end
    <BLANKLINE>
    """
    settings = settings or Settings()
    drive = drive or Hold(np.zeros(circuit.n_in))
    if analyses is None:
        analyses = (f".{drive.analysis()}",) if isinstance(drive, Sweep) else (".op",)
    nodes = legal_names(circuit.node_names)
    models = unique_names([legal_name(model.name) for model in circuit.models])
    sheet = _Sheet(circuit, nodes, models, element_names(circuit))
    cells = group_cells(circuit)
    sheet.lines += _header(circuit, nodes)
    sheet.lines += settings.cards()
    sheet.lines += [
        write_model_card(model, name, celsius=settings.celsius)
        for model, name in zip(circuit.models, models, strict=True)
    ]
    if len(circuit.op_amps):
        sheet.lines += op_amp.definition()
    sheet.lines += cells.definitions(models, op_amp)
    sheet.lines += drive.preamble()
    _write_elements(sheet, drive, cells, op_amp)
    vectors = cells.vectors(nodes)
    if node_F:
        sheet.lines += ["* stray capacitance"] + [
            f"cstray_{index} {name} 0 {node_F!r}" for index, name in enumerate(vectors) if index
        ]
    sheet.lines += [*analyses, ".end", ""]
    return Netlist(
        text="\n".join(sheet.lines),
        vectors=vectors,
        voltage_sources=tuple("v" + name for name in sheet.names["voltage_sources"]),
        current_sources=tuple("i" + name for name in sheet.names["current_sources"]),
        settings=settings,
    )


def _header(circuit: Circuit, nodes: Sequence[str]) -> list[str]:
    counts = ", ".join(f"{count} {kind}" for kind, count in circuit.counts().items())
    title = " ".join(circuit.title.split()) or "circuit"
    lines = [
        f"* {title}",
        f"* written by relu-deploy: {counts}; element names: role_layer_unit_source",
    ]
    pairs = zip(nodes, circuit.node_names, strict=True)
    renamed = [(name, given) for name, given in pairs if name != given.replace(" ", "_")]
    lines += [f'* node {name} is "{" ".join(given.split())}"' for name, given in renamed]
    if any(model.ideal for model in circuit.models):
        lines.append("* ideal diodes are written near-ideal: SPICE has no diode without drop")
    return lines


_SHORT_ROLES = tuple(role.replace(" ", "_").replace("-", "_") for role in ROLES)


def element_names(circuit: Circuit) -> Mapping[str, tuple[str, ...]]:
    """Name of every element by kind, without the letter that says its kind."""
    names = {kind: _names_of(table.origin) for kind, table in circuit.tables().items()}
    if names["vccs"] and names["gyrators"]:
        # Both are written as G elements.
        names["gyrators"] = unique_names([f"gyrator_{name}" for name in names["gyrators"]], names["vccs"])
    return names


def _names_of(origin: Array) -> tuple[str, ...]:
    """Names without their letter: role_layer_unit_source, or a running number for elements given by hand."""
    role, layer, unit, source = (origin[key].tolist() for key in ("role", "layer", "unit", "source"))
    known = (origin["layer"] >= 0).all() and (origin["unit"] >= 0).all() and (origin["source"] >= 0).all()
    if known:
        names = [f"{_SHORT_ROLES[r]}_{a}_{b}_{c}" for r, a, b, c in zip(role, layer, unit, source, strict=True)]
    else:
        names = [
            "_".join([_SHORT_ROLES[r], *(str(k) for k in place if k >= 0)]) if r or max(place) >= 0 else str(n + 1)
            for n, (r, *place) in enumerate(zip(role, layer, unit, source, strict=True))
        ]
    return unique_names(names)


def _write_elements(sheet: _Sheet, drive: Drive, cells: Cells, op_amp: OpAmpCard) -> None:
    circuit, nodes = sheet.circuit, sheet.nodes
    for kind, letter in (("voltage_sources", "v"), ("current_sources", "i")):
        table = getattr(circuit, kind)
        if len(table):
            sheet.lines += drive.cards(letter, sheet.names[kind], nodes, table)
    for kind in ("resistors", "diodes", "vcvs", "vccs", "gyrators", "op_amps"):
        table = getattr(circuit, kind)
        rows = np.flatnonzero(cells.cell_of[kind] < 0)
        if not rows.size:
            continue
        cards = element_cards(circuit, kind, rows, sheet.names[kind], nodes, sheet.models, op_amp)
        sheet.lines += _with_comments(cards, table.origin[rows])
    sheet.lines += cells.instances(nodes)


def element_cards(
    circuit: Circuit,
    kind: str,
    rows: Array,
    names: Sequence[str],
    nodes: Sequence[str],
    models: Sequence[str],
    op_amp: OpAmpCard,
) -> list[str]:
    """Write the cards of some elements of one kind, one string each (a gyrator's holds two lines)."""
    table: Any = getattr(circuit, kind)
    letter = _LETTERS[kind]
    whole = len(rows) == len(table)
    chosen = names if whole else [names[row] for row in rows.tolist()]
    terminals = [map(nodes.__getitem__, getattr(table, terminal)[rows].tolist()) for terminal in table.terminals]
    if kind == "diodes":
        ends = map(models.__getitem__, table.model[rows].tolist())
        return [f"{letter}{n} {a} {c} {m}" for n, a, c, m in zip(chosen, *terminals, ends, strict=True)]
    if kind == "op_amps":
        values = [getattr(table, number)[rows].tolist() for number in table.numbers]
        return [
            op_amp.instance(n, out, plus, minus, gain=g, offset=o, low=lo, high=hi)
            for n, out, plus, minus, g, o, lo, hi in zip(chosen, *terminals, *values, strict=True)
        ]
    number = getattr(table, table.numbers[0])[rows].tolist()
    if kind == "resistors":
        return [f"r{n} {a} {b} {v!r}" for n, a, b, v in zip(chosen, *terminals, number, strict=True)]
    if kind == "gyrators":
        return [
            f"g{n} {ap} {am} {bp} {bm} {g!r}\ng{n}_back {bp} {bm} {ap} {am} {-g!r}"
            for n, ap, am, bp, bm, g in zip(chosen, *terminals, number, strict=True)
        ]
    return [
        f"{letter}{n} {p} {m} {cp} {cm} {v!r}"
        for n, p, m, cp, cm, v in zip(chosen, *terminals, number, strict=True)
    ]


def _with_comments(cards: list[str], origin: Array) -> list[str]:
    """Put a line of provenance before each run of elements of one role, layer and unit (or of one layer)."""
    if not (origin["role"] > 0).any():
        return cards
    for keys in (("role", "layer", "unit"), ("role", "layer")):
        changed = np.zeros(len(cards), dtype=bool)
        changed[0] = True
        for key in keys:
            changed[1:] |= origin[key][1:] != origin[key][:-1]
        starts = np.flatnonzero(changed).tolist()
        if len(starts) * 4 <= len(cards) + 8:
            break
    parts: list[list[str]] = []
    for start, end in zip(starts, [*starts[1:], len(cards)], strict=True):
        places = [f"{key} {int(origin[key][start])}" for key in keys[1:] if origin[key][start] >= 0]
        parts.append(["* " + ", ".join([ROLES[int(origin["role"][start])], *places])])
        parts.append(cards[start:end])
    return list(chain.from_iterable(parts))
