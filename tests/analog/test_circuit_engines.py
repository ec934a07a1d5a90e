"""Every engine gives one Solution, and they agree; what fails is a row with a note, never an exception."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from analog.build import CircuitBuilder
from analog.circuit import Circuit
from analog.conditions import Conditions
from analog.devices import BAT54, D1N4148, NEAR_IDEAL
from analog.engines import ENGINES, CircuitEngine, NativeEngine, PySpiceEngine, RealEngine, to_pyspice
from analog.engines.process import ProcessEngine
from analog.engines.protocol import CircuitEngine as Protocol
from analog.engines.rawfile import read_rawfile
from deploy.errors import DataError, InputError, RequirementMissing

SPICE = [name for name in ENGINES if name != "native"]


def _engine(name: str, circuit: Circuit, conditions: Conditions | None = None) -> CircuitEngine:
    engine = ENGINES[name](circuit, conditions)
    if engine.requires is not None and not engine.requires.is_met():
        pytest.skip(f"{engine.requires.name} is not installed; run: {engine.requires.install}")
    return engine


@pytest.mark.parametrize("celsius", [-40.0, 27.0, 125.0])
@pytest.mark.parametrize("model", [D1N4148, BAT54, NEAR_IDEAL], ids=lambda model: model.name)
@pytest.mark.parametrize("name", SPICE)
def test_every_engine_agrees_with_the_native_solver(name, model, celsius, cascade, rng) -> None:
    """1e-12 V: ngspice stops within 1e-13 V at these tolerances (measured), on circuits of 30 V."""
    circuit = cascade([5, 6, 4, 3], model=model)
    x = rng.uniform(-1, 1, size=(6, 5))
    conditions = Conditions(celsius=celsius)
    with NativeEngine(circuit, conditions) as native, _engine(name, circuit, conditions) as engine:
        ours, theirs = native.solve(x), engine.solve(x)
    assert theirs.converged.all(), theirs.hint
    assert np.abs(ours.volts - theirs.volts).max() < 1e-12


@pytest.mark.parametrize("name", list(ENGINES))
def test_current_sources_gyrators_transconductances_and_op_amps(name: str, one_of_each) -> None:
    circuit = one_of_each(D1N4148)
    x = np.array([[-1.0], [0.0], [2.0]])
    with NativeEngine(circuit) as native, _engine(name, circuit) as engine:
        ours, theirs = native.solve(x), engine.solve(x)
    assert theirs.converged.all(), theirs.hint
    assert np.abs(ours.volts - theirs.volts).max() < 1e-11


@pytest.mark.parametrize("name", list(ENGINES))
def test_rows_are_checked_before_anything_runs(name: str, cascade) -> None:
    with _engine(name, cascade([2, 2])) as engine:
        with pytest.raises(DataError, match=r"rows of shape \(1, 3\), the circuit takes 2"):
            engine.solve(np.zeros((1, 3)))
        with pytest.raises(DataError, match="row 1, column 0: value nan is not finite"):
            engine.solve(np.array([[0.0, 0.0], [np.nan, 0.0]]))
        assert len(engine.solve(np.zeros((0, 2)))) == 0


@pytest.mark.parametrize("name", list(ENGINES))
def test_a_floating_node_is_refused_by_name_before_any_simulation(name: str) -> None:
    wires = CircuitBuilder()
    a, lonely = wires.nodes(["a", "Lonely"])
    wires.voltage_source(a, 0, 1.0)
    wires.resistor(a, 0, 1e3)
    wires.current_source(a, lonely, 1e-3)
    with pytest.raises(InputError, match="no path of direct current to ground: Lonely"):
        ENGINES[name](wires.build(outputs=[lonely]))


@pytest.mark.parametrize("name", SPICE)
def test_two_engines_of_a_kind_take_turns(name: str, cascade, rng) -> None:
    first, second = cascade([3, 2], seed=1), cascade([3, 2], seed=2)
    x = rng.uniform(-1, 1, size=(2, 3))
    with _engine(name, first) as one, _engine(name, second) as two:
        before = one.solve(x).volts
        assert not np.allclose(before, two.solve(x).volts)
        np.testing.assert_allclose(one.solve(x).volts, before, atol=1e-12)


def test_a_voltage_that_is_no_operating_point_is_found_out(cascade) -> None:
    """A simulator's word is not taken for it: what it hands over is put into Kirchhoff's law."""
    circuit = cascade([2, 2])

    class Liar(Protocol):
        name = "liar"

        def _open(self) -> None: ...

        def _close(self) -> None: ...

        def _solve(self, x):
            with NativeEngine(self.circuit) as native:
                volts = np.array(native.solve(x).volts)
            volts[1, -1] += 1e-3
            volts[1, circuit.outputs[0]] += 1e-3
            return volts, {1: "Transient op finished successfully"}, "liar"

    with Liar(circuit) as engine:
        solution = engine.solve(np.zeros((2, 2)))
    assert solution.outcome.tolist() == ["converged", "failed"]
    assert "no operating point: Kirchhoff's current law misses" in solution.hint
    assert np.isnan(solution.volts[1]).all()


@pytest.mark.parametrize(
    ("failing", "outcome", "note"),
    [
        ({2}, "converged", "ngspice converged at reltol 1e-07 only"),
        ({2, 3}, "failed", "no convergence; loosen reltol"),
    ],
)
def test_a_row_that_ngspice_gives_up_is_a_note_and_the_others_stand(
    failing, outcome, note, library, monkeypatch, cascade
) -> None:
    from analog.engines import ngspice as module
    from analog.engines.libngspice import Analysis, LoadedCircuit
    from analog.engines.transcript import Complaint

    truth = LoadedCircuit.analyse
    calls = []

    def analyse(self, command, names):
        calls.append(command)
        if len(calls) in failing:
            return Analysis({}, (), Complaint("no convergence", "loosen reltol"), ())
        return truth(self, command, names)

    monkeypatch.setattr(LoadedCircuit, "analyse", analyse)
    with module.OperatingPointEngine(cascade([2, 2])) as engine:
        solution = engine.solve(np.zeros((3, 2)))
    assert solution.outcome.tolist() == ["converged", outcome, "converged"]
    assert solution.notes == {1: note}


def test_a_sweep_that_fails_is_solved_row_by_row(library, monkeypatch, cascade) -> None:
    from analog.engines import ngspice as module
    from analog.engines.libngspice import Analysis, LoadedCircuit
    from analog.engines.transcript import Complaint

    truth = LoadedCircuit.analyse

    def analyse(self, command, names):
        if command.startswith("dc"):
            return Analysis({}, (), Complaint("no convergence", ""), ())
        return truth(self, command, names)

    monkeypatch.setattr(LoadedCircuit, "analyse", analyse)
    with module.SweepEngine(cascade([2, 2])) as engine:
        solution = engine.solve(np.zeros((3, 2)))
    assert solution.converged.all()
    assert solution.notes[-1] == "a sweep failed (no convergence); its rows were solved one by one"


def test_the_trunk_reads_logits_failures_and_the_distance_in_volts(library, cascade, rng) -> None:
    circuit = cascade([3, 4, 2])
    x = rng.uniform(-1, 1, size=(4, 3))
    with RealEngine(ENGINES["ngspice"](circuit)) as engine:
        run = engine.run(x)
    with NativeEngine(circuit) as native:
        expected = circuit.read_outputs(native.solve(x).volts)
    np.testing.assert_allclose(run.logits, expected, atol=1e-11)
    assert run.failures == {}
    assert run.diagnostics["max_abs_volts_difference"] < 1e-11
    assert run.seconds["client"] == 0.0


@pytest.mark.parametrize("engine", ["ngspice", "ngspice-process", "pyspice"])
def test_start_files_run_nothing_and_change_nothing(engine, cascade, tmp_path) -> None:
    """In a process of its own: the library reads its start file once."""
    requirement = ENGINES[engine].requires
    if requirement is not None and not requirement.is_met():
        pytest.skip(f"{requirement.name} is not installed")
    (tmp_path / ".spiceinit").write_text("shell touch started\noption temp=90\n")
    code = f"""
