"""Studies that change the circuit and judge its decisions: tolerance, mismatch, amplifiers, temperature, values.

Each case is a handful of numbers; random draws are named by (base, draw), so more draws extend a table and one
worker, many, and a cluster give the same rows.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from analog.bill_of_materials import round_resistors, rounding_error
from analog.conditions import Conditions
from analog.e_series import SERIES, Series
from analog.studies.perturb import (
    limit_amplifier_gain,
    offset_amplifiers,
    scale_conductances,
    scale_resistors,
    scale_sources,
    select_resistors,
)
from analog.studies.subject import JUDGED, Subject, Variation
from deploy.arrays import Array
from deploy.study import Case, Column, Row

__all__ = [
    "AmplifierGain",
    "AmplifierOffset",
    "Corners",
    "DiodeMismatch",
    "ParameterSweep",
    "Power",
    "PreferredValues",
    "ResistorTolerance",
    "Temperature",
]


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, eq=False)
class _Variations(abc.ABC):
    """A study whose cases are variations of one circuit; subclasses say which."""

    subject: Subject
    summary: ClassVar[str]
    parameters: ClassVar[tuple[Column, ...]]
    options: ClassVar[type[BaseModel]]

    @property
    def columns(self) -> tuple[Column, ...]:
        """The case's own parameters, then what is judged."""
        return (*self.parameters, *JUDGED)

    @abc.abstractmethod
    def cases(self, options: Any, rng: np.random.Generator) -> Iterator[Case]:
        """List the cases."""

    @abc.abstractmethod
    def vary(self, parameters: Mapping[str, Any]) -> Variation:
        """Make the variation of one case."""

    def solve(self, case: Case, x: Array) -> Row:
        """Judge one variation on rows x (batch, n_in)."""
        shown = {column.name: case.parameters[column.name] for column in self.parameters}
        return {**shown, **self.subject.judge(self.vary(case.parameters), x)}


class _Listed(_Variations):
    """One case for each value that an option lists; the first parameter takes it."""

    listed: ClassVar[str]
    label: ClassVar[str]

    def cases(self, options: Any, rng: np.random.Generator) -> Iterator[Case]:
        """One case a value."""
        for value in getattr(options, self.listed):
            yield Case(f"{self.label}={value:g}", {self.parameters[0].name: value})


class _MonteCarlo(_Listed):
    """Every value that an option lists, `draws` times; a draw's numbers come from the study's base and its own."""

    def cases(self, options: Any, rng: np.random.Generator) -> Iterator[Case]:
        """One case a value and draw."""
        base = int(rng.integers(2**48))
        for case, draw in itertools.product(super().cases(options, rng), range(options.draws)):
            yield Case(f"{case.id}/draw={draw}", {**case.parameters, "draw": draw, "base": base})


_DRAW = Column("draw", "", "number of the random circuit")


def _rng(parameters: Mapping[str, Any]) -> np.random.Generator:
    return np.random.default_rng([parameters["base"], parameters["draw"]])


class ToleranceOptions(_Options):
    """Options of ``resistor-tolerance``."""

    percent: tuple[float, ...] = Field((1.0, 5.0, 20.0), description="tolerances to try, in percent")
    draws: int = Field(200, ge=1, description="random circuits for each tolerance")
    law: str = Field("uniform", pattern="^(uniform|normal)$", description="uniform within, or normal with sigma/3")


class ResistorTolerance(_MonteCarlo):
    """Every resistor off by its own random factor."""

    summary = "Monte Carlo over resistor tolerances"
    options = ToleranceOptions
    parameters = (
        Column("tolerance", "%", "largest relative error of a resistor (normal: three sigma)"),
        Column("law", "", "uniform or normal"),
        _DRAW,
    )
    listed = "percent"
    label = "tolerance"

    def cases(self, options: ToleranceOptions, rng: np.random.Generator) -> Iterator[Case]:
        """Every tolerance, `draws` times, by the law that was asked for."""
        for case in super().cases(options, rng):
            yield Case(f"{case.id}/{options.law}", {**case.parameters, "law": options.law})

    def vary(self, parameters: Mapping[str, Any]) -> Variation:
        """Multiply each resistance by 1 + error."""
        circuit, rng = self.subject.circuit, _rng(parameters)
        scale = parameters["tolerance"] / 100
        count = len(circuit.resistors)
        error = (
            rng.uniform(-scale, scale, count) if parameters["law"] == "uniform" else rng.normal(0, scale / 3, count)
        )
        return Variation(scale_resistors(circuit, 1 + error), self.subject.conditions)


class MismatchOptions(_Options):
    """Options of ``diode-mismatch``."""

    sigma: tuple[float, ...] = Field((0.3, 1.0), description="spread of ln(saturation current), one sigma")
    draws: int = Field(100, ge=1, description="random circuits for each spread")


