"""A user's own netlist, read far enough to check it by name and to solve it natively.

The dialect is SPICE's common part: the first line is the title, ``*`` and ``;`` start comments, ``+`` continues a
line, names and nodes do not tell upper from lower case. Subcircuits are expanded; included files are not opened.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from deploy.errors import InputError

__all__ = ["Card", "UserNetlist", "read_netlist"]

_TERMINALS = {
    "r": 2, "c": 2, "l": 2, "d": 2, "v": 2, "i": 2, "b": 2, "f": 2, "h": 2, "w": 2,
    "e": 4, "g": 4, "s": 4, "t": 4, "j": 3, "z": 3, "q": 3, "m": 4, "k": 0, "a": 0,
}  # fmt: skip
_LOOKS_LIKE_ELEMENT = re.compile(r"^[rcldvieg]\w*\s+\S+\s+\S+\s+[-+.\d]\S*\s*$", re.IGNORECASE)
_EXPRESSION = re.compile(r"=|^(poly|value|vol|cur|table|laplace)\b", re.IGNORECASE)
_MAX_DEPTH = 20
_MAX_CARDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Card:
    """One element: its full name, its nodes after expansion, what follows them, and where it stands.

    Parameters
    ----------
    name : lower case; inside a subcircuit ``letter.instance.name``, as ngspice calls it.
    words : what follows the nodes, parameters of subcircuits put in.
    line : its line number in the file.
    """

    name: str
    nodes: tuple[str, ...]
    words: tuple[str, ...]
    line: int

    @property
    def letter(self) -> str:
        """What kind of element it is."""
        return self.name[0]

    @property
    def place(self) -> str:
        """For messages."""
        return f"line {self.line}, {self.name}"


@dataclass(frozen=True, slots=True)
class UserNetlist:
    """A netlist: expanded cards, model cards by name, the other dot cards, and the text as it is.

    Parameters
    ----------
    controls : dot cards that are neither models nor subcircuits (``.op``, ``.temp 60``, …), lower case.
    open_ended : it includes other files, so models and nodes may be defined elsewhere.
    """

    title: str
    cards: tuple[Card, ...]
    models: Mapping[str, str]
    controls: tuple[str, ...]
    open_ended: bool
    text: str

    def nodes(self) -> tuple[str, ...]:
        """Every node, ground first, in order of appearance."""
        return tuple(dict.fromkeys(["0", *(node for card in self.cards for node in card.nodes)]))


_Lines = list[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class _Subcircuit:
    ports: tuple[str, ...]
    defaults: Mapping[str, str]
    body: tuple[tuple[int, str], ...]


def read_netlist(text: str) -> UserNetlist:
    """Read a netlist.

    Raises
    ------
    InputError : the first line, which SPICE takes as a title, is an element; a subcircuit is not defined or calls
        itself; a card has too few nodes; subcircuits in subcircuits make more elements than can be held.

    Examples
    --------
    >>> net = read_netlist("divider\\nV1 in 0 10\\nR1 in out 9k\\nR2 OUT 0 1k\\n.op\\n.end")
    >>> net.nodes(), net.cards[2].words
    (('0', 'in', 'out'), ('1k',))
    """
    rows = text.splitlines()
    title = rows[0].strip() if rows else ""
    if _LOOKS_LIKE_ELEMENT.match(title):
        raise InputError(
            f"the first line is the title, so the element {title!r} would vanish",
            place="line 1",
            remedy="put a title line before it",
        )
    models: dict[str, str] = {}
    controls: list[str] = []
    subcircuits: dict[str, _Subcircuit] = {}
    lines = _sort_dot_cards(_logical_lines(rows[1:]), models, controls, subcircuits)
    open_ended = any(card.startswith((".inc", ".lib")) for card in controls)
    cards = tuple(itertools.islice(_expand(lines, subcircuits, {}, "", {}, 0, open_ended), _MAX_CARDS + 1))
    if len(cards) > _MAX_CARDS:
        raise InputError(
            f"more than {_MAX_CARDS} elements once its subcircuits are put in",
            place=cards[-1].place,
            remedy="simulate a part of it",
        )
    return UserNetlist(title, cards, models, tuple(controls), open_ended, text)


def _logical_lines(rows: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Join continuations, drop comments and ``.control`` blocks, stop at ``.end``."""
    current: tuple[int, str] | None = None
    in_control = False
    for number, row in enumerate(rows, start=2):
        line = re.split(r";|\s\$\s|//", row, maxsplit=1)[0].strip()
        lowered = line.lower()
        if lowered.startswith((".control", ".endc")):
            in_control = lowered.startswith(".control")
            continue
        if in_control or not line or line.startswith("*"):
            continue
        if line.startswith("+"):
            if current is not None:
                current = (current[0], f"{current[1]} {line[1:].strip()}")
            continue
        if current is not None:
            yield current
        current = (number, line)
        if re.match(r"\.end\s*$", lowered):
            current = None
            break
    if current is not None:
        yield current


