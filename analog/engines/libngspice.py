"""The shared library of ngspice, driven through ctypes: one copy per process, reused without growth.

What a careful driver of this library has to know, and this one does:

* ``ngSpice_Init`` twice on one copy crashes the process, so a copy is opened once and its callbacks live as long
  as the process (:func:`open_library`).
* A failed ``op`` returns 0 and leaves vectors whose data pointer is NULL: pointer, length and transcript are all
  checked.
* Messages arrive through a callback, and a complaint about a vector arrives with the *next* command: lines are
  collected per command.
* ``destroy all`` frees results, ``remcirc`` the circuit and ``ngSpice_Command(NULL)`` the command history; without
  the third, memory grows with every command.
* The library has one current circuit and no locks. Every operation here holds one lock and re-loads its own circuit
  where another had taken its place, so any number of :class:`LoadedCircuit` objects, from any number of threads,
  share the copy.
* Gmin or source stepping that failed on its way leaves its state behind, and later operating points of the same
  circuit are wrong in silence (4e-6 V were seen): the circuit is loaded again after any stepping.
* The transient rescue, ngspice's last resort for an operating point, says "finished successfully" over voltages
  of -1e12 V and may crash the process: it is switched off, and such a point is a failure with its cause.
* ``.spiceinit`` in the working directory or at home is run at the start: neither is (:mod:`analog.engines.start`).
* A netlist may hold commands, which run as it is loaded: such a one is refused (:mod:`analog.netlist.harmless`).
* A fatal error calls ``ControlledExit`` and leaves the library unusable: further calls are refused.
"""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analog.engines.locate import LIBRARY, library_path
from analog.engines.start import without_start_files
from analog.engines.transcript import Complaint, complaints, explain, notes
from analog.netlist.harmless import check_harmless
from deploy.arrays import Array
from deploy.errors import DeployError, InputError, RequirementMissing

__all__ = ["Analysis", "Library", "LoadedCircuit", "open_library"]

_SendChar = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p)
_ControlledExit = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_bool, ctypes.c_bool, ctypes.c_int, ctypes.c_void_p
)


class _VectorInfo(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("flags", ctypes.c_short),
        ("real", ctypes.POINTER(ctypes.c_double)),
        ("complex", ctypes.c_void_p),
        ("length", ctypes.c_int),
    )


@dataclass(frozen=True, slots=True)
class Analysis:
    """What one analysis gave.

    Parameters
    ----------
    vectors : name -> values (points,); empty where it failed.
    notes : sentences worth knowing.
    complaint : why it failed, or None.
    transcript : everything ngspice said.
    """

    vectors: Mapping[str, Array]
    notes: tuple[str, ...]
    complaint: Complaint | None
    transcript: tuple[str, ...]

    @property
    def succeeded(self) -> bool:
        """Whether data came out."""
        return self.complaint is None


@functools.cache
def open_library(path: str | None = None) -> Library:
    """Open libngspice (the one found, or the file `path`), once per process and file.

    Raises
    ------
    RequirementMissing : it is not there; names the places searched and the line that installs it.
    """
    if path is None:
        LIBRARY.check()
        found = library_path()
        assert found is not None
        return open_library(found)
    return Library(path)