class DiodeMismatch(_MonteCarlo):
    """Every diode's saturation current off by its own log-normal factor."""

    summary = "Monte Carlo over the diodes' saturation currents"
    options = MismatchOptions
    parameters = (Column("sigma", "", "standard deviation of ln(I_S)"), _DRAW)
    listed = "sigma"
    label = "sigma"

    def vary(self, parameters: Mapping[str, Any]) -> Variation:
        """Multiply each saturation current."""
        diodes = len(self.subject.circuit.diodes)
        factors = _rng(parameters).lognormal(0.0, parameters["sigma"], diodes)
        return replace(self.subject.nominal(), saturation_factors=factors)


class OffsetOptions(_Options):
    """Options of ``amplifier-offset``."""

    millivolts: tuple[float, ...] = Field((0.5, 1.0, 3.0, 10.0), description="input offsets, one sigma, in mV")
    draws: int = Field(100, ge=1, description="random circuits for each offset")


class AmplifierOffset(_MonteCarlo):
    """Every amplifier with its own input offset."""

    summary = "Monte Carlo over the amplifiers' input offset voltages"
    options = OffsetOptions
    parameters = (Column("offset", "mV", "standard deviation of the input offset"), _DRAW)
    listed = "millivolts"
    label = "offset"

    def vary(self, parameters: Mapping[str, Any]) -> Variation:
        """Put a source before each amplifier."""
        circuit = self.subject.circuit
        count = len(circuit.vcvs) + len(circuit.op_amps)
        volts = _rng(parameters).normal(0.0, parameters["offset"] * 1e-3, count)
        return Variation(offset_amplifiers(circuit, volts), self.subject.conditions)


class GainOptions(_Options):
    """Options of ``amplifier-gain``."""

    open_loop: tuple[float, ...] = Field((1e2, 1e3, 1e4, 1e5, 1e6), description="open-loop gains to try")


class AmplifierGain(_Listed):
    """Amplifiers built from op-amps of finite open-loop gain."""

    summary = "Finite open-loop gain of the amplifiers"
    options = GainOptions
    parameters = (Column("open_loop_gain", "", "gain of every op-amp without feedback"),)
    listed = "open_loop"
    label = "gain"

    def vary(self, parameters: Mapping[str, Any]) -> Variation:
        """Reduce every closed-loop gain."""
        limited = limit_amplifier_gain(self.subject.circuit, parameters["open_loop_gain"])
        return Variation(limited, self.subject.conditions)


class TemperatureOptions(_Options):
    """Options of ``temperature``."""

    celsius: tuple[float, ...] = Field(
        (-40.0, 0.0, 27.0, 60.0, 85.0, 125.0), description="ambient temperatures, in degrees Celsius"
    )


class Temperature(_Listed):
    """The whole circuit at other temperatures, rails as they were designed."""

    summary = "Ambient temperature"
    options = TemperatureOptions
    parameters = (Column("temperature", "degC", "ambient temperature of every diode"),)
    listed = "celsius"
    label = "celsius"

    def vary(self, parameters: Mapping[str, Any]) -> Variation:
        """Change the temperature alone."""
        conditions = replace(self.subject.conditions, celsius=parameters["temperature"])
        return replace(self.subject.nominal(), conditions=conditions)


class CornerOptions(_Options):
    """Options of ``corners``."""

    celsius: tuple[float, ...] = Field(
        (-40.0, 125.0), description="temperatures of the corners, in degrees Celsius"
    )
    saturation: tuple[float, ...] = Field((0.3, 3.0), description="factors on every diode's saturation current")
    rail_percent: float = Field(5.0, ge=0, le=50, description="error of the clamp rails, both ways, in percent")
    cell_percent: float = Field(5.0, ge=0, le=50, description="error of series and load resistors, both ways")


class Corners(_Variations):
    """All combinations of extreme temperature, diodes, clamp rails and cell resistors, each common to all cells."""

    summary = "Corners of temperature, diodes, rails and cell resistors"
    options = CornerOptions
    parameters = (
        Column("temperature", "degC", "ambient temperature"),
        Column("saturation", "", "factor on every saturation current"),
        Column("rail_error", "%", "error of every clamp rail"),
        Column("cell_error", "%", "error of every series and load resistor"),
    )

    def cases(self, options: CornerOptions, rng: np.random.Generator) -> Iterator[Case]:
        """Every combination."""
        rails, cells = ((-p, p) if p else (0.0,) for p in (options.rail_percent, options.cell_percent))
        for t, s, r, c in itertools.product(options.celsius, options.saturation, rails, cells):
            parameters = {"temperature": t, "saturation": s, "rail_error": r, "cell_error": c}
            yield Case(f"celsius={t:g}/saturation={s:g}/rail={r:g}/cell={c:g}", parameters)

    def vary(self, parameters: Mapping[str, Any]) -> Variation:
        """Move everything to the corner."""
        circuit = scale_sources(self.subject.circuit, "clamp rail", 1 + parameters["rail_error"] / 100)
        cells = select_resistors(circuit, ("series", "load"))
        circuit = scale_resistors(circuit, 1 + parameters["cell_error"] / 100, cells)
        conditions = replace(self.subject.conditions, celsius=parameters["temperature"])
        return Variation(circuit, conditions, np.full(len(circuit.diodes), parameters["saturation"]))


