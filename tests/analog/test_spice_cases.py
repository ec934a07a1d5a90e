"""Cases from public bug reports about SPICE front ends, end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import deploy
from analog.conversion import convert_model
from analog.engines import ENGINES, NativeEngine
from analog.engines.libngspice import open_library
from analog.netlist import check_netlist, circuit_from_netlist, read_netlist, write_netlist
from analog.netlist.names import legal_names
from analog.options import CircuitOptions
from analog.solve import plan_circuit
from deploy.errors import InputError


def _case(inputs: Path, name: str) -> Path:
    folder = inputs / "cases" / name
    assert json.loads((folder / "case.json").read_text())["id"] == name
    return folder


def test_names_that_collide_in_spice_stay_as_many_nodes_as_values(inputs: Path, library: None) -> None:
    folder = _case(inputs, "spice_single_neuron_and_names")
    model = deploy.load(folder / "model.onnx")
    with np.load(folder / "io.npz") as arrays:
        x = next(arrays[name] for name in arrays.files if name.startswith("x"))
        y = next(arrays[name] for name in arrays.files if name.startswith("y"))
    x = model.check_rows(x)
    deployment = convert_model(model, x, CircuitOptions(diode="ideal"))
    circuit = deployment.plan.circuit
    netlist = write_netlist(circuit)
    assert len(set(netlist.vectors)) == circuit.n_nodes
    read = read_netlist(netlist.text)
    check_netlist(read)
    assert len(read.nodes()) == circuit.n_nodes
    np.testing.assert_allclose(deployment.logits(x), y.reshape(len(x), -1), atol=1e-5)  # a float32 file
    with ENGINES["ngspice"](circuit) as engine, NativeEngine(circuit) as native:
        spice, ours = engine.solve(x), native.solve(x)
    assert spice.converged.all()
    # The near-ideal card that stands for an ideal diode drops NV_T ln(i/I_S) = 26 uV x 21 at most.
    assert np.abs(spice.volts - ours.volts).max() < 1e-2
    assert legal_names(["0", "A0", "a0", "Out", "C_bias", "x.1/weight"]) == (
        "0", "a0", "a0_2", "out", "c_bias", "x_1_weight",
    )  # fmt: skip


def test_floating_is_refused_by_name_and_ok_gives_one_volt(inputs: Path, library: None) -> None:
    folder = _case(inputs, "spice_singular_or_gmin_notes")
    with pytest.raises(InputError, match="node mid has no path of direct current to ground"):
        check_netlist(read_netlist((folder / "floating.cir").read_text()))
    good = read_netlist((folder / "ok.cir").read_text())
    assert check_netlist(good) == ()
    circuit = circuit_from_netlist(good)
    volts = plan_circuit(circuit).volts(np.zeros((1, 0)))[0]
    assert volts[circuit.node_names.index("out")] == pytest.approx(1.0, rel=1e-14)
    with open_library().circuit(good.text) as loaded:
        found = loaded.analyse("op", ["out"])
    assert found.succeeded
    assert found.vectors["out"][0] == pytest.approx(1.0, rel=1e-12)


_LOOKUP = """
import numpy as np, deploy, analog
from analog.conversion import convert_model
from analog.options import CircuitOptions
from deploy.errors import RequirementMissing
from deploy.model import Affine, Decision, Mlp
model = Mlp((Affine([[1.0], [-1.0]], [0.0, 0.1]), Affine([[1.0, 1.0]], [0.0])), ("relu",), Decision("value", 0.1))
deployment = convert_model(model, np.linspace(-1, 1, 20)[:, None], CircuitOptions())
assert deployment.files()["circuit.cir"].endswith(b".op\\n.end\\n")
assert np.isfinite(deployment.logits(np.array([[0.5]]))).all()
requirement = deployment.engines()["ngspice"].requires
assert not requirement.is_met()
try:
    requirement.check()
except RequirementMissing as error:
    assert "/nonexistent/libngspice.so" in str(error) and "apt-get install -y ngspice libngspice0" in str(error), error
    assert error.exit_code == 5
else:
    raise SystemExit("not missing?")
"""


def test_a_missing_library_is_a_sentence_with_paths_and_never_a_traceback(inputs: Path) -> None:
    folder = _case(inputs, "spice_library_lookup")
    env = {**os.environ, **json.loads((folder / "case.json").read_text())["env"]}
    done = subprocess.run([sys.executable, "-c", _LOOKUP], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    doctor = subprocess.run(
        [sys.executable, "-c", "from deploy.cli.main import main; main()", "doctor"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    said = doctor.stdout + doctor.stderr
    assert "Traceback" not in said
    assert "/nonexistent/libngspice.so" in said
    assert "apt-get install" in said
