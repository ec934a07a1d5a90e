"""The native circuit solver against ngspice, in one interleaved run.

    python benchmarks/circuits.py [SECTION ...] [--inputs FOLDER] [--rounds 3] [--json FILE]

Sections: ``speed`` (CPU time per sample, ratios), ``netlist`` (time to write), ``memory`` (10,000 operating points by
libngspice), ``tolerance`` (accuracy under resistor tolerance), ``pyspice`` (agreement and memory). All by default.

How the comparison is kept honest
---------------------------------
* Contenders take turns, round after round, in one process; the best round of each counts; CPU time, not wall time.
* ngspice is used as well as we know how: one copy of the library, the netlist loaded once and its sources altered
  (``op``), or all rows in one ``dc`` sweep (``sweep``, charged with writing and parsing its netlist, saving the
  outputs only, at reltol 1e-7, which is looser than what our engine asks for). No process start, no file.
* The native solver computes the outputs of a batch; its analysis of the circuit (once) is printed beside it.
* Same circuit, same diode, same temperature; the largest |difference| of the outputs is printed with the figures.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import deploy
from analog.build import CircuitBuilder
from analog.circuit import Circuit
from analog.conversion import convert_model
from analog.devices import D1N4148
from analog.engines import PySpiceEngine, RealEngine
from analog.engines.libngspice import open_library
from analog.engines.ngspice import driven_levels
from analog.netlist import Hold, Settings, Sweep, write_netlist
from analog.netlist.writer import element_names
from analog.options import CircuitOptions
from analog.solve import plan_circuit
from analog.studies import Subject
from analog.studies.variations import ResistorTolerance

SETTINGS = Settings()


@dataclass(frozen=True, eq=False)
class Contest:
    """One circuit, and how many rows each contender gets in a round."""

    name: str
    circuit: Circuit
    x: np.ndarray
    op_rows: int
    sweep_rows: int


def best(rounds: int, contenders: dict[str, Callable[[], tuple[float, np.ndarray]]]) -> dict[str, float]:
    """Let contenders take turns; best CPU seconds per sample of each."""
    found = dict.fromkeys(contenders, np.inf)
    for _ in range(rounds):
        for name, run in contenders.items():
            seconds, _ = run()
            found[name] = min(found[name], seconds)
    return found


def native_contender(contest: Contest) -> Callable[[], tuple[float, np.ndarray]]:
    """Outputs of a whole batch."""
    plan = plan_circuit(contest.circuit)
    plan.outputs(contest.x[:2])  # compiles

    def run() -> tuple[float, np.ndarray]:
        started = time.process_time()
        outputs = plan.outputs(contest.x)
        return (time.process_time() - started) / len(contest.x), outputs

    return run


def op_contender(contest: Contest) -> Callable[[], tuple[float, np.ndarray]]:
    """Alter every driven source, then ``op``, reading the outputs."""
    circuit = contest.circuit
    netlist = write_netlist(circuit, settings=SETTINGS)
    loaded = open_library().circuit(netlist.text)
    vectors = [netlist.vectors[node] for node in circuit.outputs.tolist()]
    driven = driven_levels(circuit, element_names(circuit), contest.x)

    def run() -> tuple[float, np.ndarray]:
        loaded.make_current()
        found = []
        started = time.process_time()
        for row in range(contest.op_rows):
            loaded.alter({name: float(levels[row]) for name, levels in driven.items()})
            analysis = loaded.analyse("op", vectors)
            found.append([float(analysis.vectors[name][0]) for name in vectors])
        return (time.process_time() - started) / contest.op_rows, np.array(found)

    return run


def sweep_contender(contest: Contest) -> Callable[[], tuple[float, np.ndarray]]:
    """Write, parse and run one ``dc`` sweep over the rows, saving the outputs."""
    circuit = contest.circuit
    names = write_netlist(circuit).vectors
    vectors = [names[node] for node in circuit.outputs.tolist()]

    def run() -> tuple[float, np.ndarray]:
        drive = Sweep(contest.x[: contest.sweep_rows])
        started = time.process_time()
        saved = f".save {' '.join(f'v({name})' for name in vectors)}"
        netlist = write_netlist(circuit, drive, settings=SETTINGS, analyses=(saved, f".{drive.analysis()}"))
        with open_library().circuit(netlist.text) as loaded:
            analysis = loaded.analyse(drive.analysis(), vectors)
        seconds = (time.process_time() - started) / contest.sweep_rows
        return seconds, np.stack([analysis.vectors[name] for name in vectors], axis=1)

    return run


def passive_network(n_in: int, hidden: int, n_out: int, seed: int) -> Circuit:
    """Resistors and diodes alone, every hidden node coupled to every other: a signed network with mirror nodes.

    A positive edge joins equal sides, a negative one opposite sides, so that the unique solution is antisymmetric.
    """
    rng = np.random.default_rng(seed)
    wires = CircuitBuilder("coupled passive network")
    index = np.arange(n_in)
    rails = [wires.nodes([f"x{k}{mark}" for k in index]) for mark in "+-"]
    for side, rail in enumerate(rails):
        wires.voltage_source(rail, 0, 0.0, input=index, per_unit=5.0 * (1 - 2 * side))
    sides = [wires.nodes([f"h{k}{mark}" for k in range(hidden)]) for mark in "+-"]
    outs = [wires.nodes([f"y{k}{mark}" for k in range(n_out)]) for mark in "+-"]

    def join(first: list[np.ndarray], second: list[np.ndarray], pairs: list[tuple[int, int]]) -> None:
        for a, b in pairs:
            weight = rng.normal() / 1e5
            swap = int(weight < 0)
            for side in (0, 1):
                wires.resistor(first[side][a], second[side ^ swap][b], 1 / abs(weight))

    join(rails, sides, list(itertools.product(range(n_in), range(hidden))))
    join(sides, sides, list(itertools.combinations(range(hidden), 2)))
    join(sides, outs, list(itertools.product(range(hidden), range(n_out))))
    for nodes in (*sides, *outs):
        wires.resistor(nodes, 0, 1e6)
    wires.diode(0, sides[0], D1N4148)
    wires.diode(sides[1], 0, D1N4148)
    return wires.build(outputs=outs[0], n_in=n_in)


def load(inputs: Path, name: str) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """A reference model, its calibration rows, and its held-out rows and labels."""
    if name == "digits_64_32_10":
        data = np.load(inputs / "data/digits.npz")
        model, split = deploy.load(inputs / "models/reference/digits_64_32_10.onnx"), 1437
    else:
        data = np.load(inputs / "data/mnist/mnist_t10k.npz")
        model, split = deploy.load(inputs / "models/mnist_784_128_10/mnist_784_128_10.dynamo.onnx"), 8000
    x = data["x"].reshape(len(data["x"]), -1)
    return model, x[:split], x[split:], data["y"][split:]


def run_speed(inputs: Path, rounds: int) -> list[dict[str, Any]]:
    """Ratios of CPU time per sample."""
    rng = np.random.default_rng(0)
    contests = []
    for name, op_rows, sweep_rows in (("digits_64_32_10", 30, 360), ("mnist_784_128_10", 2, 60)):
        model, calibration, held_out, _ = load(inputs, name)
        circuit = convert_model(model, calibration[:2000], CircuitOptions()).plan.circuit
        contests.append(Contest(name, circuit, held_out, op_rows, sweep_rows))
    passive = passive_network(64, 48, 10, seed=0)
    contests.append(Contest("passive_64_48_10", passive, rng.uniform(0, 1, (400, 64)), 20, 100))
    found = []
    for contest in contests:
        contenders = {
            "native": native_contender(contest),
            "op": op_contender(contest),
            "sweep": sweep_contender(contest),
        }
        exact = contenders["native"]()[1]
        volts = exact * contest.circuit.output_volts_per_unit + contest.circuit.output_volts_offset
        apart = {
            name: float(np.abs(outputs - volts[: len(outputs)]).max())
            for name, outputs in ((name, contenders[name]()[1]) for name in ("op", "sweep"))
        }
        seconds = best(rounds, contenders)
        started = time.process_time()
        plan_circuit(contest.circuit)
        row = {
            "circuit": contest.name,
            "native_us": seconds["native"] * 1e6,
            "op_ms": seconds["op"] * 1e3,
            "sweep_ms": seconds["sweep"] * 1e3,
            "ratio_op": seconds["op"] / seconds["native"],
            "ratio_sweep": seconds["sweep"] / seconds["native"],
            "analysis_ms": (time.process_time() - started) * 1e3,
            "op_apart_V": apart["op"],
            "sweep_apart_V": apart["sweep"],
        }
        found.append(row)
        print(
            f"{contest.name:>18}: native {row['native_us']:8.2f} us (analysis once {row['analysis_ms']:.0f} ms), "
            f"op {row['op_ms']:8.3f} ms = {row['ratio_op']:8.0f} x, sweep {row['sweep_ms']:8.3f} ms = "
            f"{row['ratio_sweep']:7.0f} x; apart {apart['op']:.1e} V, {apart['sweep']:.1e} V"
        )
    return found


def run_netlist(inputs: Path, rounds: int) -> list[dict[str, Any]]:
    """CPU seconds to write the netlist of 784-128-10."""
    model, calibration, held_out, _ = load(inputs, "mnist_784_128_10")
    circuit = convert_model(model, calibration[:1000], CircuitOptions()).plan.circuit
    times = []
    for _ in range(rounds):
        started = time.process_time()
        text = write_netlist(circuit, Hold(held_out[0])).text
        times.append(time.process_time() - started)
    print(f"784-128-10 netlist: {len(text)} bytes, {text.count(chr(10))} lines in {min(times):.3f} s")
    return [{"bytes": len(text), "seconds": min(times)}]


def run_memory(inputs: Path, rounds: int) -> list[dict[str, Any]]:
    """Growth over 10,000 alter-and-op."""
    import psutil

    process = psutil.Process()
    text = "* t\nv1 in 0 10\nr1 in out 9k\nd1 out 0 dx\n.model dx d(is=2.52e-9 n=1.752 rs=0.568)\n.op\n.end\n"
    with open_library().circuit(text) as circuit:
        for k in range(200):
            circuit.alter({"v1": float(k)})
            circuit.analyse("op", ["out"])
        before = process.memory_info().rss
        for k in range(10_000):
            circuit.alter({"v1": k * 1e-3})
            circuit.analyse("op", ["out"])
        growth = process.memory_info().rss - before
    print(f"10,000 operating points by libngspice: {growth / 1e6:.3f} MB growth")
    return [{"points": 10_000, "growth_bytes": growth}]


def run_tolerance(inputs: Path, rounds: int) -> list[dict[str, Any]]:
    """Held-out accuracy of digits under uniform resistor tolerance, 200 draws each."""
    model, calibration, x, labels = load(inputs, "digits_64_32_10")
    deployment = convert_model(model, calibration, CircuitOptions())
    nominal = float(np.mean(deployment.logits(x).argmax(axis=1) == labels))
    study = ResistorTolerance(Subject(deployment.plan.circuit, deployment.plan.conditions, model))
    found = []
    for percent, allowed in ((1.0, 0.005), (5.0, 0.015), (20.0, 0.04)):
        options = study.options(percent=(percent,), draws=200)
        accuracies = [
            np.mean(plan_circuit(study.vary(case.parameters).circuit).outputs(x).argmax(axis=1) == labels)
            for case in study.cases(options, np.random.default_rng(0))
        ]
        fifth = float(np.percentile(accuracies, 5))
        found.append({"percent": percent, "nominal": nominal, "fifth_percentile": fifth, "allowed": allowed})
        print(
            f"digits, resistors +-{percent:g} %: 5th percentile {fifth:.4f}, nominal {nominal:.4f}, "
            f"lost {nominal - fifth:.4f} (allowed {allowed})"
        )
    return found


def run_pyspice(inputs: Path, rounds: int) -> list[dict[str, Any]]:
    """PySpice on 20 rows of digits: agreement and memory."""
    import psutil

    model, calibration, x, _ = load(inputs, "digits_64_32_10")
    circuit = convert_model(model, calibration, CircuitOptions()).plan.circuit
    process = psutil.Process()
    with RealEngine(PySpiceEngine(circuit)) as engine:
        run = engine.run(x[:20])
        before = process.memory_info().rss
        for _ in range(10):
            run = engine.run(x[:20])
        growth = process.memory_info().rss - before
    apart = run.diagnostics["max_abs_volts_difference"]
    print(f"PySpice: {apart:.1e} V from native on 20 rows; {growth / 1e6:.3f} MB growth over 200 more")
    return [{"apart_V": apart, "growth_bytes": growth, "simulator": run.diagnostics["simulator"]}]


SECTIONS = {
    "speed": run_speed,
    "netlist": run_netlist,
    "memory": run_memory,
    "tolerance": run_tolerance,
    "pyspice": run_pyspice,
}


def versions() -> dict[str, str]:
    """What was measured on what."""
    import numba
    import scipy

    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "numba": numba.__version__,
        "ngspice": open_library().version,
        "matrix solver": "as built: ngspice says nothing; Debian's is SPARSE 1.3 (no KLU)",
        "settings": " ".join(SETTINGS.cards()),
        "machine": platform.processor() or platform.machine(),
    }


def main() -> None:
    """Run the sections."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--inputs", type=Path, default=os.environ.get("RELU_DEPLOY_INPUTS"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.inputs is None:
        sys.exit("give --inputs FOLDER, or set RELU_DEPLOY_INPUTS")
    unknown = set(given.sections) - set(SECTIONS)
    if unknown:
        sys.exit(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    found: dict[str, Any] = {"versions": versions()}
    for name, value in found["versions"].items():
        print(f"{name}: {value}")
    for name in given.sections or SECTIONS:
        found[name] = SECTIONS[name](Path(given.inputs), given.rounds)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
