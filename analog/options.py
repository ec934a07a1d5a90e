"""Options of the ``circuit`` target; light to import."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["CellKind", "CircuitOptions"]

CellKind = Literal["clamp", "shunt", "series", "superdiode"]


class CircuitOptions(BaseModel):
    """What ``--set circuit.NAME=VALUE`` takes. Units stand in the names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cell: CellKind = Field(
        "clamp",
        description="rectifier of a hidden unit: clamp (gain, resistor, diode from a rail), shunt (diode at the "
        "summing node), series (half-wave behind a gain), superdiode (half-wave inside an op-amp's loop)",
    )
    diode: str = Field(
        "1N4148", description="ideal, near_ideal, 1N4148, BAT54, or your own card: .model NAME D(IS=… N=… RS=…)"
    )
    full_scale_volts: float = Field(
        5.0, gt=0, le=1e3, description="largest hidden output over the calibration rows"
    )
    equalise: bool = Field(True, description="scale hidden units so that each reaches full scale")
    fit_rail: bool = Field(
        True, description="fit each layer's clamp rail (series: its shift) to the calibration rows"
    )
    rail_volts: float = Field(0.3, ge=0, le=5, description="clamp rail where it is not fitted; ideal diodes use 0")
    compensate: bool = Field(
        True, description="refit each layer's weights to what its diodes really give (least squares)"
    )
    max_conductance_siemens: float = Field(1e-4, gt=0, le=1, description="largest weight becomes this conductance")
    max_ohm: float = Field(
        0.0, ge=0, description="largest resistor you can place; what exceeds it is reported; 0: no limit"
    )
    series_ohm: float = Field(1e4, gt=0, description="resistor before the clamp")
    load_ohm: float = Field(1e4, gt=0, description="load of a series or superdiode cell")
    supply_volts: float = Field(
        12.0, gt=0, description="amplifiers swing between minus and plus this; excess is reported"
    )
    amplifier_watts: float = Field(0.5e-3, ge=0, description="quiescent power of one active part, for the estimate")
    op_amp_gain: float = Field(1e3, ge=10, le=1e8, description="open-loop gain of a superdiode's op-amp")
    op_amp: str = Field(
        "",
        description="your own op-amp for netlists and SPICE runs: a whole .subckt … .ends block whose pins are "
        "non-inverting, inverting, positive supply, negative supply, output",
    )
    realisation: Literal["auto", "doubled", "controlled"] = Field(
        "auto",
        description="symmetric part of an equilibrium network: doubled (resistors alone, where they exist), controlled "
        "(transconductances), auto prefers doubled",
    )
    e_series: Literal["none", "E3", "E6", "E12", "E24", "E48", "E96", "E192"] = Field(
        "none", description="round every resistor to this series"
    )
    celsius: float = Field(27.0, ge=-273, le=500, description="ambient temperature")