class Library:
    """One loaded copy of libngspice; get it from :func:`open_library` (a second one on a file would crash)."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._lines: list[str] = []
        self._dead = ""
        self._current: LoadedCircuit | None = None
        try:
            self._c = ctypes.CDLL(path)
        except OSError as error:
            raise RequirementMissing(
                f"{path} cannot be loaded: {error}", remedy=f"run: {LIBRARY.install}"
            ) from None
        self._c.ngSpice_Command.argtypes = [ctypes.c_char_p]
        self._c.ngGet_Vec_Info.argtypes = [ctypes.c_char_p]
        self._c.ngGet_Vec_Info.restype = ctypes.POINTER(_VectorInfo)
        # Kept on self, and self is cached for the life of the process: the library keeps calling them.
        self._send_char = _SendChar(self._hear)
        self._send_status = _SendChar(lambda line, copy, user: 0)
        self._exit = _ControlledExit(self._die)
        with without_start_files():
            self._c.ngSpice_Init(self._send_char, self._send_status, self._exit, None, None, None, None)
        banner = " ".join(self._take())
        found = re.search(r"ngspice-(\S+)", banner)
        self.version = found[1] if found else "unknown"

    def _hear(self, line: bytes | None, copy: int, user: int | None) -> int:
        text = (line or b"").decode("utf-8", "replace")
        self._lines.append(text.partition(" ")[2] if text.startswith(("stdout ", "stderr ")) else text)
        return 0

    def _die(self, status: int, immediate: bool, on_quit: bool, copy: int, user: int | None) -> int:
        self._dead = f"ngspice ended itself with status {status}"
        return 0

    def _take(self) -> tuple[str, ...]:
        lines = tuple(self._lines)
        self._lines.clear()
        return lines

    def _check_alive(self) -> None:
        if self._dead:
            raise DeployError(
                f"{self._dead} and cannot be used again in this process", remedy="start a new process"
            )

    def command(self, line: str) -> tuple[str, ...]:
        """Run one command and give back what ngspice said."""
        with self.lock:
            self._check_alive()
            self._c.ngSpice_Command(line.encode())
            return self._take()

    def forget_history(self) -> None:
        """Free the command history, which otherwise grows with every command."""
        with self.lock:
            self._check_alive()
            self._c.ngSpice_Command(None)

    def vector(self, name: str) -> Array | None:
        """Copy a vector of the current plot, real (points,) or complex; None where it has no data."""
        with self.lock:
            self._check_alive()
            pointer = self._c.ngGet_Vec_Info(name.encode())
            if not pointer:
                self._lines[:] = [line for line in self._lines if "not found" not in line]
                return None
            info = pointer.contents
            if info.length <= 0:
                return None
            if info.real:
                return np.ctypeslib.as_array(info.real, shape=(info.length,)).copy()
            if info.complex:
                pairs = ctypes.cast(info.complex, ctypes.POINTER(ctypes.c_double))
                flat = np.ctypeslib.as_array(pairs, shape=(2 * info.length,)).copy()
                return flat.view(np.complex128)
            return None

    def circuit(self, netlist: str) -> LoadedCircuit:
        """Load a netlist, which ngspice must accept whole.

        Raises
        ------
        InputError : it holds commands or opens files, or ngspice did not accept it; the cause names the line.
        """
        loaded = LoadedCircuit(self, netlist)
        with self.lock:
            loaded.make_current()
        return loaded

    def _load(self, netlist: str) -> None:
        check_harmless(netlist)
        self._unload()
        lines = netlist.splitlines()
        raw = (ctypes.c_char_p * (len(lines) + 1))(*[line.encode() for line in lines], None)
        self._c.ngSpice_Circ(raw)
        said = self._take()
        # `circuit not parsed` shows with the next command only, so a harmless one is asked for.
        said += self.command("status")
        wrong = complaints(said)
        if wrong:
            self._unload()
            place = next((said[i + 1].strip() for i, line in enumerate(said[:-1]) if _POINTS_AT.search(line)), "")
            raise InputError(f"ngspice refuses the netlist: {wrong[0].cause}", place=place, remedy=wrong[0].remedy)
        self.command(_NO_TRANSIENT_RESCUE)

    def _unload(self) -> None:
        self._current = None
        self.command("destroy all")
        self.command("remcirc")
        self.forget_history()


_NO_TRANSIENT_RESCUE = "optran 1 1 1 0 0 0"
"""Iteration, gmin stepping, source stepping, and no transient. Valid with a circuit loaded only: else it crashes."""
_POINTS_AT = re.compile(r"Error on line|from line")


class LoadedCircuit:
    """A netlist in the library: alter its sources, run analyses, read vectors. A context manager.

    Any number may exist; the library holds one at a time and each operation brings its own back first.
    """

    def __init__(self, library: Library, netlist: str) -> None:
        self.shared = library
        self.netlist = netlist
        self._altered: dict[str, float] = {}

    def __enter__(self) -> LoadedCircuit:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the circuit and its results."""
        with self.shared.lock:
            if self.shared._current is self:
                self.shared._unload()

    def make_current(self) -> None:
        """Load the netlist again where another circuit has taken its place, with what was altered."""
        if self.shared._current is self:
            return
        self.shared._load(self.netlist)
        self.shared._current = self
        self._alter(self._altered)

    def _alter(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            said = self.shared.command(f"alter {name} = {value:.17g}")
            if any("no such" in line.lower() or line.startswith("Error") for line in said):
                raise InputError(f"ngspice cannot alter {name}: {' '.join(said)}")

    def alter(self, values: Mapping[str, float]) -> None:
        """Set the main value of elements (volts, amperes, ohms), with 17 digits.

        Raises
        ------
        InputError : a value is not finite, or there is no such element.
        """
        for name, value in values.items():
            if not np.isfinite(value):
                raise InputError(f"value {value} of {name} is not finite")
        with self.shared.lock:
            self.make_current()
            self._alter(values)
            self._altered.update(values)

    def analyse(self, command: str, names: Sequence[str]) -> Analysis:
        """Run an analysis command (``op``, ``dc …``, ``tran …``) and copy the vectors `names`.

        A simulation that fails is a result (its complaint says why), never an exception.
        """
        with self.shared.lock:
            self.make_current()
            said = self.shared.command(command)
            vectors: dict[str, Array] = {}
            missing = []
            for name in names:
                values = self.shared.vector(name)
                if values is None:
                    missing.append(name)
                else:
                    vectors[name] = values
            said += self.shared.command("destroy all")
            self.shared.forget_history()
            if any("stepping" in line or "Transient op" in line for line in said):
                # Stepping that failed leaves its gmin behind: later points would be wrong by 1e-6 V in silence.
                self.shared._unload()
        return _judge(said, vectors, missing)


def _judge(said: tuple[str, ...], vectors: dict[str, Array], missing: Iterable[str]) -> Analysis:
    wrong = complaints(said)
    missing = list(missing)
    if wrong or (missing and not vectors):
        return Analysis({}, (), explain(said), said)
    if missing:
        absent = Complaint(f"ngspice has no vector {', '.join(missing)}", "check the names of nodes and sources")
        return Analysis(vectors, notes(said), absent, said)
    return Analysis(vectors, notes(said), None, said)
