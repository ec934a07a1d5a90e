"""The driver of libngspice: reuse without growth, failures as results, notes as notes, every digit."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import psutil
import pytest

from analog.engines.libngspice import Library, open_library
from analog.engines.locate import INSTALL, LIBRARY, PROGRAM, library_path
from deploy.errors import DeployError, InputError, RequirementMissing

DIODE = """* a diode behind a divider
v1 in 0 10
r1 in out 9k
d1 out 0 dx
.model dx d(is=2.52e-9 n=1.752 rs=0.568)
.options reltol=1e-7
.op
.end
"""


@pytest.fixture
def ngspice(library: None) -> Library:
    return open_library()


def test_one_copy_of_the_library_is_opened_once_per_process(ngspice: Library) -> None:
    assert open_library() is ngspice
    assert open_library(library_path()) is ngspice
    assert int(ngspice.version.split(".")[0]) >= 30


def test_values_come_and_go_with_all_their_digits(ngspice: Library) -> None:
    value = 0.12345678901234567
    with ngspice.circuit(DIODE) as circuit:
        circuit.alter({"v1": value})
        found = circuit.analyse("op", ["in"])
    # ngspice's own reading of a decimal number may be one unit in the last place off.
    assert found.vectors["in"][0] == pytest.approx(value, rel=2.3e-16)


def test_ten_thousand_operating_points_grow_memory_by_less_than_two_megabytes(ngspice: Library) -> None:
    process = psutil.Process()
    with ngspice.circuit(DIODE) as circuit:
        for warm_up in range(200):
            circuit.alter({"v1": float(warm_up)})
            circuit.analyse("op", ["out"])
        gc.collect()
        before = process.memory_info().rss
        for k in range(10_000):
            circuit.alter({"v1": k * 1e-3})
            found = circuit.analyse("op", ["out"])
        assert found.succeeded
        gc.collect()
        assert process.memory_info().rss - before < 2e6


def test_loading_many_circuits_frees_each(ngspice: Library) -> None:
    process = psutil.Process()
    before = 0
    for k in range(300):
        if k == 50:
            before = process.memory_info().rss
        with ngspice.circuit(DIODE) as circuit:
            assert circuit.analyse("op", ["out"]).succeeded
    assert process.memory_info().rss - before < 2e6


def test_circuits_take_turns_and_keep_what_was_altered(ngspice: Library) -> None:
    with ngspice.circuit(DIODE) as first, ngspice.circuit(DIODE.replace("9k", "4k")) as second:
        first.alter({"v1": 3.0})
        second.alter({"v1": 5.0})
        assert first.analyse("op", ["in"]).vectors["in"][0] == 3.0
        assert second.analyse("op", ["in"]).vectors["in"][0] == 5.0
        assert first.analyse("op", ["in"]).vectors["in"][0] == 3.0


def test_threads_share_the_library(ngspice: Library) -> None:
    wrong: list[float] = []

    def work(level: float) -> None:
        with ngspice.circuit(DIODE) as circuit:
            circuit.alter({"v1": level})
            for _ in range(20):
                found = float(circuit.analyse("op", ["in"]).vectors["in"][0])
                if found != level:
                    wrong.append(found)

    threads = [threading.Thread(target=work, args=(float(k),)) for k in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_ctrl_c_still_reaches_python(ngspice: Library) -> None:
    with ngspice.circuit(DIODE) as circuit:
        circuit.analyse("op", ["out"])
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(5)


def test_a_missing_vector_is_a_complaint_that_names_it(ngspice: Library) -> None:
    with ngspice.circuit(DIODE) as circuit:
        found = circuit.analyse("op", ["out", "zz"])
        assert found.complaint is not None
        assert found.complaint.cause == "ngspice has no vector zz"
        again = circuit.analyse("op", ["out"])
    assert again.complaint is None, "the library complains of a missing vector one command later"


def test_only_what_exists_can_be_altered_and_only_to_finite_values(ngspice: Library) -> None:
    with ngspice.circuit(DIODE) as circuit:
        with pytest.raises(InputError, match=r"cannot alter vq: .*no such device"):
            circuit.alter({"vq": 1.0})
        with pytest.raises(InputError, match="value nan of v1 is not finite"):
            circuit.alter({"v1": np.nan})


@pytest.mark.parametrize(
    ("cards", "message"),
    [
        ("r2 in 0 inf", "r2 in 0 inf: ngspice refuses the netlist: a value of the netlist is inf"),
        ("r2 in 0 nan", "r2 in 0 nan: ngspice refuses the netlist: a value of the netlist is nan"),
        ("r1 in 0 2k", "ngspice refuses the netlist: two elements have one name"),
        ("x1 in 0 nosuch", "a subcircuit is not defined, at: x1 in 0 nosuch; add its .subckt"),
        ("d2 in 0 nosuch", "d2 in 0 nosuch: ngspice refuses the netlist: a model is not defined; add its .model"),
        (
            "d2 in 0 sd\n.model sd sidiode(ron=1)",
            "a model has the wrong type for its element; sidiode models need an A element; use a D model with",
        ),
    ],
)
def test_a_netlist_that_ngspice_refuses_says_why_and_the_library_goes_on(
    ngspice: Library, cards: str, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        ngspice.circuit(DIODE.replace(".op", f"{cards}\n.op"))
    assert message in str(caught.value)
    with ngspice.circuit(DIODE) as circuit:
        assert circuit.analyse("op", ["out"]).succeeded


STIFF = """* a superdiode whose op-amp has a gain of 1e5
v1 in 0 0.7
b1 a 0 v=12*tanh(1e5*(v(in)-v(out))/12)
d1 a out dx
r1 out 0 1e6
.model dx d(is=1e-12 n=1e-4)
.options reltol=1e-7
.op
.end
"""


def test_a_point_found_by_gmin_stepping_is_a_success_with_a_note(ngspice: Library) -> None:
    with ngspice.circuit(STIFF) as circuit:
        found = circuit.analyse("op", ["in", "out"])
    assert found.succeeded
    assert "ngspice needed dynamic gmin stepping" in found.notes
    assert found.vectors["out"][0] == pytest.approx(0.7, abs=1e-3)


def test_stepping_leaves_nothing_behind_for_the_next_point(ngspice: Library) -> None:
    """After gmin stepping that fails on its way, ngspice goes on with a changed state: 4e-6 V were seen."""
    with ngspice.circuit(STIFF) as fresh:
        fresh.alter({"v1": 3.0})
        expected = fresh.analyse("op", ["out", "a"]).vectors
    with ngspice.circuit(STIFF) as circuit:
        circuit.analyse("op", ["out"])
        assert ngspice._current is None, "the circuit is loaded again after stepping"
        circuit.alter({"v1": 3.0})
        again = circuit.analyse("op", ["out", "a"]).vectors
    assert again == expected


def test_a_floating_node_fails_by_name(ngspice: Library) -> None:
    """ngspice's transient rescue would call half a volt an operating point here; it is switched off."""
    floating = "* floating\nv1 in 0 1\nc1 in mid 1n\nc2 mid 0 1n\nr1 in 0 1k\n.op\n.end"
    with ngspice.circuit(floating) as circuit:
        found = circuit.analyse("op", ["in", "mid"])
    assert found.vectors == {}
    assert found.complaint is not None
    assert found.complaint.cause == "node mid has no path of its own to ground (singular matrix)"
    assert found.complaint.remedy == "give it a resistor to ground"


