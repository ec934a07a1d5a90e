"""The operating point in forty digits: it is one, whoever started it, and the native solver is next to it."""

from __future__ import annotations

import itertools
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import random_equilibrium, random_mlp

from analog.build import CircuitBuilder
from analog.compile.design_file import compile_design
from analog.conditions import Conditions
from analog.conversion import design_model
from analog.devices import BAT54, D1N4148, IDEAL, NEAR_IDEAL, DiodeModel
from analog.engines import OperatingPointEngine
from analog.netlist import Settings
from analog.options import CircuitOptions
from analog.solve import plan_circuit, refine_operating_point
from deploy.errors import InputError

LOOSE = Settings(reltol=1e-3, abstol_A=1e-12, vntol_V=1e-6)
TIGHT = Settings(reltol=1e-9, abstol_A=1e-15, vntol_V=1e-12)


def test_a_divider_is_the_fraction_that_it_is() -> None:
    wires = CircuitBuilder()
    a, b = wires.nodes(["a", "b"])
    wires.voltage_source(a, 0, 0.1, input=0, per_unit=0.3)
    wires.resistor([a, b], [b, 0], [3.0, 7.0])
    point = refine_operating_point(wires.build(n_in=1), np.array([0.7]), np.zeros(3))
    level = Fraction(0.1) + Fraction(0.3) * Fraction(0.7)
    assert abs(Fraction(point.volts[1]) - level) < Fraction(1, 10**40)
    assert abs(Fraction(point.volts[2]) - level * Fraction(7, 10)) < Fraction(1, 10**40)


@pytest.mark.parametrize("volts", [5.0, -5.0])
@pytest.mark.parametrize("model", [D1N4148, BAT54, NEAR_IDEAL], ids=lambda model: model.name)
def test_one_diode_satisfies_its_law_in_forty_digits(model: DiodeModel, volts: float) -> None:
    """Forwards and backwards, from the law as it is written down: the junction's current is the resistor's."""
    wires = CircuitBuilder()
    a, b = wires.nodes(["a", "b"])
    wires.voltage_source(a, 0, volts)
    wires.resistor(a, b, 1e3)
    wires.diode(b, 0, model)
    circuit = wires.build()
    conditions = Conditions(celsius=60.0)
    point = refine_operating_point(
        circuit, np.zeros(0), plan_circuit(circuit, conditions).volts(np.zeros((1, 0)))[0], conditions
    )
    with localcontext() as context:
        context.prec = 60
        amps = (Decimal(volts) - point.volts[2]) / 1000
        v = point.volts[2] - Decimal(model.series_ohm) * amps
        s, saturation = Decimal(model.slope_V(60.0)), Decimal(model.saturation(60.0))
        if v >= -3 * s:
            law = saturation * ((v / s).exp() - 1)
        else:
            law = -saturation * (1 + (3 * s / (Decimal(1).exp() * v)) ** 3)
        assert abs(law + Decimal(conditions.gmin) * v - amps) < Decimal("1e-38")


@pytest.mark.parametrize("model", [D1N4148, BAT54, NEAR_IDEAL], ids=lambda model: model.name)
def test_any_start_nearby_finds_the_same_point(one_of_each, model: DiodeModel, rng) -> None:
    circuit, x = one_of_each(model), np.array([0.7])
    native = plan_circuit(circuit).volts(x[None])[0]
    points = [refine_operating_point(circuit, x, native + 1e-6 * rng.normal(size=len(native))) for _ in range(3)]
    assert all(point.last_step_V <= 1e-40 for point in points)
    for one, other in itertools.pairwise(points):
        assert max(abs(a - b) for a, b in zip(one.volts, other.volts, strict=True)) < Decimal("1e-38")
    assert points[0].distance(native) < 1e-13  # rounding: volts of order one, a gain of three


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(["clamp", "shunt", "series", "superdiode", "equilibrium"]),
    diode=st.sampled_from(["1N4148", "BAT54", "near_ideal"]),
    celsius=st.sampled_from([-40.0, 27.0, 125.0]),
)
def test_the_native_solver_is_at_the_point(seed: int, kind: str, diode: str, celsius: float) -> None:
    """Within 1e-12 of the largest voltage, and its rounding times the gains of the layers.

    Of 400 rows the farthest were 2.5e-13 off (an equilibrium network with leaking diodes), and 2.4e-13 behind shunt
    cells whose gains multiply to 14,000.
    """
    rng = np.random.default_rng(seed)
    options = {"diode": diode, "celsius": celsius, **({} if kind == "equilibrium" else {"cell": kind})}
    model = random_equilibrium(rng, 4, 5, 3) if kind == "equilibrium" else random_mlp(rng, (4, 5, 4, 3))
    x = rng.uniform(-1, 1, (20, 4))
    circuit = compile_design(design_model(model, x, CircuitOptions(**options)))
    conditions = Conditions(celsius=celsius)
    volts = plan_circuit(circuit, conditions).volts(x[:2])
    gains, layers = np.abs(circuit.vcvs.gain), circuit.vcvs.origin["layer"]
    amplified = np.prod([gains[layers == layer].max() for layer in np.unique(layers)])
    for row in range(2):
        point = refine_operating_point(circuit, x[row], volts[row], conditions)
        assert point.last_step_V <= 1e-40
        assert point.distance(volts[row]) <= (1e-12 + 1e-16 * amplified) * max(1.0, np.abs(volts[row]).max())


def test_it_tells_a_loose_simulation_from_a_tight_one(library: None, cascade, rng) -> None:
    """ngspice's own tolerances leave nanovolts, tight ones nothing but rounding; the point knows which is nearer."""
    circuit, x = cascade([4, 5, 3], model=NEAR_IDEAL), rng.uniform(-1, 1, (1, 4))
    found = {}
    for settings_ in (LOOSE, TIGHT):
        with OperatingPointEngine(circuit, tolerances=(settings_,)) as engine:
            volts = engine.solve(x).volts[0]
        found[settings_] = refine_operating_point(circuit, x[0], volts).distance(volts)
    assert 100 * found[TIGHT] < 1e-11 < found[LOOSE]


def test_what_cannot_be_refined_is_said(one_of_each) -> None:
    circuit, x = one_of_each(D1N4148), np.array([0.7])
    assert refine_operating_point(circuit, x, np.linspace(0, 1e9, 6)).last_step_V == np.inf
    assert np.isnan(refine_operating_point(circuit, x, np.zeros(6)).distance(np.full(6, np.nan)))
    with pytest.raises(InputError, match="not finite; start from a row that was solved"):
        refine_operating_point(circuit, x, np.full(6, np.nan))


def test_an_ideal_diode_is_refused(one_of_each) -> None:
    with pytest.raises(InputError, match="an ideal diode has no law to refine; use a near-ideal one"):
        refine_operating_point(one_of_each(IDEAL), np.array([0.7]), np.zeros(6))
