"""PySpice (optional, GPL-3.0, imported and never copied): a circuit as its objects, and an engine on it.

PySpice 1.5 as it stands fails on a current system; what is worked around here, and how:

=====================================================  ========================================================
``cannot load library 'libngspice.so'``                the library that :mod:`analog.engines.locate` finds is given
a second ``ngSpice_Init`` on one library crashes       PySpice gets a private copy of the library's file
``ffi.cdef`` fails for a second instance               one instance per process
any note on stderr raises ``NgSpiceCommandError``      the transcript is judged as for our own driver
``float(analysis['out'])`` fails on numpy 2            values are read as arrays
``Unsupported Ngspice version`` on each start          our instance logs to a logger of ours, at debug level
2.7 MB lost per simulation                             circuit loaded once and altered; plots and history are freed
=====================================================  ========================================================
"""

from __future__ import annotations

import contextlib
import functools
import logging
import shutil
import tempfile
import threading
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from analog.circuit import Circuit
from analog.conditions import Conditions
from analog.engines.locate import LIBRARY, LibraryRequirement, library_path
from analog.engines.ngspice import driven_levels, settings_for
from analog.engines.protocol import CircuitEngine
from analog.engines.start import without_start_files
from analog.engines.transcript import complaints, explain, notes
from analog.netlist import Settings
from analog.netlist.model_cards import card_parameters
from analog.netlist.names import legal_name, legal_names, unique_names
from analog.netlist.writer import element_names
from deploy.arrays import Array
from deploy.errors import InputError
from deploy.requirement import Requirement, require

__all__ = ["PYSPICE", "PySpiceEngine", "to_pyspice"]

_LOCK = threading.RLock()
_EXTRA = 'pip install "relu-deploy[pyspice]"'


class _PySpiceRequirement(LibraryRequirement):
    """PySpice's package and the library that it loads."""

    def is_met(self) -> bool:
        """Say whether both are there, without importing or loading."""
        return Requirement.is_met(self) and LIBRARY.is_met()

    def check(self) -> None:
        """Raise for whichever is missing."""
        Requirement.check(Requirement("PySpice", _EXTRA, module="PySpice"))
        LIBRARY.check()


PYSPICE = _PySpiceRequirement("PySpice", _EXTRA, module="PySpice")


def to_pyspice(circuit: Circuit, x: Array | None = None, *, celsius: float = 27.0) -> Any:
    """Convert to a ``PySpice.Spice.Netlist.Circuit`` with sources at the levels of one row x (n_in,).

    Node and element names are those of :func:`analog.netlist.write_netlist`; op-amps become behavioural sources.
    """
    netlist = require("PySpice.Spice.Netlist", extra="pyspice")
    nodes = legal_names(circuit.node_names)
    made = netlist.Circuit(" ".join(circuit.title.split()) or "circuit")
    models = unique_names([legal_name(model.name) for model in circuit.models])
    for model, name in zip(circuit.models, models, strict=True):
        made.model(name, "D", **{key.upper(): v for key, v in card_parameters(model, celsius=celsius).items()})
    names = element_names(circuit)
    row = np.zeros(circuit.n_in) if x is None else np.asarray(x, dtype=np.float64)
    for kind, add in (("voltage_sources", made.V), ("current_sources", made.I)):
        table = getattr(circuit, kind)
        for name, plus, minus, level in _rows(table, names[kind], table.levels(row[None])[0]):
            add(name, nodes[plus], nodes[minus], level)
    for name, a, b, ohm in _rows(circuit.resistors, names["resistors"], circuit.resistors.ohm):
        made.R(name, nodes[a], nodes[b], ohm)
    for name, anode, cathode, model in _rows(circuit.diodes, names["diodes"], circuit.diodes.model):
        made.D(name, nodes[anode], nodes[cathode], model=models[model])
    for name, *ends, gain in _rows(circuit.vcvs, names["vcvs"], circuit.vcvs.gain):
        made.VCVS(name, *(nodes[end] for end in ends), voltage_gain=gain)
    for name, *ends, siemens in _rows(circuit.vccs, names["vccs"], circuit.vccs.siemens):
        made.VCCS(name, *(nodes[end] for end in ends), transconductance=siemens)
    for name, a, b, c, d, siemens in _rows(circuit.gyrators, names["gyrators"], circuit.gyrators.siemens):
        forward, back = (nodes[a], nodes[b], nodes[c], nodes[d]), (nodes[c], nodes[d], nodes[a], nodes[b])
        made.VCCS(name, *forward, transconductance=siemens)
        made.VCCS(f"{name}_back", *back, transconductance=-siemens)
    _add_op_amps(made, circuit, names["op_amps"], nodes)
    return made


def _rows(table: Any, names: tuple[str, ...], values: Array) -> Any:
    ends = [getattr(table, terminal).tolist() for terminal in table.terminals]
    return zip(names, *ends, values.tolist(), strict=True)


def _add_op_amps(made: Any, circuit: Circuit, names: tuple[str, ...], nodes: tuple[str, ...]) -> None:
    table = circuit.op_amps
    columns = (getattr(table, column).tolist() for column in (*table.terminals, *table.numbers))
    for name, out, plus, minus, gain, offset, low, high in zip(names, *columns, strict=True):
        middle, half = (low + high) / 2, (high - low) / 2
        shifted, drive, level, centre = (f"{name}_{part}" for part in ("shifted", "drive", "level", "centre"))
        made.V(shifted, shifted, nodes[plus], offset)
        made.VCVS(drive, drive, made.gnd, shifted, nodes[minus], voltage_gain=gain / half)
        made.BehavioralSource(name, level, made.gnd, v=f"tanh(v({drive}))")
        made.V(centre, centre, made.gnd, middle)
        made.VCVS(f"{name}_out", nodes[out], centre, level, made.gnd, voltage_gain=half)