def test_a_loop_of_sources_fails_by_name_though_ngspice_returns_zero(ngspice: Library) -> None:
    with ngspice.circuit("* loop\nv1 in 0 1\nv2 in 0 2\nr1 in 0 1k\n.op\n.end") as circuit:
        found = circuit.analyse("op", ["in"])
        circuit.make_current()
        ngspice.command("op")
        assert ngspice.vector("in") is None, "a vector of length 0 with a NULL pointer is there"
    assert found.vectors == {}
    assert found.complaint is not None
    assert found.complaint.cause == "v1 closes a loop of voltage sources (singular matrix)"


def test_no_convergence_is_a_result_and_null_vectors_do_no_harm(ngspice: Library) -> None:
    without_solution = DIODE.replace(".op\n", "b1 x 0 i=v(x)*v(x)+1\n.op\n")
    with ngspice.circuit(without_solution) as circuit:
        found = circuit.analyse("op", ["out", "x"])
    assert found.complaint is not None
    assert found.vectors == {}
    assert not any("Transient op started" in line for line in found.transcript)


def test_an_analysis_that_is_none_is_a_complaint(ngspice: Library) -> None:
    with ngspice.circuit(DIODE) as circuit:
        found = circuit.analyse("dc vnone 0 1 1", ["out"])
    assert found.complaint is not None


def test_two_copies_of_the_file_work_side_by_side(ngspice: Library, tmp_path) -> None:
    script = f"""
import shutil
from analog.engines.libngspice import open_library
copy = shutil.copyfile({library_path()!r}, {str(tmp_path / "libngspice-copy.so")!r})
one, two = open_library().circuit({DIODE!r}), open_library(copy).circuit({DIODE.replace("9k", "4k")!r})
a, b = one.analyse("op", ["out"]), two.analyse("op", ["out"])
assert a.vectors["out"][0] < b.vectors["out"][0]
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_after_its_own_end_the_library_is_refused(library: None, tmp_path) -> None:
    script = """
from analog.engines.libngspice import open_library
from deploy.errors import DeployError
ngspice = open_library()
ngspice._die(1, False, False, 0, None)
try:
    ngspice.circuit("* t\\nr1 a 0 1\\n.end")
except DeployError as error:
    assert "cannot be used again in this process; start a new process" in str(error)
else:
    raise SystemExit("not refused")
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert issubclass(RequirementMissing, DeployError)


def test_without_the_library_the_requirement_names_the_paths_and_the_line(monkeypatch) -> None:
    monkeypatch.setenv("NGSPICE_LIBRARY_PATH", "/nonexistent/libngspice.so")
    assert not LIBRARY.is_met()
    with pytest.raises(RequirementMissing) as caught:
        LIBRARY.check()
    assert "searched: /nonexistent/libngspice.so" in str(caught.value)
    assert f"run: {INSTALL} or unset NGSPICE_LIBRARY_PATH" in str(caught.value)


def test_without_the_program_the_requirement_names_the_folders_and_the_line(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RequirementMissing, match=f"searched: /nowhere; run: {INSTALL}"):
        PROGRAM.check()


def test_a_file_that_is_no_library_is_a_requirement_not_a_traceback(tmp_path) -> None:
    path = tmp_path / "libngspice.so"
    path.write_bytes(b"no library")
    with pytest.raises(RequirementMissing, match="cannot be loaded"):
        Library(str(path))
