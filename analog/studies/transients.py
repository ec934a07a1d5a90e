"""Settling after a step of the inputs: how long until the outputs can be read, and the waveforms on the way.

Transients are ngspice's. Every node carries a stray capacitance; diodes have their junction's and their transit
time; amplifiers are ideal and instantaneous, so what is found is the passive part's time, a lower bound.

Axes: ``points``, ``n_out``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from analog.engines.libngspice import open_library
from analog.engines.ngspice import settings_for
from analog.netlist import Settings, Step, write_netlist
from analog.solve import plan_circuit
from analog.studies.subject import OUTCOME, Subject
from analog.survey import dissipation
from deploy.arrays import Array
from deploy.errors import RequirementMissing
from deploy.study import Case, Column, Row

__all__ = ["Settling", "Waveform", "settling_time"]

_STEP_AT = 1e-9
_RISE = 1e-10
_TRANSIENT = Settings(reltol=1e-4, vntol_V=1e-7, abstol_A=1e-12)
"""Tighter than SPICE's default, so that a settling to 0.1 % is no artefact of the integration."""


def settling_time(time_s: Array, volts: Array, final: Array, band: Array) -> float:
    """Last time at which an output is outside its band: `volts` (points, n_out), `final` and `band` (n_out,).

    The crossing is interpolated linearly. NaN where the last point is outside.

    >>> t = np.array([0.0, 1.0, 2.0, 3.0])
    >>> v = np.array([[0.0], [0.5], [1.0], [1.0]])
    >>> settling_time(t, v, np.array([1.0]), np.array([0.1]))
    1.8
    """
    outside = np.abs(volts - final) - band
    last = -1
    for index in np.flatnonzero((outside > 0).any(axis=1)).tolist():
        last = index
    if last < 0:
        return 0.0
    if last == len(time_s) - 1:
        return float("nan")
    before, after = outside[last], outside[last + 1]
    crossing = before > 0
    share = before[crossing] / (before[crossing] - after[crossing])
    return float(time_s[last] + share.max() * (time_s[last + 1] - time_s[last]))


@functools.lru_cache(maxsize=4)
def _run_transient(text: str, command: str, names: tuple[str, ...]) -> tuple[Array, str]:
    """Time and vectors (points, 1 + names), or a reason; cached, because one table asks for many points."""
    with open_library().circuit(text) as circuit:
        found = circuit.analyse(command, ("time", *names))
    if found.complaint is not None:
        return np.empty((0, 1 + len(names))), f"{found.complaint.cause}; {found.complaint.remedy}"
    return np.stack([found.vectors[name] for name in ("time", *names)], axis=1), ""


def _transient(
    subject: Subject, before: Array, after: Array, *, stop_s: float, node_F: float
) -> tuple[Array, Array, str]:
    """Time (points,) since the step and outputs' voltages (points, n_out), or a reason."""
    settings = settings_for(subject.conditions, _TRANSIENT)
    drive = Step(before, after, at_s=_STEP_AT, rise_s=_RISE)
    netlist = write_netlist(
        subject.circuit, drive, settings=settings, analyses=(), node_F=node_F, op_amp=subject.op_amp
    )
    names = tuple(netlist.vectors[node] for node in subject.circuit.outputs.tolist())
    end = _STEP_AT + stop_s
    table, reason = _run_transient(netlist.text, f"tran {stop_s / 500!r} {end!r} 0 {stop_s / 200!r}", names)
    return table[:, 0] - _STEP_AT, table[:, 1:], reason