@functools.cache
def _shared_ngspice() -> Any:
    """PySpice's ngspice on a private copy of the library; one per process."""
    shared = require("PySpice.Spice.NgSpice.Shared", extra="pyspice")
    quiet = logging.getLogger("analog.engines.pyspice.ngspice")
    quiet.setLevel(logging.CRITICAL)
    found = library_path()
    assert found is not None
    with tempfile.TemporaryDirectory(prefix="relu-deploy-") as folder:
        copy = str(shutil.copyfile(found, Path(folder, "libngspice-pyspice.so")))

        class QuietNgSpice(shared.NgSpiceShared):  # type: ignore[misc,name-defined]
            """PySpice's driver, with notes as notes and the history freed."""

            LIBRARY_PATH = copy
            _logger = quiet
            owner: Any = None

            def exec_command(self, command: str, join_lines: bool = True) -> Any:
                try:
                    return super().exec_command(command, join_lines)
                except shared.NgSpiceCommandError:
                    if complaints(self.said()):
                        raise
                    return self.stdout if join_lines else self._stdout

            def said(self) -> tuple[str, ...]:
                """What the last command said."""
                return (*self._stdout, *self._stderr)

            def run_and_listen(self) -> tuple[str, ...]:
                """Run the analysis; a failed one is judged by what was said."""
                with contextlib.suppress(shared.NgSpiceCommandError):
                    self.run()
                return self.said()

            def forget(self) -> None:
                """Free plots and the command history, which PySpice keeps for 10,000 commands."""
                self.destroy()
                self._ngspice_shared.ngSpice_Command(shared.FFI.NULL)

            def clear(self) -> None:
                """Free results and circuit."""
                self.forget()
                if self.owner is not None:
                    self.remove_circuit()
                    self.owner = None

        # The file may go once it is mapped.
        with without_start_files():
            return QuietNgSpice()


class PySpiceEngine(CircuitEngine):
    """PySpice on ngspice: PySpice's circuit and simulator, loaded once, altered and run for each row."""

    name = "pyspice"
    requires = PYSPICE

    def __init__(
        self, circuit: Circuit, conditions: Conditions | None = None, *, tolerances: Settings | None = None
    ) -> None:
        super().__init__(circuit, conditions)
        self._settings = settings_for(self.conditions, tolerances)
        self._simulator: Any = None
        self._names: Mapping[str, tuple[str, ...]] = {}

    def _open(self) -> None:
        celsius = self.conditions.celsius
        made = to_pyspice(self.circuit, celsius=celsius)
        self._names = element_names(self.circuit)
        self._simulator = made.simulator(
            simulator="ngspice-shared",
            temperature=celsius,
            nominal_temperature=27,
            ngspice_shared=_shared_ngspice(),
        )
        s = self._settings
        self._simulator.options(reltol=s.reltol, abstol=s.abstol_A, vntol=s.vntol_V, gmin=s.gmin_S, itl1=s.itl1)
        simulation = require("PySpice.Spice.Simulation", extra="pyspice")
        simulation.CircuitSimulation.operating_point(self._simulator)
        self._make_current()

    def _make_current(self) -> Any:
        """Load the circuit where another engine has taken its place."""
        ngspice = _shared_ngspice()
        if ngspice.owner is not self:
            ngspice.clear()
            ngspice.load_circuit(str(self._simulator))
            wrong = complaints(ngspice.said())
            if wrong:
                raise InputError(f"PySpice's ngspice refuses the netlist: {wrong[0].cause}", remedy=wrong[0].remedy)
            ngspice.owner = self
        return ngspice

    def _close(self) -> None:
        with _LOCK:
            ngspice = _shared_ngspice()
            if ngspice.owner is self:
                ngspice.clear()
        self._simulator = None

    def _solve(self, x: Array) -> tuple[Array, dict[int, str], str]:
        if self._simulator is None:
            raise RuntimeError("enter the engine first: `with engine: engine.solve(x)`")
        volts = np.full((len(x), self.circuit.n_nodes), np.nan)
        noted: dict[int, str] = {}
        driven = driven_levels(self.circuit, self._names, x)
        nodes = legal_names(self.circuit.node_names)
        with _LOCK:
            ngspice = self._make_current()
            for row in range(len(x)):
                for name, levels in driven.items():
                    ngspice.alter_device(name, dc=repr(float(levels[row])))
                said = ngspice.run_and_listen()
                if complaints(said):
                    found = explain(said)
                    noted[row] = f"{found.cause}; {found.remedy}"
                else:
                    analysis = ngspice.plot(self._simulator, ngspice.last_plot).to_analysis()
                    volts[row, 0] = 0.0
                    volts[row, 1:] = [np.asarray(analysis.nodes[name])[0] for name in nodes[1:]]
                    if notes(said):
                        noted[row] = "; ".join(notes(said))
                ngspice.forget()
        return volts, noted, f"PySpice-{version('PySpice')} on ngspice-{ngspice.ngspice_version}"
