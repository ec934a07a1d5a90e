"""Model cards as data."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from analog.devices.diode import DiodeModel

__all__ = ["BAT54", "D1N4148", "IDEAL", "MODEL_CARDS", "NEAR_IDEAL"]

IDEAL = DiodeModel(name="ideal", saturation_A=1e-12, emission=1e-4, nominal_celsius=None, ideal=True)
"""i >= 0, v <= 0, i v = 0."""

NEAR_IDEAL = DiodeModel(
    name="near_ideal",
    saturation_A=1e-12,
    emission=1e-3,
    nominal_celsius=None,
    source="drops below 1 mV; ngspice at reltol 1e-7 resolves it to 1e-9 V (N = 1e-4: to 1e-8)",
)

D1N4148 = DiodeModel(
    name="1N4148",
    saturation_A=2.52e-9,
    emission=1.752,
    series_ohm=0.568,
    junction_F=4e-12,
    grading=0.4,
    transit_s=20e-9,
    reverse_V=75.0,
    source="widely used card of the 1N4148 small-signal diode",
)

BAT54 = DiodeModel(
    name="BAT54",
    saturation_A=2.117e-7,
    emission=1.016,
    series_ohm=2.637,
    gap_eV=0.69,
    temperature_exponent=2.0,
    junction_F=11.14e-12,
    junction_V=0.2013,
    grading=0.3868,
    reverse_V=30.0,
    source="widely used card of the BAT54 Schottky diode",
)

MODEL_CARDS: Mapping[str, DiodeModel] = MappingProxyType(
    {model.name: model for model in (IDEAL, NEAR_IDEAL, D1N4148, BAT54)}
)
"""The cards that options may name."""
