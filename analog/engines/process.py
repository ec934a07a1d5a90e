"""The program ``ngspice -b``: any netlist in a process of its own, read back from its raw file.

Its exit code means nothing, so data and messages decide. No start file of the user's is read (``-n``).
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import numpy as np

from analog.circuit import Circuit
from analog.conditions import Conditions
from analog.engines.libngspice import Analysis
from analog.engines.locate import PROGRAM
from analog.engines.ngspice import SWEEP_TOLERANCES, place_row, settings_for, sweep_chunks, was_rescued
from analog.engines.protocol import CircuitEngine
from analog.engines.rawfile import Plot, read_rawfile
from analog.engines.transcript import Complaint, complaints, explain, notes
from analog.netlist import Hold, Settings, Sweep, write_netlist
from analog.netlist.drive import Drive
from analog.netlist.harmless import check_harmless
from analog.netlist.op_amp import IDEAL_OP_AMP, OpAmpCard
from deploy.arrays import Array
from deploy.errors import InputError

__all__ = ["ProcessEngine", "run_netlist"]


def run_netlist(text: str, *, timeout_s: float = 600.0) -> tuple[tuple[Plot, ...], tuple[str, ...]]:
    """Run a netlist with ``ngspice -b`` and give its plots and what it said.

    A run that gave no data is an empty tuple of plots: :func:`analog.engines.transcript.explain` says why.

    Raises
    ------
    RequirementMissing : the program is not on PATH.
    InputError : it holds commands or opens files, or took longer than `timeout_s`.
    """
    check_harmless(text)
    program = PROGRAM.path()
    with tempfile.TemporaryDirectory(prefix="relu-deploy-") as folder:
        circuit, raw = Path(folder, "circuit.cir"), Path(folder, "circuit.raw")
        circuit.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
        try:
            done = subprocess.run(
                [program, "-n", "-b", "-r", str(raw), str(circuit)],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise InputError(f"ngspice took longer than {timeout_s:g} s", remedy="raise the time limit") from None
        said = tuple(f"{done.stdout}\n{done.stderr}".splitlines())
        plots = read_rawfile(raw.read_bytes()) if raw.is_file() else ()
    return plots, said


class ProcessEngine(CircuitEngine):
    """``ngspice -b``, one process for each sweep of rows: nothing is shared with this process.

    Rows of a sweep that ngspice gives up are run again, one process each.
    """

    name = "ngspice-process"
    requires = PROGRAM

    def __init__(
        self,
        circuit: Circuit,
        conditions: Conditions | None = None,
        *,
        tolerances: Settings = SWEEP_TOLERANCES,
        op_amp: OpAmpCard = IDEAL_OP_AMP,
        timeout_s: float = 600.0,
    ) -> None:
        super().__init__(circuit, conditions)
        self._settings = settings_for(self.conditions, tolerances)
        self._op_amp = op_amp
        self._timeout_s = timeout_s

    def _open(self) -> None:
        return None

    def _close(self) -> None:
        return None

    def _solve(self, x: Array) -> tuple[Array, dict[int, str], str]:
        volts = np.full((len(x), self.circuit.n_nodes), np.nan)
        noted: dict[int, str] = {}
        for part in sweep_chunks(self.circuit, x):
            vectors, found = self._run(Sweep(x[part]), self._settings, part.stop - part.start)
            if found.complaint is None and not was_rescued(found):
                for row in range(part.start, part.stop):
                    place_row(volts, noted, row, found, vectors, row - part.start)
                continue
            for row in range(part.start, part.stop):
                vectors, found = self._run(Hold(x[row]), settings_for(self.conditions, None), 1)
                place_row(volts, noted, row, found, vectors)
        return volts, noted, "ngspice -b, dc sweep"

    def _run(self, drive: Drive, settings: Settings, points: int) -> tuple[tuple[str, ...], Analysis]:
        netlist = write_netlist(self.circuit, drive, settings=settings, op_amp=self._op_amp)
        plots, said = run_netlist(netlist.text, timeout_s=self._timeout_s)
        return netlist.vectors, _judge(plots, said, points)


def _judge(plots: tuple[Plot, ...], said: tuple[str, ...], points: int) -> Analysis:
    wrong = complaints(said)
    whole = bool(plots) and all(len(vector) == points for vector in plots[0].vectors.values())
    if wrong or not whole:
        return Analysis({}, (), explain(said) if wrong else _incomplete(plots, points), said)
    return Analysis(plots[0].vectors, notes(said), None, said)


def _incomplete(plots: tuple[Plot, ...], points: int) -> Complaint:
    if not plots:
        return explain(())
    have = min(len(vector) for vector in plots[0].vectors.values())
    return Complaint(f"ngspice gave {have} of {points} points", "solve the rows one by one with the engine ngspice")
