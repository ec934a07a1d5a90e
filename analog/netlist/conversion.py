"""A user's netlist as a circuit, so that the native solver and the studies take it."""

from __future__ import annotations

import re

from analog.build import CircuitBuilder
from analog.circuit import Circuit
from analog.devices.diode import DiodeModel
from analog.netlist.check import check_netlist
from analog.netlist.model_cards import read_model_card
from analog.netlist.numbers import parse_number
from analog.netlist.reader import Card, UserNetlist
from deploy.errors import InputError

__all__ = ["circuit_from_netlist"]


def circuit_from_netlist(netlist: UserNetlist) -> Circuit:
    """Convert R, D, V, I, and linear E and G elements; every node is an output. Capacitors carry no direct current.

    Sources have their direct-current value: the one after ``DC``, or the plain number, or else 0.

    Raises
    ------
    InputError : the netlist fails :func:`analog.netlist.check.check_netlist`, or has an element that the native
        solver does not have; the message names the line.

    Examples
    --------
    >>> from analog.netlist.reader import read_netlist
    >>> made = circuit_from_netlist(read_netlist("divider\\nV1 in 0 10\\nR1 in out 9k\\nR2 out 0 1k\\n.end"))
    >>> made.counts(), made.node_names
    ({'resistors': 2, 'voltage_sources': 1}, ('0', 'in', 'out'))
    """
    check_netlist(netlist)
    wires = CircuitBuilder(netlist.title)
    names = netlist.nodes()
    index = dict(zip(names[1:], wires.nodes(names[1:]).tolist(), strict=True)) | {"0": 0}
    models = {
        name: read_model_card(text) for name, text in netlist.models.items() if re.search(r"\sd\b", text, re.I)
    }
    for card in netlist.cards:
        nodes = [index[node] for node in card.nodes]
        try:
            _add(wires, card, nodes, models)
        except InputError as error:
            raise error.at(card.place) from None
    return wires.build(outputs=list(range(1, len(names))))


def _add(wires: CircuitBuilder, card: Card, nodes: list[int], models: dict[str, DiodeModel]) -> None:
    letter = card.letter
    if letter == "c":
        return
    if letter == "r":
        wires.resistor(nodes[0], nodes[1], parse_number(_value(card)))
    elif letter == "d":
        if card.words[0] not in models:
            raise InputError(f"model {card.words[0]} is no diode model")
        wires.diode(nodes[0], nodes[1], models[card.words[0]])
    elif letter == "v":
        wires.voltage_source(nodes[0], nodes[1], _source_level(card))
    elif letter == "i":
        wires.current_source(nodes[0], nodes[1], _source_level(card))
    elif letter in "eg" and len(nodes) == 4:
        add = wires.vcvs if letter == "e" else wires.vccs
        add(nodes[0], nodes[1], nodes[2], nodes[3], parse_number(_value(card)))
    else:
        raise InputError(
            f"the native solver has no element {letter.upper()}"
            + (" with an expression" if letter in "eg" else ""),
            remedy="simulate this netlist with the engine ngspice",
        )


def _value(card: Card) -> str:
    if not card.words:
        raise InputError("no value is given")
    return card.words[0].partition("=")[2] or card.words[0]


def _source_level(card: Card) -> float:
    words = card.words
    if "dc" in words and words.index("dc") + 1 < len(words):
        return parse_number(words[words.index("dc") + 1])
    if words and re.match(r"[-+.\d]", words[0]):
        return parse_number(words[0])
    return 0.0
