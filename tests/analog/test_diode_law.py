"""The diode's law and its closed-form loop, against their own definitions, and against ngspice in other files."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import wrightomega

from analog.conditions import Conditions
from analog.devices import BAT54, D1N4148, IDEAL, NEAR_IDEAL, DiodeModel
from analog.devices.diode import BOLTZMANN, CHARGE, thermal_voltage
from analog.solve.kernel import wright_omega
from analog.solve.loop import Junctions, solve_loops
from deploy.errors import InputError, UsageError

REAL = [D1N4148, BAT54, NEAR_IDEAL]


def _loop(z, ohm: float, model: DiodeModel, celsius: float = 27.0) -> tuple[np.ndarray, np.ndarray]:
    z = np.atleast_1d(np.asarray(z, dtype=float))[None]
    junctions = Junctions.of((model,), np.zeros(1, dtype=int), Conditions(celsius=celsius))
    current, slope = solve_loops(z, np.array([ohm]), junctions)
    return current[0], slope[0]


@given(st.floats(-500, 1e6))
def test_wright_omega_is_scipys(x: float) -> None:
    """A few units in the last place: both claim it."""
    expected = wrightomega(x)
    assert abs(wright_omega(x) - expected) <= 4e-15 * abs(expected) + 1e-300


@given(
    z=st.floats(-100, 100),
    decades=st.floats(0, 9),
    model=st.sampled_from(REAL),
    celsius=st.sampled_from([-40.0, 27.0, 125.0]),
)
def test_the_loop_satisfies_the_law(z: float, decades: float, model: DiodeModel, celsius: float) -> None:
    """i equals the law at v_j = z - (R + R_S) i, to the rounding of v_j (ulps of z) times the conductance there, and
    to that of i + I_S, which v_j sees through R + R_S."""
    ohm = 10**decades
    (current,), (slope,) = _loop(z, ohm, model, celsius)
    junction = z - (ohm + model.series_ohm) * current
    law = float(model.current(np.array(junction), celsius=celsius))
    conductance = (law + model.saturation(celsius)) / model.slope_V(celsius) + 1e-12
    rounding = 4 * np.spacing(abs(z) + abs(junction)) * abs(conductance)
    of_current = 1e-14 * (abs(current) + model.saturation(celsius))  # the Wright omega function is good to 4e-15
    seen = 1 + (ohm + model.series_ohm) * abs(conductance)
    assert abs(current - law) <= rounding + seen * of_current + 1e-12 * abs(current)
    assert 0 < slope < 1 / ohm


@pytest.mark.parametrize("model", REAL, ids=lambda model: model.name)
def test_the_slope_is_the_derivative(model: DiodeModel) -> None:
    """Central differences of step h err by h² i''' and by rounding over h: 1e-5 relative where i is smooth."""
    z = np.array([-3.0, -0.3, 0.2, 0.7, 5.0])
    h = 1e-3 * model.slope_V(27.0)
    high, low = _loop(z + h, 1e4, model)[0], _loop(z - h, 1e4, model)[0]
    slope = _loop(z, 1e4, model)[1]
    assert np.allclose((high - low) / (2 * h), slope, rtol=1e-5, atol=1e-11)


@pytest.mark.parametrize("model", REAL, ids=lambda model: model.name)
def test_forward_and_reverse_law_meet(model: DiodeModel) -> None:
    edge = -3 * model.slope_V(27.0)
    below, above = model.current(np.array([edge * (1 + 1e-9), edge * (1 - 1e-9)]))
    assert abs(above - below) <= 1e-7 * abs(below)


def test_an_ideal_diode_conducts_or_blocks() -> None:
    current, slope = _loop([-2.0, 0.0, 3.0], 10.0, IDEAL)
    assert current.tolist() == [0.0, 0.0, 0.3]
    assert slope.tolist() == [0.0, 0.0, 0.1]


def test_saturation_follows_the_temperature_law() -> None:
    """Written out for 1N4148 at 85 degrees with the law of the module's docstring."""
    ratio = (85 + 273.15) / (27 + 273.15)
    slope = 1.752 * BOLTZMANN / CHARGE * (85 + 273.15)
    expected = 2.52e-9 * np.exp((ratio - 1) * 1.11 / slope) * ratio ** (3 / 1.752)
    assert D1N4148.saturation(85.0) == pytest.approx(expected, rel=1e-14)
    assert D1N4148.saturation(27.0) == 2.52e-9
    assert NEAR_IDEAL.saturation(125.0) == NEAR_IDEAL.saturation_A


def test_thermal_voltage_is_26_millivolts_at_room_temperature() -> None:
    assert thermal_voltage(27.0) == pytest.approx(0.025865, rel=1e-4)


@pytest.mark.parametrize(
    "wrong", [{"saturation_A": 0.0}, {"emission": -1.0}, {"gap_eV": 0.05}, {"series_ohm": -1.0}]
)
def test_impossible_models_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"diode model X: {next(iter(wrong))}"):
        DiodeModel(**{"name": "X", "saturation_A": 1e-9, **wrong})


@pytest.mark.parametrize("wrong", [{"celsius": -280.0}, {"gmin": -1e-12}])
def test_impossible_conditions_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Conditions(**wrong)
