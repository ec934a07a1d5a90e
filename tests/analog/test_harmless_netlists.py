"""Somebody else's netlist runs no command, opens no file and starts no program, by whatever way it comes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analog.conversion import convert_model
from analog.deployment import CircuitDeployment
from analog.engines import run_netlist
from analog.engines.libngspice import open_library
from analog.netlist import check_harmless, read_netlist
from analog.netlist.numbers import parse_number
from analog.options import CircuitOptions
from deploy.errors import InputError
from deploy.model import Affine, Decision, Mlp

DIVIDER = "divider\nV1 in 0 10\nR1 in out 9k\nR2 out 0 1k\n"
SHELL = ".control\nshell touch FOLDER/made\n.endc\n"
HOSTILE = {
    "block": f"{DIVIDER}{SHELL}.end",
    "upper case": f"{DIVIDER}.CONTROL\nshell touch FOLDER/made\n.ENDC\n.end",
    "indented": f"{DIVIDER}\t {SHELL}.end",
    "before the elements": f"t\n{SHELL}{DIVIDER[8:]}.end",
    "as the title": f"{SHELL}{DIVIDER}.end",
    "after the end": f"{DIVIDER}.end\n{SHELL}",
    "in a condition": f"{DIVIDER}.if (1)\n{SHELL}.endif\n.end",
    "form feeds": f"{DIVIDER}* a remark\f{SHELL.replace(chr(10), chr(12))}\n.end",
    "line separators": f"{DIVIDER}* a remark\u2028{SHELL.replace(chr(10), chr(0x2028))}\n.end",
    "a command as a remark": f"{DIVIDER}*# shell touch FOLDER/made\n.end",
    "include": f"{DIVIDER}.include FOLDER/other.inc\n.end",
    "include in quotes": f'{DIVIDER}.inc "FOLDER/other.inc"\n.end',
    "library": f"{DIVIDER}.lib FOLDER/other.inc tt\n.end",
    "a file that includes itself": f"{DIVIDER}.include FOLDER/self.inc\n.end",
    "a program": f'{DIVIDER}A1 [in] c null [x] p\n.model p d_process (process_file="FOLDER/made")\n.end',
    "a file as a source": f'{DIVIDER}a1 %v([x]) fs\n.model fs filesource (file="/etc/passwd")\n.end',
    "an unknown card": f"{DIVIDER}.shell touch FOLDER/made\n.end",
    "a longer name": f"{DIVIDER}.controls\nshell touch FOLDER/made\n.endc\n.end",
    "quit": f"{DIVIDER}.control\nquit 3\n.endc\n.end",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "other.inc").write_text("* other\n" + SHELL.replace("FOLDER", str(tmp_path)))
    (tmp_path / "self.inc").write_text(f".include {tmp_path}/self.inc\n")
    return tmp_path


@pytest.fixture(scope="module")
def deployment() -> CircuitDeployment:
    rng = np.random.default_rng(2)
    affines = (Affine(rng.normal(size=(3, 2)), np.zeros(3)), Affine(rng.normal(size=(2, 3)), np.zeros(2)))
    model = Mlp(affines, ("relu",), Decision("argmax"))
    return convert_model(model, rng.uniform(-1, 1, size=(20, 2)), CircuitOptions(cell="superdiode"))


@pytest.mark.parametrize("name", HOSTILE)
def test_the_library_is_not_given_it(library: None, folder: Path, name: str) -> None:
    before = sorted(folder.iterdir())
    with pytest.raises(InputError, match=r"line \d+: .*(not handed to ngspice|can open files and start programs)"):
        open_library().circuit(HOSTILE[name].replace("FOLDER", str(folder)))
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("name", HOSTILE)
def test_the_program_is_not_given_it(folder: Path, name: str) -> None:
    before = sorted(folder.iterdir())
    with pytest.raises(InputError, match=r"line \d+: "):
        run_netlist(HOSTILE[name].replace("FOLDER", str(folder)))
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("name", HOSTILE)
def test_the_study_says_why_in_its_outcome(
    library: None, deployment: CircuitDeployment, folder: Path, name: str
) -> None:
    file = folder / "users.cir"
    file.write_text(HOSTILE[name].replace("FOLDER", str(folder)), encoding="utf-8")
    before = sorted(folder.iterdir())
    study = deployment.studies()["netlist"]
    try:
        cases = list(study.cases(study.options(file=str(file)), np.random.default_rng(0)))
    except InputError as error:
        assert str(file) in str(error)  # our own reader made nothing of it
    else:
        assert "ngspice: line " in str(study.solve(cases[0], np.zeros((1, 2)))["outcome"])
    assert sorted(folder.iterdir()) == before


def test_an_op_amp_in_a_bundle_runs_nothing(library: None, deployment: CircuitDeployment, folder: Path) -> None:
    """The op-amp's text stands in a bundle's options: a bundle of somebody else's must be safe to evaluate."""
    text = ".subckt amp p n vp vn out\nE1 out 0 p n 1e4\n.ends\n" + SHELL.replace("FOLDER", str(folder))
    model = Mlp((Affine(np.eye(2), np.zeros(2)), Affine(np.eye(2), np.zeros(2))), ("relu",), Decision("argmax"))
    options = CircuitOptions(cell="superdiode", op_amp=text)
    rows = np.random.default_rng(0).uniform(-1, 1, size=(20, 2))
    engines = convert_model(model, rows, options).engines()
    for name in ("ngspice", "ngspice-process"):
        with pytest.raises(InputError, match=r"\.control is not handed to ngspice"), engines[name] as engine:
            engine.run(rows[:1])
    assert not (folder / "made").exists()


def test_what_a_netlist_may_say_is_let_through(library: None) -> None:
    cards = ".options reltol=1e-6\n.temp 60\n.param a=1\n.model d1 d(is=1n)\n.ic v(out)=0\n.save v(out)\n.op\n"
    check_harmless(f"{DIVIDER}* a remark with .control in it\n+ ; .include x\n{cards}.end")
    with open_library().circuit(f"a title\n{DIVIDER[8:]}{cards}.end") as circuit:
        assert circuit.analyse("op", ["out"]).vectors["out"][0] == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has no node but ground"),
        (b"title alone\n", "has no node but ground"),
        ("größe\nV1 ä 0 1\nR1 ä 0 1k\n".encode("latin-1"), "line 1: byte 0xf6 is no UTF-8"),
        (b"t\nR1 a\n", "users.cir, line 2, r1: 2 nodes are needed"),
    ],
)
def test_a_file_that_is_no_netlist_is_refused_by_name(
    deployment: CircuitDeployment, tmp_path: Path, data: bytes, message: str
) -> None:
    (tmp_path / "users.cir").write_bytes(data)
    study = deployment.studies()["netlist"]
    with pytest.raises(InputError, match=message):
        list(study.cases(study.options(file=str(tmp_path / "users.cir")), np.random.default_rng(0)))


def test_subcircuits_that_multiply_are_refused_before_they_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analog.netlist.reader._MAX_CARDS", 1000)
    levels = "".join(
        f".subckt s{level} a\n" + "".join(f"x{k} a s{level - 1}\n" for k in range(10)) + ".ends\n"
        for level in range(1, 15)
    )
    with pytest.raises(InputError, match="more than 1000 elements once its subcircuits are put in"):
        read_netlist(f"t\n.subckt s0 a\nR1 a 0 1k\n.ends\n{levels}x1 a s14\n.end")


def test_errors_quote_little_of_a_long_number() -> None:
    with pytest.raises(InputError) as refused:
        parse_number("1" * 100_000)
    assert len(str(refused.value)) < 200