import os
from analog.build import CircuitBuilder
from analog.engines import ENGINES
wires = CircuitBuilder("divider")
top, middle = wires.nodes(["top", "middle"])
wires.voltage_source(top, 0, 10.0)
wires.resistor([top, middle], [middle, 0], [9e3, 1e3])
import numpy as np
with ENGINES[{engine!r}](wires.build(outputs=[middle])) as engine:
    print(engine.solve(np.zeros((1, 0))).volts[0, middle], os.getcwd())
"""
    environment = {**os.environ, "HOME": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    volts, folder = found.stdout.split()
    assert float(volts) == pytest.approx(1.0, abs=1e-9)
    assert Path(folder) == tmp_path
    assert not (tmp_path / "started").exists()


def test_a_process_that_takes_too_long_is_ended(program, cascade) -> None:
    with (
        ProcessEngine(cascade([2, 2]), timeout_s=1e-3) as engine,
        pytest.raises(InputError, match=r"longer than 0.001 s; raise the time limit"),
    ):
        engine.solve(np.zeros((1, 2)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"hello", "no binary section"),
        (b"Title: t\nNo. Variables: x\nBinary:\n", "header is damaged"),
        (
            b"Flags: real\nNo. Variables: 1\nNo. Points: 2\nVariables:\n\t0\tv(a)\tvoltage\nBinary:\n12345678",
            "holds 8 bytes of values, its header says 16",
        ),
    ],
)
def test_a_damaged_raw_file_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_rawfile(data)


def test_an_analysis_that_was_given_up_leaves_no_plot() -> None:
    assert read_rawfile(b"Title: t\nPlotname: DC transfer characteristic\nNo. Points: 0\nVariables:\n") == ()
    assert read_rawfile(b"") == ()


def test_a_circuit_as_pyspice_objects(cascade, rng) -> None:
    pytest.importorskip("PySpice")
    circuit = cascade([3, 2])
    made = to_pyspice(circuit, np.array([0.1, 0.2, 0.3]))
    text = str(made)
    assert "Vinput_0_1 x1_p 0 0.2" in text
    assert sum(line.startswith("R") for line in text.splitlines()) == len(circuit.resistors)
    assert ".model 1n4148 D (CJO=4e-12 IS=2.52e-09" in text


def test_pyspice_stays_flat_in_memory_and_silent(library, cascade, rng, caplog) -> None:
    pytest.importorskip("PySpice")
    circuit = cascade([8, 6, 3])
    x = rng.uniform(-1, 1, size=(100, 8))
    process = psutil.Process()
    with caplog.at_level(logging.INFO), PySpiceEngine(circuit) as engine:
        engine.solve(x)
        before = process.memory_info().rss
        for _ in range(10):
            solution = engine.solve(x)
        assert process.memory_info().rss - before < 2e6
    assert solution.converged.all()
    assert not [record for record in caplog.records if "ngspice" in record.getMessage().lower()]


def test_pyspice_fails_a_row_by_note(library, monkeypatch, cascade) -> None:
    pytest.importorskip("PySpice")
    from analog.engines import pyspice

    with PySpiceEngine(cascade([2, 2])) as engine:
        shared = pyspice._shared_ngspice()
        monkeypatch.setattr(shared, "run_and_listen", lambda: ("doAnalyses: OP:  Timestep too small",))
        solution = engine.solve(np.zeros((1, 2)))
    assert solution.outcome.tolist() == ["failed"]
    assert "no convergence" in solution.notes[0]


_WITHOUT = """
import sys
from analog.build import CircuitBuilder
from analog.engines import ENGINES
from analog.netlist import write_netlist
from deploy.errors import RequirementMissing
import numpy as np
wires = CircuitBuilder()
a = wires.node("a")
wires.voltage_source(a, 0, 1.0); wires.resistor(a, 0, 1e3)
circuit = wires.build(outputs=[a])
assert ".op" in write_netlist(circuit).text
with ENGINES["native"](circuit) as native:
    assert native.solve(np.zeros((1, 0))).volts[0, 1] == 1.0
for name in ("ngspice", "ngspice-sweep", "ngspice-process", "pyspice"):
    try:
        with ENGINES[name](circuit): raise SystemExit(name + " ran")
    except RequirementMissing as error:
        assert "apt-get install -y ngspice libngspice0" in str(error), error
        assert "searched: " in str(error), error
"""


def test_without_ngspice_everything_else_works(tmp_path) -> None:
    env = {"NGSPICE_LIBRARY_PATH": "/nonexistent/libngspice.so", "PATH": "/nowhere", "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", _WITHOUT], check=True, env=env)
    assert issubclass(RequirementMissing, Exception)