class SeriesOptions(_Options):
    """Options of ``preferred-values``."""

    series: tuple[Series, ...] = Field(SERIES, description="E-series to round every resistor to")


class PreferredValues(_Variations):
    """Resistors that can be bought."""

    summary = "Resistors rounded to E-series"
    options = SeriesOptions
    parameters = (
        Column("series", "", "E-series"),
        Column("largest_change", "", "largest relative change of a resistor"),
    )

    def cases(self, options: SeriesOptions, rng: np.random.Generator) -> Iterator[Case]:
        """One case a series."""
        for series in options.series:
            change = rounding_error(self.subject.circuit, series)
            yield Case(series, {"series": series, "largest_change": change})

    def vary(self, parameters: Mapping[str, Any]) -> Variation:
        """Round."""
        return Variation(round_resistors(self.subject.circuit, parameters["series"]), self.subject.conditions)


class PowerOptions(_Options):
    """Options of ``power``."""

    scales: tuple[float, ...] = Field((1.0, 0.1, 0.01, 0.001), description="factors on every conductance")


class Power(_Listed):
    """What an inference dissipates, and what smaller conductances cost in fidelity."""

    summary = "Power of an inference against the scale of the conductances"
    options = PowerOptions
    parameters = (Column("conductance_scale", "", "factor on every conductance"),)
    listed = "scales"
    label = "scale"

    @property
    def columns(self) -> tuple[Column, ...]:
        """Power first."""
        return (
            *self.parameters,
            Column("mean_power", "W", "heat of resistors and diodes, mean over the rows"),
            Column("max_power", "W", "heat of resistors and diodes, largest row"),
            Column("amplifier_power", "W", "quiescent power of the active parts (a figure of the options)"),
            *JUDGED,
        )

    def vary(self, parameters: Mapping[str, Any]) -> Variation:
        """Scale every conductance."""
        scaled = scale_conductances(self.subject.circuit, parameters["conductance_scale"])
        return Variation(scaled, self.subject.conditions)

    def solve(self, case: Case, x: Array) -> Row:
        """Judge and measure one scale."""
        watts = self.subject.watts(self.vary(case.parameters), x)
        return {
            **super().solve(case, x),
            "mean_power": float(np.nanmean(watts)),
            "max_power": float(np.nanmax(watts)),
            "amplifier_power": self.subject.circuit.active_parts * self.subject.amplifier_W,
        }


class SweepOptions(_Options):
    """Options of ``parameter-sweep``."""

    parameter: str = Field(
        "clamp_rail",
        pattern="^(clamp_rail|series_ohm|load_ohm|saturation|temperature|gmin|bias_rail|input)$",
        description="clamp_rail, bias_rail, input, series_ohm, load_ohm, saturation (factors), temperature (degrees "
        "Celsius) or gmin (siemens)",
    )
    start: float = Field(0.5, description="first value")
    stop: float = Field(1.5, description="last value")
    points: int = Field(11, ge=2, le=100_000, description="how many values")
    logarithmic: bool = Field(False, description="equal ratios instead of equal steps")


class ParameterSweep(_Variations):
    """One parameter over a range."""

    summary = "Sweep of one parameter: rails, cell resistors, diodes, temperature"
    options = SweepOptions
    parameters = (
        Column("parameter", "", "what is swept"),
        Column("value", "as the parameter", "a factor on the nominal value, degrees Celsius, or siemens"),
    )

    def cases(self, options: SweepOptions, rng: np.random.Generator) -> Iterator[Case]:
        """One case a value."""
        space = np.geomspace if options.logarithmic else np.linspace
        for value in space(options.start, options.stop, options.points).tolist():
            yield Case(f"{options.parameter}={value:.12g}", {"parameter": options.parameter, "value": value})

    def vary(self, parameters: Mapping[str, Any]) -> Variation:
        """Set the parameter."""
        name, value = parameters["parameter"], parameters["value"]
        circuit, conditions = self.subject.circuit, self.subject.conditions
        if name in ("clamp_rail", "bias_rail", "input"):
            return Variation(scale_sources(circuit, name.replace("_", " "), value), conditions)
        if name in ("series_ohm", "load_ohm"):
            which = select_resistors(circuit, (name.removesuffix("_ohm"),))
            return Variation(scale_resistors(circuit, value, which), conditions)
        if name == "saturation":
            return Variation(circuit, conditions, np.full(len(circuit.diodes), value))
        celsius = value if name == "temperature" else conditions.celsius
        return Variation(circuit, Conditions(celsius=celsius, gmin=value if name == "gmin" else conditions.gmin))
