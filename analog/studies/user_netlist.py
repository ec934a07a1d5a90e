"""A netlist of the user's own: checked by name, solved natively and by ngspice, node by node."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from analog.conditions import Conditions
from analog.engines.libngspice import open_library
from analog.engines.ngspice import settings_for
from analog.netlist import Hold, Netlist, check_netlist, circuit_from_netlist, read_netlist, write_netlist
from analog.netlist.numbers import parse_number
from analog.solve import plan_circuit
from analog.studies.subject import OUTCOME, Subject
from deploy.arrays import Array
from deploy.errors import DeployError, InputError
from deploy.reading import read_bounded
from deploy.study import Case, Column, Row

__all__ = ["UserNetlistStudy"]

_MAX_BYTES = 20_000_000


class NetlistOptions(BaseModel):
    """Options of ``netlist``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str = Field(
        "",
        description="path of your netlist, the same on every machine that works; empty: the outputs of the "
        "bundle's own circuit, inputs at 0",
    )


@dataclass(frozen=True, eq=False)
class UserNetlistStudy:
    """Operating point of a netlist: one case a node, native and ngspice side by side."""

    subject: Subject
    summary: ClassVar[str] = "Operating point of your own netlist, natively and by ngspice"
    options: ClassVar[type[BaseModel]] = NetlistOptions
    columns: ClassVar[tuple[Column, ...]] = (
        Column("node", "", "name in the netlist"),
        Column("native", "V", "native solver; NaN where it has no such element"),
        Column("ngspice", "V", "ngspice; NaN where it failed or is not installed"),
        Column("difference", "V", "native minus ngspice"),
        Column("notes", "", "what the check and ngspice remark"),
        OUTCOME,
    )

    def cases(self, options: NetlistOptions, rng: np.random.Generator) -> Iterator[Case]:
        """One case a node.

        Raises
        ------
        InputError : the file cannot be read, or is no netlist.
        """
        text = self._text(options.file)
        digest = hashlib.sha256(text.encode()).hexdigest()
        for node in _nodes(text, options.file) if options.file else self._output_names():
            yield Case(node, {"node": node, "file": options.file, "sha256": digest})

    def _text(self, file: str) -> str:
        return _read(file) if file else self._own_netlist().text

    def _own_netlist(self) -> Netlist:
        circuit = self.subject.circuit
        settings = settings_for(self.subject.conditions, None)
        return write_netlist(circuit, Hold(np.zeros(circuit.n_in)), settings=settings, op_amp=self.subject.op_amp)

    def _output_names(self) -> tuple[str, ...]:
        vectors = self._own_netlist().vectors
        return tuple(vectors[node] for node in self.subject.circuit.outputs.tolist())

    def solve(self, case: Case, x: Array) -> Row:
        """Look one node up; the rows are not used."""
        node, file = case.parameters["node"], case.parameters["file"]
        nothing = {"node": node, "native": np.nan, "ngspice": np.nan, "difference": np.nan, "notes": ""}
        try:
            text = self._text(file)
        except InputError as error:
            return {**nothing, "outcome": str(error)}
        if hashlib.sha256(text.encode()).hexdigest() != case.parameters["sha256"]:
            return {**nothing, "outcome": f"{file} has changed since the study began"}
        native, native_reason = _solve_natively(text)
        spice, notes, spice_reason = _solve_by_ngspice(text)
        ours, theirs = native.get(node, np.nan), spice.get(node, np.nan)
        reasons = "; ".join(filter(None, (native_reason, spice_reason)))
        return {
            "node": node,
            "native": ours,
            "ngspice": theirs,
            "difference": ours - theirs,
            "notes": notes,
            "outcome": reasons or "ok",
        }


def _read(file: str) -> str:
    data = read_bounded(Path(file), limit=_MAX_BYTES)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"byte 0x{data[error.start]:02x} is no UTF-8", place=f"{file}, line {line}", remedy="save it as UTF-8"
        ) from None


def _nodes(text: str, file: str) -> tuple[str, ...]:
    try:
        nodes = read_netlist(text).nodes()[1:]
    except InputError as error:
        raise error.at(file) from None
    if not nodes:
        raise InputError("has no node but ground", place=file, remedy="give a title line, then elements")
    return nodes


@functools.lru_cache(maxsize=2)
def _solve_natively(text: str) -> tuple[Mapping[str, float], str]:
    try:
        netlist = read_netlist(text)
        plan = plan_circuit(circuit_from_netlist(netlist), _conditions(netlist.controls))
        solution = plan.solve(np.zeros((1, 0)))
    except InputError as error:
        return {}, f"native: {error}"
    if not solution.converged[0]:
        return {}, f"native: {solution.hint}"
    return dict(zip(plan.circuit.node_names, solution.volts[0].tolist(), strict=True)), ""


def _conditions(controls: tuple[str, ...]) -> Conditions:
    """Temperature and gmin as the netlist states them."""
    stated: dict[str, float] = {}
    for card in controls:
        words = card.replace("=", " ").split()
        if words[0] == ".temp" and len(words) > 1:
            stated["celsius"] = parse_number(words[1])
        for name, key in (("temp", "celsius"), ("gmin", "gmin")):
            if words[0].startswith(".opt") and name in words[:-1]:
                stated[key] = parse_number(words[words.index(name) + 1])
    return Conditions(**stated)


@functools.lru_cache(maxsize=2)
def _solve_by_ngspice(text: str) -> tuple[Mapping[str, float], str, str]:
    try:
        netlist = read_netlist(text)
        remarks = check_netlist(netlist)
        with open_library().circuit(text) as circuit:
            found = circuit.analyse("op", netlist.nodes()[1:])
    except DeployError as error:
        return {}, "", f"ngspice: {error}"
    if found.complaint is not None:
        return {}, "", f"ngspice: {found.complaint.cause}; {found.complaint.remedy}"
    values: dict[str, Any] = {name: float(vector[0]) for name, vector in found.vectors.items()}
    return values, "; ".join((*remarks, *found.notes)), ""
