"""Bill of materials: every part is counted once, values are preferred ones, rounding is what the circuit gets."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analog.bill_of_materials import bill_of_materials, round_resistors, rounding_error, write_bill_csv
from analog.e_series import SERIES, round_to_series, series_values


@pytest.mark.parametrize("series", SERIES)
def test_every_part_is_counted_once(series, cascade) -> None:
    circuit = cascade([6, 5, 3])
    lines = bill_of_materials(circuit, series)
    total = {
        part: sum(line.quantity for line in lines if line.part == part)
        for part in ("resistor", "diode", "amplifier")
    }
    assert total == {
        "resistor": len(circuit.resistors),
        "diode": len(circuit.diodes),
        "amplifier": len(circuit.vcvs),
    }


def test_the_csv_holds_the_lines(cascade) -> None:
    rows = list(csv.reader(io.StringIO(write_bill_csv(bill_of_materials(cascade([6, 5, 3]), "E12")))))
    assert rows[0] == ["part", "value", "quantity", "used for"]
    assert ["diode", "1N4148", "8", "clamp"] in rows
    assert ["amplifier", "gain -1", "8", "gain"] in rows


@given(st.floats(1e-2, 1e9), st.sampled_from(SERIES))
def test_rounding_goes_to_a_value_of_the_series_and_no_nearer_one_exists(ohm: float, series) -> None:
    """Nearest by ratio; 1e-9 is far above rounding of a logarithm and far below the step of any series."""
    (rounded,) = round_to_series(np.array([ohm]), series)
    decade = 10.0 ** np.floor(np.log10(rounded) + 1e-12)
    everything = np.concatenate([series_values(series) * decade * k for k in (0.1, 1.0, 10.0)])
    assert np.abs(everything / rounded - 1).min() < 1e-12
    assert abs(np.log(rounded / ohm)) <= np.abs(np.log(everything / ohm)).min() + 1e-9


@pytest.mark.parametrize(("series", "worst"), [("E6", 0.24), ("E24", 0.075), ("E96", 0.015)])
def test_the_error_is_within_half_a_step_of_the_series(series, worst, cascade) -> None:
    circuit = cascade([6, 5, 3])
    assert 0 < rounding_error(circuit, series) < worst
    rounded = round_resistors(circuit, series)
    change = np.abs(rounded.resistors.ohm / circuit.resistors.ohm - 1).max()
    assert change == rounding_error(circuit, series)


def test_a_negative_resistor_stays_negative(cascade) -> None:
    circuit = cascade([2, 2])
    negative = circuit.with_(resistors=circuit.resistors.with_(ohm=-circuit.resistors.ohm))
    assert (round_resistors(negative, "E12").resistors.ohm < 0).all()
