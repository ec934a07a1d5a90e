"""What SPICE would get wrong in silence, or report as a singular matrix, found by name before a simulation.

============================  =============================================================================
the netlist says              what ngspice does with it
============================  =============================================================================
a node without DC path        "singular matrix: check node …", then gmin and source stepping, then a value
a loop of voltage sources     "singular matrix: check node v1#branch", "Timestep too small"
``inf``, ``nan``              "can't find model 'inf'", and no circuit
``R1 a b 0``                  takes 1 milliohm, in silence
``R1 a b 1M``                 takes 1 milliohm, in silence
two elements of one name      "device already exists, existing one being used"
an undefined model            "could not find a valid modelname", and no circuit
============================  =============================================================================
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from analog.netlist.numbers import parse_number
from analog.netlist.reader import Card, UserNetlist
from deploy.errors import InputError

__all__ = ["check_netlist"]

_CONDUCTING: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys("rldvehws", (0, 1)),
    **dict.fromkeys("qjz", (0, 1, 2)),
    "m": (0, 2, 3),
}
"""Terminals between which direct current flows."""
_VOLTAGE_DEFINED = ("v", "e", "h", "l")


def check_netlist(netlist: UserNetlist) -> tuple[str, ...]:
    """Refuse what cannot be simulated; give back notes on what is legal and probably not meant.

    Raises
    ------
    InputError : names the node, the element and its line.

    Examples
    --------
    >>> from analog.netlist.reader import read_netlist
    >>> check_netlist(read_netlist("t\\nV1 in 0 1\\nC1 in mid 1n\\nC2 mid 0 1n\\nR1 in 0 1k\\n.op\\n.end"))
    Traceback (most recent call last):
        ...
    deploy.errors.InputError: node mid has no path of direct current to ground; give it a resistor to ground
    """
    _check_names(netlist.cards)
    notes = [note for card in netlist.cards for note in _check_value(card)]
    if not netlist.open_ended:
        _check_models(netlist)
        _check_paths(netlist)
    _check_loops(netlist.cards)
    return tuple(notes)


def _check_names(cards: Iterable[Card]) -> None:
    first: dict[str, Card] = {}
    for card in cards:
        other = first.setdefault(card.name, card)
        if other is not card:
            raise InputError(
                f"the name is taken by line {other.line}",
                place=card.place,
                remedy="names must differ by more than upper and lower case",
            )


def _check_value(card: Card) -> list[str]:
    if card.letter not in "rcl" or not card.words:
        return []
    word = card.words[0].partition("=")[2] or card.words[0]
    if not (word[0].isdigit() or word[0] in "+-." or word.lower().startswith(("inf", "nan"))):
        return []
    try:
        value = parse_number(word)
    except InputError as error:
        raise error.at(card.place) from None
    if card.letter == "r" and value == 0:
        raise InputError(
            "0 ohm, which ngspice takes as 1 milliohm in silence", place=card.place, remedy="join the nodes instead"
        )
    notes = []
    if card.letter == "r" and re.search(r"\dm(ohms?)?$", word):
        million = re.sub("m.*", "meg", word)
        notes.append(f"{card.place}: {word} is {value:g} ohm in SPICE; write {million} for a million")
    if value < 0:
        notes.append(f"{card.place}: a negative value, {value:g}")
    return notes


def _check_models(netlist: UserNetlist) -> None:
    for card in netlist.cards:
        if card.letter == "d" and card.words and card.words[0] not in netlist.models:
            raise InputError(
                f"model {card.words[0]} is not defined", place=card.place, remedy="add its .model line"
            )


def _check_paths(netlist: UserNetlist) -> None:
    roots = _Groups()
    for card in netlist.cards:
        ends: tuple[int, ...] = _CONDUCTING.get(card.letter, ())
        if card.letter == "b" and _sets_voltage(card):
            ends = (0, 1)
        for end in ends[1:]:
            roots.join(card.nodes[ends[0]], card.nodes[end])
    ground = roots.find("0")
    floating = [node for node in netlist.nodes() if roots.find(node) != ground]
    if floating:
        more = f" (and {len(floating) - 1} more: {', '.join(floating[1:5])})" if len(floating) > 1 else ""
        raise InputError(
            f"node {floating[0]} has no path of direct current to ground{more}",
            remedy="give it a resistor to ground",
        )


def _check_loops(cards: Iterable[Card]) -> None:
    roots = _Groups()
    for card in cards:
        if card.letter in _VOLTAGE_DEFINED or (card.letter == "b" and _sets_voltage(card)):
            plus, minus = card.nodes[:2]
            if roots.find(plus) == roots.find(minus):
                raise InputError(
                    f"it closes a loop of voltage sources between {plus} and {minus}",
                    place=card.place,
                    remedy="put a resistor into the loop",
                )
            roots.join(plus, minus)


def _sets_voltage(card: Card) -> bool:
    return any(word.startswith("v=") for word in card.words)


class _Groups:
    """Union-find over names."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}
        self._size: Counter[str] = Counter()

    def find(self, name: str) -> str:
        while self._parent.setdefault(name, name) != name:
            self._parent[name] = self._parent[self._parent[name]]
            name = self._parent[name]
        return name

    def join(self, a: str, b: str) -> None:
        first, second = self.find(a), self.find(b)
        if self._size[first] < self._size[second]:
            first, second = second, first
        self._parent[second] = first
        self._size[first] += self._size[second] + 1
