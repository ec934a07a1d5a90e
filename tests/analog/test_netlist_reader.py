"""A user's netlist: what SPICE would get wrong in silence is refused, by name and line."""

from __future__ import annotations

import re

import pytest

from analog.netlist import check_netlist, circuit_from_netlist, read_netlist
from analog.netlist.numbers import parse_number
from deploy.errors import InputError

_SOURCE = "title\nV1 in 0 1\nR1 in 0 1k\n"


@pytest.mark.parametrize(
    ("cards", "message"),
    [
        ("C1 in mid 1n\nC2 mid 0 1n", "node mid has no path of direct current to ground"),
        ("I1 0 mid 1m", "node mid has no path of direct current to ground"),
        ("R2 a b 1k\nR3 b a 2k", "node a has no path of direct current to ground (and 1 more: b)"),
        ("V2 in 0 2", "line 4, v2: it closes a loop of voltage sources between in and 0"),
        ("E2 in 0 in 0 2", "line 4, e2: it closes a loop of voltage sources"),
        ("r1 in 0 2k", "line 4, r1: the name is taken by line 3"),
        ("R2 in 0 inf", "line 4, r2: 'inf' is no number"),
        ("R2 in 0 nan", "line 4, r2: 'nan' is no number"),
        ("R2 in 0 0", "line 4, r2: 0 ohm, which ngspice takes as 1 milliohm in silence"),
        ("D1 in 0 dx", "line 4, d1: model dx is not defined; add its .model line"),
        ("X1 in 0 cell", "line 4, x1: subcircuit 'cell' is not defined"),
        ("R2 in", "line 4, r2: 2 nodes are needed, 1 given"),
        (".subckt c a\nx1 a c\n.ends\nx2 in c", "subcircuit c calls itself"),
        (".subckt c a b\nr1 a b 1\n.ends\nx2 in c", "subcircuit c has 2 pins, 1 nodes are given"),
        (".subckt c a b\nr1 a b 1", ".subckt c has no .ends"),
        ("Y1 in 0 5", "an element starting with 'y' is unknown"),
    ],
)
def test_refused_with_the_line_and_the_remedy(cards: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        check_netlist(read_netlist(f"{_SOURCE}{cards}\n.op\n.end\n"))


def test_an_element_on_the_title_line_is_refused() -> None:
    with pytest.raises(InputError, match="the first line is the title, so the element 'V1 in 0 1' would vanish"):
        read_netlist("V1 in 0 1\nR1 in 0 1k\n.end")


def test_a_million_written_as_1M_is_noted() -> None:
    notes = check_netlist(read_netlist(f"{_SOURCE}R2 in 0 1M\nR3 in 0 -5\n.end"))
    assert notes == (
        "line 4, r2: 1m is 0.001 ohm in SPICE; write 1meg for a million",
        "line 5, r3: a negative value, -5",
    )


def test_subcircuits_expand_with_their_parameters_and_inner_nodes() -> None:
    net = read_netlist(
        f"{_SOURCE}.subckt half a b r=1k\nR1 a m {{r}}\nR2 m b {{r}}\n.ends\nXh in out half r=2k\nR9 out 0 1k\n.end"
    )
    assert "xh.m" in net.nodes()
    made = circuit_from_netlist(net)
    assert made.resistors.ohm.tolist() == [1e3, 2e3, 2e3, 1e3]


def test_control_blocks_comments_and_continuations_are_no_elements() -> None:
    net = read_netlist("t\n* R9 a b 1\nR1 a 0\n+ 5k ; five\n.control\nrun\n.endc\nV1 a 0 1\n.end\nR2 lost 0 1")
    assert [(card.name, card.words) for card in net.cards] == [("r1", ("5k",)), ("v1", ("1",))]


def test_included_files_are_not_opened_and_leave_paths_unjudged() -> None:
    net = read_netlist("t\n.include /nowhere/models.lib\nD1 a b dx\nX1 a b unknown\n.end")
    assert net.open_ended
    assert check_netlist(net) == ()


def test_what_the_native_solver_lacks_is_refused_by_line() -> None:
    with pytest.raises(InputError, match="line 4, q1: the native solver has no element Q"):
        circuit_from_netlist(read_netlist(f"{_SOURCE}Q1 in in 0 qx\n.model qx npn\n.end"))
    with pytest.raises(InputError, match="line 4, e1: the native solver has no element E with an expression"):
        circuit_from_netlist(read_netlist(f"{_SOURCE}E1 a 0 vol='v(in)*2'\n.end"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9k", 9e3),
        ("1M", 1e-3),
        ("1Meg", 1e6),
        ("5pF", 5e-12),
        ("1e-3", 1e-3),
        ("2.5E3Ohm", 2.5e3),
        ("1mil", 25.4e-6),
    ],
)
def test_numbers_as_spice_reads_them(text: str, value: float) -> None:
    assert parse_number(text) == pytest.approx(value, rel=1e-15)
