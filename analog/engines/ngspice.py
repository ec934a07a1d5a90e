"""Operating points from ngspice's shared library: one ``op`` a row, or one ``dc`` sweep over many rows.

Axes: ``batch``, ``n_in``, ``nodes``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from analog.circuit import Circuit
from analog.conditions import Conditions
from analog.engines.libngspice import Analysis, Library, LoadedCircuit, open_library
from analog.engines.locate import LIBRARY
from analog.engines.protocol import CircuitEngine
from analog.netlist import Settings, Sweep, write_netlist
from analog.netlist.op_amp import IDEAL_OP_AMP, OpAmpCard
from analog.netlist.writer import element_names
from deploy.arrays import Array

__all__ = [
    "POINT_TOLERANCES",
    "SWEEP_TOLERANCES",
    "OperatingPointEngine",
    "SweepEngine",
    "driven_levels",
    "settings_for",
    "sweep_chunks",
]

POINT_TOLERANCES = (Settings(reltol=1e-9, vntol_V=1e-12, abstol_A=1e-17), Settings())
"""Tight first, which leaves under 1e-10 V; where ngspice cannot reach that (2 % of random circuits), reltol 1e-7, which
leaves 1e-13 V mostly and 1e-7 V once in a thousand; the row's note says so."""
SWEEP_TOLERANCES = Settings(reltol=1e-12, vntol_V=1e-13, abstol_A=1e-17)
"""A sweep starts each row from the last one's solution and stops as soon as its tolerances allow: the tolerances of
single operating points would leave 2e-8 V, these leave 4e-13 V, for about half more time. Where they are out of
reach the rows are solved again."""
_POINTS_PER_SWEEP = 200_000
"""Source values in one netlist: bounds its text to some megabytes."""


def settings_for(conditions: Conditions, tolerances: Settings | None) -> Settings:
    """Settings with the conditions' temperature and gmin."""
    return replace(tolerances or Settings(), celsius=conditions.celsius, gmin_S=conditions.gmin)


class OperatingPointEngine(CircuitEngine):
    """ngspice, one operating point a row: the netlist is loaded once, its sources are altered.

    Parameters
    ----------
    tolerances : ngspice's tolerances, the first that converge count; temperature and gmin come from `conditions`.
    op_amp : subcircuit of every op-amp.
    library_file : path of libngspice; default: the one found.
    """

    name = "ngspice"
    requires = LIBRARY

    def __init__(
        self,
        circuit: Circuit,
        conditions: Conditions | None = None,
        *,
        tolerances: Sequence[Settings] = POINT_TOLERANCES,
        op_amp: OpAmpCard = IDEAL_OP_AMP,
        library_file: str | None = None,
    ) -> None:
        super().__init__(circuit, conditions)
        self._ladder = tuple(settings_for(self.conditions, settings) for settings in tolerances)
        self._op_amp = op_amp
        self._file = library_file
        self._library: Library | None = None
        self._loaded: dict[Settings, LoadedCircuit] = {}
        self._vectors: tuple[str, ...] = ()
        self._names = element_names(circuit)

    def _open(self) -> None:
        self._library = open_library(self._file)
        self._load(self._ladder[0])

    def _load(self, settings: Settings) -> LoadedCircuit:
        """The circuit with these tolerances, loaded when it is first needed."""
        assert self._library is not None
        if settings not in self._loaded:
            netlist = write_netlist(self.circuit, settings=settings, op_amp=self._op_amp)
            self._vectors = netlist.vectors
            self._loaded[settings] = self._library.circuit(netlist.text)
        return self._loaded[settings]

    def _close(self) -> None:
        for loaded in self._loaded.values():
            loaded.close()
        self._loaded.clear()

    def _solve(self, x: Array) -> tuple[Array, dict[int, str], str]:
        if self._library is None or not self._loaded:
            raise RuntimeError("enter the engine first: `with engine: engine.solve(x)`")
        volts = np.full((len(x), self.circuit.n_nodes), np.nan)
        notes: dict[int, str] = {}
        driven = driven_levels(self.circuit, self._names, x)
        for row in range(len(x)):
            levels = {name: float(column[row]) for name, column in driven.items()}
            place_row(volts, notes, row, self._find_point(levels), self._vectors)
        return volts, notes, f"ngspice-{self._library.version} op"

    def _find_point(self, levels: Mapping[str, float]) -> Analysis:
        """Climb down the ladder until a point is found."""
        for settings in self._ladder:
            loaded = self._load(settings)
            loaded.alter(levels)
            found = loaded.analyse("op", self._vectors[1:])
            if found.complaint is None:
                break
        if found.complaint is None and settings != self._ladder[0]:
            return replace(found, notes=(f"ngspice converged at reltol {settings.reltol:g} only", *found.notes))
        return found


