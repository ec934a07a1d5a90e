"""Operating points of single rows, by any engine, and the transfer curve of one cell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from analog.engines import ENGINES
from analog.solve import plan_circuit
from analog.studies.cell import extract_cell
from analog.studies.subject import OUTCOME, Subject
from analog.survey import dissipation
from deploy.arrays import Array
from deploy.errors import InputError, RequirementMissing
from deploy.study import Case, Column, Row

__all__ = ["CellTransfer", "EngineName", "OperatingPoints"]

EngineName = Literal["native", "ngspice", "ngspice-sweep", "ngspice-process", "pyspice"]


class PointOptions(BaseModel):
    """Options of ``operating-points``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: int = Field(20, ge=1, description="how many rows of the data, from the first")
    engine: EngineName = Field("native", description="who solves the circuit")


@dataclass(frozen=True, eq=False)
class OperatingPoints:
    """One operating point a row."""

    subject: Subject
    summary: ClassVar[str] = "Operating point of each row: decision, error, extreme voltages, power, evidence"
    options: ClassVar[type[BaseModel]] = PointOptions
    columns: ClassVar[tuple[Column, ...]] = (
        Column("row", "", "index in the data"),
        Column("engine", "", "who solved it, with version"),
        Column("agrees", "", "does the circuit decide as the network?"),
        Column("max_logit_error", "logits", "largest |circuit - network|"),
        Column("lowest", "V", "lowest node voltage"),
        Column("highest", "V", "highest node voltage"),
        Column("conducting", "", "diodes with more than 1 uA"),
        Column("power", "W", "heat of resistors and diodes"),
        Column("kcl_residual", "A", "largest current that Kirchhoff's law misses, recomputed from the voltages"),
        Column("volts_from_native", "V", "largest |difference| of a node voltage from the native solver's"),
        OUTCOME,
    )

    def cases(self, options: PointOptions, rng: np.random.Generator) -> Iterator[Case]:
        """One case a row."""
        for row in range(options.rows):
            yield Case(f"row={row}/{options.engine}", {"row": row, "engine": options.engine})

    def solve(self, case: Case, x: Array) -> Row:
        """Solve one row of x (batch, n_in)."""
        row, name = case.parameters["row"], case.parameters["engine"]
        nothing: dict[str, Any] = {column.name: np.nan for column in self.columns}
        nothing |= {"row": row, "engine": name, "agrees": None, "conducting": None}
        if row >= len(x):
            return {**nothing, "outcome": f"the data has {len(x)} rows"}
        circuit, one = self.subject.circuit, x[row : row + 1]
        plan = plan_circuit(circuit, self.subject.conditions)
        native = plan.solve(one)
        try:
            with ENGINES[name](circuit, self.subject.conditions) as engine:
                solution = native if name == "native" else engine.solve(one)
        except RequirementMissing as error:
            return {**nothing, "outcome": str(error)}
        if not solution.converged[0]:
            return {**nothing, "outcome": solution.hint}
        logits, wanted = circuit.read_outputs(solution.volts), self.subject.model.logits(one)
        amps = solution.diode_amps if solution.diode_amps is not None else np.zeros((1, 0))
        return {
            "row": row,
            "engine": solution.engine,
            "agrees": bool(self.subject.model.decision.agree(logits, wanted)[0]),
            "max_logit_error": float(np.abs(logits - wanted).max()),
            "lowest": float(solution.volts.min()),
            "highest": float(solution.volts.max()),
            "conducting": int(np.count_nonzero(amps[0] > 1e-6)),
            "power": float(dissipation(plan, solution.volts)[0]),
            "kcl_residual": float(solution.residual[0]),
            "volts_from_native": float(np.abs(solution.volts - native.volts).max()),
            "outcome": "ok",
        }


class TransferOptions(BaseModel):
    """Options of ``cell-transfer``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layer: int = Field(0, ge=0, description="hidden layer of the cell")
    unit: int = Field(0, ge=0, description="unit of the cell")
    low_volts: float = Field(-5.0, description="first value of the amplified sum")
    high_volts: float = Field(5.0, description="last value of the amplified sum")
    points: int = Field(41, ge=2, le=100_000, description="how many values")


@dataclass(frozen=True, eq=False)
class CellTransfer:
    """Output of one unit's cell over its amplified sum, beside the ReLU."""

    subject: Subject
    summary: ClassVar[str] = "Transfer curve of one cell beside the ReLU"
    options: ClassVar[type[BaseModel]] = TransferOptions
    columns: ClassVar[tuple[Column, ...]] = (
        Column("layer", "", "hidden layer"),
        Column("unit", "", "unit in the layer"),
        Column("input", "V", "amplified open-circuit sum"),
        Column("output", "V", "what the cell gives"),
        Column("relu", "V", "max(input, 0)"),
        Column("error", "V", "output minus relu"),
        OUTCOME,
    )

    def cases(self, options: TransferOptions, rng: np.random.Generator) -> Iterator[Case]:
        """One case a value."""
        for volts in np.linspace(options.low_volts, options.high_volts, options.points).tolist():
            parameters = {"layer": options.layer, "unit": options.unit, "input": volts}
            yield Case(f"layer={options.layer}/unit={options.unit}/input={volts:.12g}", parameters)

    def solve(self, case: Case, x: Array) -> Row:
        """Solve one point; the rows are not used."""
        given = dict(case.parameters)
        relu = max(given["input"], 0.0)
        try:
            cell = extract_cell(self.subject.circuit, given["layer"], given["unit"])
            (found,) = plan_circuit(cell, self.subject.conditions).outputs(np.array([[given["input"]]]))
        except InputError as error:
            return {**given, "output": np.nan, "relu": relu, "error": np.nan, "outcome": str(error)}
        output = float(found[0])
        return {**given, "output": output, "relu": relu, "error": output - relu, "outcome": "ok"}