def _sort_dot_cards(
    lines: Iterator[tuple[int, str]],
    models: dict[str, str],
    controls: list[str],
    subcircuits: dict[str, _Subcircuit],
) -> _Lines:
    """Give back the element lines of the top level; dot cards go where they belong."""
    top: _Lines = []
    for number, line in lines:
        word = line.split()[0].lower()
        if word == ".model":
            name = line.split()[1].lower() if len(line.split()) > 1 else ""
            models.setdefault(name, line)
        elif word == ".subckt":
            _define(number, line, lines, models, controls, subcircuits)
        elif word.startswith("."):
            controls.append(" ".join(line.lower().split()))
        else:
            top.append((number, line))
    return top


def _define(
    number: int,
    header: str,
    lines: Iterator[tuple[int, str]],
    models: dict[str, str],
    controls: list[str],
    subcircuits: dict[str, _Subcircuit],
) -> None:
    words = re.sub(r"\s*=\s*", "=", header.lower()).split()
    if len(words) < 3:
        raise InputError("a .subckt needs a name and pins", place=f"line {number}")
    ports = tuple(word for word in words[2:] if "=" not in word and word != "params:")
    defaults = dict(word.split("=", 1) for word in words[2:] if "=" in word)

    def inside() -> Iterator[tuple[int, str]]:
        for at, line in lines:
            if line.split()[0].lower() == ".ends":
                return
            yield at, line
        raise InputError(f".subckt {words[1]} has no .ends", place=f"line {number}")

    body = _sort_dot_cards(inside(), models, controls, subcircuits)
    subcircuits[words[1]] = _Subcircuit(ports, defaults, tuple(body))


def _expand(
    lines: Sequence[tuple[int, str]],
    subcircuits: Mapping[str, _Subcircuit],
    nodes: Mapping[str, str],
    instance: str,
    values: Mapping[str, str],
    depth: int,
    open_ended: bool,
) -> Iterator[Card]:
    """Cards of one level; `nodes` maps pins to outer nodes, `values` parameters to what was given."""

    def outer(node: str) -> str:
        if node in ("0", "gnd"):
            return "0"
        return nodes.get(node, f"{instance}.{node}" if instance else node)

    for number, line in lines:
        words = re.sub(r"\s*=\s*", "=", line.lower()).split()
        name = words[0]
        full = f"{name[0]}.{instance}.{name}" if instance else name
        if name[0] == "x":
            yield from _expand_instance(number, words, subcircuits, outer, instance, values, depth, open_ended)
            continue
        count = _TERMINALS.get(name[0])
        if count is None:
            raise InputError(f"an element starting with {name[0]!r} is unknown", place=f"line {number}, {name}")
        if count == 4 and len(words) > 3 and _EXPRESSION.search(words[3]):
            count = 2
        if len(words) < count + 1:
            raise InputError(f"{count} nodes are needed, {len(words) - 1} given", place=f"line {number}, {name}")
        rest = tuple(values.get(word[1:-1], word) if word[:1] == "{" else word for word in words[count + 1 :])
        yield Card(full, tuple(outer(node) for node in words[1 : count + 1]), rest, number)


def _expand_instance(
    number: int,
    words: Sequence[str],
    subcircuits: Mapping[str, _Subcircuit],
    outer: Callable[[str], str],
    instance: str,
    values: Mapping[str, str],
    depth: int,
    open_ended: bool,
) -> Iterator[Card]:
    plain = [word for word in words[1:] if "=" not in word and word != "params:"]
    place = f"line {number}, {words[0]}"
    if not plain or plain[-1] not in subcircuits:
        if open_ended:
            return
        raise InputError(
            f"subcircuit {plain[-1] if plain else ''!r} is not defined",
            place=place,
            remedy="add its .subckt … .ends",
        )
    called = subcircuits[plain[-1]]
    if len(plain) - 1 != len(called.ports):
        raise InputError(
            f"subcircuit {plain[-1]} has {len(called.ports)} pins, {len(plain) - 1} nodes are given", place=place
        )
    if depth >= _MAX_DEPTH:
        raise InputError(f"subcircuit {plain[-1]} calls itself", place=place)
    given = {k: values.get(v.strip("{}"), v) for k, v in (word.split("=", 1) for word in words[1:] if "=" in word)}
    nodes = {port: outer(node) for port, node in zip(called.ports, plain[:-1], strict=True)}
    inner = f"{instance}.{words[0]}" if instance else words[0]
    yield from _expand(called.body, subcircuits, nodes, inner, {**called.defaults, **given}, depth + 1, open_ended)