def driven_levels(circuit: Circuit, names: Mapping[str, tuple[str, ...]], x: Array) -> dict[str, Array]:
    """Level (batch,) of every source that rows x (batch, n_in) drive, by the source's full name."""
    found: dict[str, Array] = {}
    for kind, letter in (("voltage_sources", "v"), ("current_sources", "i")):
        table = getattr(circuit, kind)
        levels = table.levels(x)
        driven = np.flatnonzero(table.input >= 0).tolist()
        found |= {letter + names[kind][index]: levels[:, index] for index in driven}
    return found


def place_row(
    volts: Array, notes: dict[int, str], row: int, found: Analysis, vectors: tuple[str, ...], point: int = 0
) -> None:
    """Put one point of an analysis into row `row` of volts (batch, nodes), or a note where it failed."""
    if found.complaint is not None:
        notes[row] = f"{found.complaint.cause}; {found.complaint.remedy}"
        return
    volts[row, 0] = 0.0
    volts[row, 1:] = [found.vectors[name][point] for name in vectors[1:]]
    if found.notes:
        notes[row] = "; ".join(found.notes)


def was_rescued(found: Analysis) -> bool:
    """Whether ngspice's transient rescue, which may give anything, had a part in the values."""
    return any("transient rescue" in note for note in found.notes)


def sweep_chunks(circuit: Circuit, x: Array) -> list[slice]:
    """Cut rows so that one sweep's netlist stays within its size."""
    driven = int((circuit.voltage_sources.input >= 0).sum() + (circuit.current_sources.input >= 0).sum())
    size = max(1, _POINTS_PER_SWEEP // max(driven, 1))
    return [slice(start, min(start + size, len(x))) for start in range(0, len(x), size)]


class SweepEngine(OperatingPointEngine):
    """ngspice, many rows in one ``dc`` sweep: no set-up between rows and a warm start, three to five times faster.

    Rows of a sweep that ngspice gives up are solved again one by one.
    """

    name = "ngspice-sweep"

    def __init__(
        self,
        circuit: Circuit,
        conditions: Conditions | None = None,
        *,
        tolerances: Settings = SWEEP_TOLERANCES,
        op_amp: OpAmpCard = IDEAL_OP_AMP,
        library_file: str | None = None,
    ) -> None:
        super().__init__(circuit, conditions, tolerances=(tolerances,), op_amp=op_amp, library_file=library_file)

    def _open(self) -> None:
        self._library = open_library(self._file)

    def _solve(self, x: Array) -> tuple[Array, dict[int, str], str]:
        if self._library is None:
            raise RuntimeError("enter the engine first: `with engine: engine.solve(x)`")
        volts = np.full((len(x), self.circuit.n_nodes), np.nan)
        notes: dict[int, str] = {}
        for part in sweep_chunks(self.circuit, x):
            drive = Sweep(x[part])
            netlist = write_netlist(self.circuit, drive, settings=self._ladder[0], op_amp=self._op_amp)
            with self._library.circuit(netlist.text) as loaded:
                found = loaded.analyse(drive.analysis(), netlist.vectors[1:])
            if found.complaint is None and not was_rescued(found):
                volts[part, 0] = 0.0
                volts[part, 1:] = np.stack([found.vectors[name] for name in netlist.vectors[1:]], axis=1)
                if found.notes:
                    notes.setdefault(-1, "; ".join(found.notes))
            else:
                cause = "transient rescue" if found.complaint is None else found.complaint.cause
                self._solve_singly(x, part, volts, notes, cause)
        return volts, notes, f"ngspice-{self._library.version} dc sweep"

    def _solve_singly(self, x: Array, part: slice, volts: Array, notes: dict[int, str], cause: str) -> None:
        with OperatingPointEngine(
            self.circuit, self.conditions, op_amp=self._op_amp, library_file=self._file
        ) as single:
            solution = single.solve(x[part])
        volts[part] = solution.volts
        notes[-1] = f"a sweep failed ({cause}); its rows were solved one by one"
        for row, note in solution.notes.items():
            notes[part.start + row] = note
