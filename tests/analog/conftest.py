"""Fixtures of the circuit tests: ngspice where it is there, and small circuits made by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from analog.build import CircuitBuilder
from analog.circuit import Circuit, origins
from analog.devices import D1N4148, DiodeModel
from analog.engines.locate import INSTALL, LIBRARY, PROGRAM

Cascade = Callable[..., Circuit]


@pytest.fixture
def library() -> None:
    """Needs the shared library of ngspice; skipped with the line that installs it."""
    if not LIBRARY.is_met():
        pytest.skip(f"libngspice is not installed; run: {INSTALL}")


@pytest.fixture
def program() -> None:
    """Needs the program ngspice; skipped with the line that installs it."""
    if not PROGRAM.is_met():
        pytest.skip(f"ngspice is not installed; run: {INSTALL}")


@pytest.fixture
def cascade() -> Cascade:
    """Make layers of summing rows, amplifiers and clamps with random conductances, by hand."""
    return make_cascade


@pytest.fixture
def one_of_each() -> Callable[[DiodeModel], Circuit]:
    """Make a circuit that has every kind of element but a floating source, with diodes of a model."""
    return make_one_of_each


def make_cascade(
    widths: Sequence[int], *, model: DiodeModel = D1N4148, seed: int = 0, gain_spread: float = 1.0
) -> Circuit:
    rng = np.random.default_rng(seed)
    wires = CircuitBuilder("a cascade made by hand")
    inputs = np.arange(widths[0])
    rails = []
    for sign, mark in ((1, "+"), (-1, "-")):
        rail = wires.nodes([f"x{i}{mark}" for i in inputs])
        record = origins("input", len(inputs), layer=0, unit=inputs, sign=sign)
        wires.voltage_source(rail, 0, 0.0, input=inputs, per_unit=float(sign), origin=record)
        rails.append(rail)
    positive, negative = rails
    for layer, (n_in, n_out) in enumerate(itertools.pairwise(widths)):
        weight = rng.normal(size=(n_out, n_in)).ravel()
        units = np.arange(n_out)
        unit, source = np.divmod(np.arange(n_in * n_out), n_in)
        nodes = {
            role: wires.nodes([f"{role}{layer}.{j}" for j in units], origins(role, n_out, layer=layer, unit=units))
            for role in ("sum", "amplified", "hidden", "mirror")
        }
        wires.resistor(
            np.where(weight > 0, positive[source], negative[source]),
            nodes["sum"][unit],
            1e4 / np.abs(weight),
            origins("weight", len(weight), layer=layer, unit=unit, source=source, sign=np.sign(weight)),
        )
        cell = {role: origins(role, n_out, layer=layer, unit=units) for role in ("gain", "series", "clamp")}
        gain = 10.0 + gain_spread * rng.random(n_out)
        wires.vcvs(nodes["amplified"], 0, nodes["sum"], 0, gain, cell["gain"])
        wires.resistor(nodes["amplified"], nodes["hidden"], 1e4, cell["series"])
        wires.diode(0, nodes["hidden"], model, cell["clamp"])
        wires.vcvs(nodes["mirror"], 0, nodes["hidden"], 0, -1.0, cell["gain"])
        positive, negative = nodes["hidden"], nodes["mirror"]
    return wires.build(outputs=positive, n_in=widths[0])


def make_one_of_each(model: DiodeModel) -> Circuit:
    wires = CircuitBuilder("one of each")
    a, b, c, d, e = wires.nodes(["a", "b", "c", "d", "e"])
    wires.current_source(0, a, 1e-4, input=0, per_unit=1e-3)
    wires.resistor([a, b, c, d, e], 0, [1e3, 2e3, 3e3, 4e3, 5e3])
    wires.gyrator(a, 0, b, 0, 2e-4)
    wires.vccs(c, 0, b, a, 1e-3)
    wires.op_amp(d, c, d, gain=1e3, low=-5.0, high=7.0, offset=1e-3)
    wires.diode(0, c, model)
    wires.diode(c, b, model)
    wires.vcvs(e, 0, d, c, 3.0)
    return wires.build(outputs=[c, d], n_in=1)