class SettlingOptions(BaseModel):
    """Options of ``settling``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: int = Field(5, ge=1, description="how many rows of the data, from the first")
    stop_seconds: float = Field(1e-6, gt=0, description="first guess of the time to simulate; it grows fourfold")
    node_farad: float = Field(5e-12, gt=0, description="stray capacitance of every node")


@dataclass(frozen=True, eq=False)
class Settling:
    """Time from a step of the inputs (all 0 to the row) until every logit stays within 1 % and 0.1 %."""

    subject: Subject
    summary: ClassVar[str] = "Settling time and energy of an inference, by transient analysis (ngspice)"
    options: ClassVar[type[BaseModel]] = SettlingOptions
    columns: ClassVar[tuple[Column, ...]] = (
        Column("row", "", "index in the data"),
        Column("settling_1_percent", "s", "until every output stays within 1 % of the largest output step"),
        Column("settling_01_percent", "s", "until every output stays within 0.1 % of it"),
        Column("power", "W", "heat of resistors and diodes in the final operating point"),
        Column("energy", "J", "power times the settling time to 0.1 %"),
        Column("final_error", "V", "largest |last point - native operating point| of an output"),
        OUTCOME,
    )

    def cases(self, options: SettlingOptions, rng: np.random.Generator) -> Iterator[Case]:
        """One case a row."""
        for row in range(options.rows):
            parameters = {"row": row, "stop_s": options.stop_seconds, "node_F": options.node_farad}
            yield Case(f"row={row}/node={options.node_farad:g}", parameters)

    def solve(self, case: Case, x: Array) -> Row:
        """Step to one row of x (batch, n_in)."""
        row = case.parameters["row"]
        nothing: dict[str, Any] = {column.name: np.nan for column in self.columns} | {"row": row}
        if row >= len(x):
            return {**nothing, "outcome": f"the data has {len(x)} rows"}
        plan = plan_circuit(self.subject.circuit, self.subject.conditions)
        volts = plan.volts(np.stack([np.zeros_like(x[row]), x[row]]))
        first, final = volts[:, self.subject.circuit.outputs]
        watts = float(dissipation(plan, volts[1:])[0])
        try:
            return {**nothing, **self._measure(case.parameters, x[row], first, final, watts)}
        except RequirementMissing as error:
            return {**nothing, "outcome": str(error)}

    def _measure(
        self, parameters: Mapping[str, Any], row: Array, first: Array, final: Array, watts: float
    ) -> dict[str, Any]:
        band = np.full(len(final), max(float(np.abs(final - first).max()), 1e-6))
        stop = parameters["stop_s"]
        for _ in range(6):
            time, outputs, reason = _transient(
                self.subject, np.zeros_like(row), row, stop_s=stop, node_F=parameters["node_F"]
            )
            if reason:
                return {"outcome": reason}
            slow, fast = (settling_time(time, outputs, final, band * share) for share in (1e-3, 1e-2))
            if np.isfinite(slow):
                return {
                    "settling_1_percent": fast,
                    "settling_01_percent": slow,
                    "power": watts,
                    "energy": watts * slow,
                    "final_error": float(np.abs(outputs[-1] - final).max()),
                    "outcome": "ok",
                }
            stop *= 4
        return {"outcome": f"not settled after {stop / 4:.3g} s"}


class WaveformOptions(BaseModel):
    """Options of ``waveform``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    row: int = Field(0, ge=0, description="row of the data that the inputs step to")
    stop_seconds: float = Field(1e-6, gt=0, description="time to simulate")
    points: int = Field(201, ge=2, le=100_000, description="points of the table")
    node_farad: float = Field(5e-12, gt=0, description="stray capacitance of every node")


@dataclass(frozen=True, eq=False)
class Waveform:
    """Voltages of the outputs over time after a step of the inputs from 0 to a row."""

    subject: Subject
    summary: ClassVar[str] = "Waveforms of the outputs after a step of the inputs (ngspice)"
    options: ClassVar[type[BaseModel]] = WaveformOptions

    @property
    def columns(self) -> tuple[Column, ...]:
        """Time, then every output."""
        outputs = range(len(self.subject.circuit.outputs))
        return (
            Column("time", "s", "since the step"),
            *(Column(f"output_{k}", "V", f"voltage of output {k}") for k in outputs),
            OUTCOME,
        )

    def cases(self, options: WaveformOptions, rng: np.random.Generator) -> Iterator[Case]:
        """One case a point in time."""
        fixed = {"row": options.row, "stop_s": options.stop_seconds, "node_F": options.node_farad}
        for time in np.linspace(0.0, options.stop_seconds, options.points).tolist():
            yield Case(f"row={options.row}/time={time:.6e}", {"time": time, **fixed})

    def solve(self, case: Case, x: Array) -> Row:
        """Read one point of the waveform."""
        at = case.parameters["time"]
        row: dict[str, Any] = {column.name: np.nan for column in self.columns} | {"time": at}
        if case.parameters["row"] >= len(x):
            return {**row, "outcome": f"the data has {len(x)} rows"}
        after = x[case.parameters["row"]]
        try:
            time, outputs, reason = _transient(
                self.subject,
                np.zeros_like(after),
                after,
                stop_s=case.parameters["stop_s"],
                node_F=case.parameters["node_F"],
            )
        except RequirementMissing as error:
            return {**row, "outcome": str(error)}
        if reason:
            return {**row, "outcome": reason}
        row |= {f"output_{k}": float(np.interp(at, time, outputs[:, k])) for k in range(outputs.shape[1])}
        return {**row, "outcome": "ok"}
