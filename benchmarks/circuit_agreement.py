"""Do circuits compute what they should? Native against ngspice, ideal against digital, real diodes against digital.

    python benchmarks/circuit_agreement.py [SECTION ...] [--inputs FOLDER] [--cases 1000] [--seed 0 ...] [--json FILE]

Sections, all by default:

``random``     native against ngspice on random circuits: every cell, equilibrium networks of both realisations and
               passive nets; -40 to 125 degrees; for each ``--seed`` ``--cases`` with 1N4148 and near-ideal diodes, half
               as many more with BAT54. ngspice runs at reltol 1e-7, vntol 1e-12 V and SPICE's own abstol 1e-12 A. It
               stops when no node's voltage *to ground* moves by more than reltol of itself, and asks nothing of a
               diode between two nodes: at 5 V its 0.6 mV may still move by 0.5 uV, and with a near-ideal diode
               (N V_T = 26 uV) the square of that is nanovolts. So an ideal voltmeter (a controlled source of gain 1,
               which draws nothing) stands across every diode: what it reads is a node like any other, and reltol holds
               for it too. What ngspice then calls no operating point is counted as not converged; nothing else is left
               out. The same netlist without voltmeters is measured beside it, and each of its differences above
               1e-10 V is printed. All are also compared with the operating point itself, computed to 40 digits from
               the elements alone, which tells whose a difference is.
``reference``  the same on digits_64_32_10, mnist_784_128_10 and digits_mondeq_64_48_10.
``ideal``      compiled circuits with ideal diodes against the network itself, in logits.
``diodes``     1N4148 circuits against the network on held-out rows; every choice is made on calibration rows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import deploy
from analog.build import CircuitBuilder
from analog.circuit import GROUND, Circuit, Vcvs, origins
from analog.compile.design_file import compile_design
from analog.conditions import Conditions
from analog.conversion import convert_model, design_model
from analog.devices import MODEL_CARDS, DiodeModel
from analog.engines import OperatingPointEngine
from analog.engines.libngspice import open_library
from analog.engines.ngspice import POINT_TOLERANCES
from analog.netlist import Settings
from analog.options import CircuitOptions
from analog.solution import Solution
from analog.solve import RefinedPoint, plan_circuit, refine_operating_point
from deploy.model import Affine, Decision, Equilibrium, Mlp, Model

DIODES = ("1N4148", "BAT54", "near_ideal")
CELSIUS = (-40.0, 0.0, 27.0, 60.0, 85.0, 125.0)
KINDS = ("clamp", "shunt", "series", "superdiode", "controlled", "doubled", "passive")
TOLERANCES = Settings(reltol=1e-7, vntol_V=1e-12, abstol_A=1e-12)
"""abstol is for the currents of sources; below the rounding of milliamperes Newton's iteration could not stop."""
CLAIM_V = 1e-10


def random_cascade(rng: np.random.Generator) -> Mlp:
    """A small chain of one to three hidden layers."""
    widths = [int(width) for width in rng.integers(2, 9, size=rng.integers(3, 6))]
    affines = tuple(
        Affine(rng.normal(size=(n_out, n_in)), rng.normal(size=n_out) / 2)
        for n_in, n_out in itertools.pairwise(widths)
    )
    return Mlp(affines, ("relu",) * (len(affines) - 1), Decision("argmax"))


def random_equilibrium(rng: np.random.Generator, *, doubled: bool) -> Equilibrium:
    """Monotone; small symmetric couplings let resistors alone carry it."""
    n, n_in = int(rng.integers(3, 9)), int(rng.integers(2, 6))
    a, b = rng.normal(size=(2, n, n)) / np.sqrt(n)
    W = 0.1 * (a + a.T) + b - b.T if doubled else 0.7 * np.eye(n) - a.T @ a + b - b.T
    U, V = rng.normal(size=(n, n_in)), rng.normal(size=(3, n))
    return Equilibrium(W, U, rng.normal(size=n), V, rng.normal(size=3), Decision("argmax"))


def random_passive(rng: np.random.Generator, model: DiodeModel) -> Circuit:
    """Resistors and diodes between random nodes, a few sources."""
    wires = CircuitBuilder("random passive net")
    n, n_in = int(rng.integers(4, 12)), 3
    rails = wires.nodes([f"x{k}" for k in range(n_in)])
    wires.voltage_source(rails, 0, 0.0, input=np.arange(n_in), per_unit=rng.uniform(1, 5, n_in))
    nodes = wires.nodes([f"n{k}" for k in range(n)])
    everything = np.concatenate([[0], rails, nodes])
    for node in nodes:
        for other in rng.choice(everything[everything != node], size=3, replace=False):
            wires.resistor(node, other, 10 ** rng.uniform(3, 6))
    wires.resistor(nodes, 0, 1e5)
    for _ in range(n):
        anode, cathode = rng.choice(everything[1 + n_in :], size=2, replace=False)
        wires.diode(anode, cathode, model)
    wires.diode(0, nodes[::2], model)
    return wires.build(outputs=nodes[:2], n_in=n_in)


def random_circuit(rng: np.random.Generator, kind: str, diode: str, celsius: float) -> Circuit:
    """One circuit of a kind."""
    if kind == "passive":
        return random_passive(rng, MODEL_CARDS[diode])
    options: dict[str, Any] = {"diode": diode, "celsius": celsius, "full_scale_volts": float(rng.uniform(0.5, 10))}
    model: Model
    if kind in ("controlled", "doubled"):
        model = random_equilibrium(rng, doubled=kind == "doubled")
        options["realisation"] = "auto" if kind == "doubled" else kind
    else:
        model = random_cascade(rng)
        options["cell"] = kind
    x = rng.uniform(-1, 1, size=(64, model.n_in))
    return compile_design(design_model(model, x, CircuitOptions(**options)))


def compare(circuit: Circuit, x: np.ndarray, celsius: float = 27.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Largest |difference| of any node (rows,) in volts (NaN where ngspice failed), native residual and iterations."""
    conditions = Conditions(celsius=celsius)
    native = plan_circuit(circuit, conditions).solve(x)
    spice = ask_ngspice(circuit, x, conditions, (TOLERANCES,)).volts
    return np.abs(spice - native.volts).max(axis=1), native.residual, native.iterations


def ask_ngspice(
    circuit: Circuit, x: np.ndarray, conditions: Conditions, tolerances: Sequence[Settings]
) -> Solution:
    """Operating points by the shared library, NaN where it failed."""
    with OperatingPointEngine(circuit, conditions, tolerances=tolerances) as engine:
        return engine.solve(x)


def with_voltmeters(circuit: Circuit) -> Circuit:
    """The circuit with one more node a diode, at the end, that a source of gain 1 holds at the diode's voltage."""
    count = len(circuit.diodes)
    reads = Vcvs(
        origin=origins("given", count),
        plus=circuit.n_nodes + np.arange(count),
        minus=np.full(count, GROUND),
        control_plus=circuit.diodes.anode,
        control_minus=circuit.diodes.cathode,
        gain=np.ones(count),
    )
    return circuit.with_(
        node_names=(*circuit.node_names, *(f"voltmeter {k}" for k in range(count))),
        node_origins=np.concatenate([circuit.node_origins, origins("given", count)]),
        vcvs=Vcvs.join([circuit.vcvs, reads]),
    )


@dataclass
class Answers:
    """What ngspice gives in one way of asking: distances (V) from native and from the exact point, and failures."""

    apart: list[float] = field(default_factory=list)
    exact: list[float] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    stepped: int = 0

    def add(self, volts: np.ndarray, native: np.ndarray, exact: RefinedPoint, name: str, note: str) -> None:
        """Take the voltages (nodes,) of one case, NaN where ngspice found none."""
        if not np.isfinite(volts).all():
            self.failed[name.split(", circuit")[0]] += 1
            return
        self.stepped += "stepping" in note
        self.apart.append(float(np.abs(volts - native).max()))
        self.exact.append(exact.distance(volts))
        self.names.append(f"{name}{f' ({note})' if note else ''}")

    def above(self) -> list[int]:
        """Cases that differ by more than the claim."""
        return [k for k, apart in enumerate(self.apart) if apart > CLAIM_V]

    def say(self, k: int) -> str:
        """One case in words."""
        return f"{self.names[k]}: {self.apart[k]:.1e} V from native, {self.exact[k]:.1e} V from the exact point"

    def report(self, title: str) -> dict[str, Any]:
        """Print, and give the figures."""
        lost, worst = self.failed.total(), int(np.argmax(self.apart))
        share = 100 * lost / (lost + len(self.apart))
        print(
            f"  native and {title}: worst {self.apart[worst]:.1e} V, 99 % within {np.percentile(self.apart, 99):.1e} V, "
            f"above {CLAIM_V:g} V: {len(self.above())} of {len(self.apart)}; not converged {lost} ({share:.2f} %) "
            f"{dict(self.failed) or ''}; found by stepping gmin or sources: {self.stepped}\n"
            f"    largest: {self.say(worst)}"
        )
        return {
            "worst_V": self.apart[worst],
            "largest": self.say(worst),
            "above_1e-10": [self.say(k) for k in self.above()],
            "failed": dict(self.failed),
            "stepped": self.stepped,
        }


@dataclass
class Table:
    """Random cases of some diodes."""

    native: list[float] = field(default_factory=list)
    metered: Answers = field(default_factory=Answers)
    bare: Answers = field(default_factory=Answers)
    engine: Answers = field(default_factory=Answers)

    def add(self, circuit: Circuit, x: np.ndarray, celsius: float, name: str) -> None:
        """Solve rows x natively, exactly, and by ngspice with voltmeters, without, and as our engine asks it."""
        conditions = Conditions(celsius=celsius)
        native = plan_circuit(circuit, conditions).solve(x).volts
        exact = [refine_operating_point(circuit, x[row], native[row], conditions) for row in range(len(x))]
        self.native += [
            point.distance(volts) if point.last_step_V < 1e-30 else np.inf
            for point, volts in zip(exact, native, strict=True)
        ]
        for answers, asked, tolerances in (
            (self.metered, with_voltmeters(circuit), (TOLERANCES,)),
            (self.bare, circuit, (TOLERANCES,)),
            (self.engine, circuit, POINT_TOLERANCES),
        ):
            found = ask_ngspice(asked, x, conditions, tolerances)
            for row in range(len(x)):
                volts = found.volts[row, : circuit.n_nodes]
                answers.add(volts, native[row], exact[row], f"{name}, row {row}", found.notes.get(row, ""))

    def report(self, title: str) -> dict[str, Any]:
        """Print, and give the figures."""
        print(
            f"{title}: {len(self.native)} cases\n"
            f"  native from the exact operating point: {max(self.native):.1e} V at worst"
        )
        found = {
            "cases": len(self.native),
            "native_from_exact_V": max(self.native),
            "metered": self.metered.report("ngspice at reltol 1e-7, a voltmeter across each diode"),
            "bare": self.bare.report("ngspice at reltol 1e-7, no voltmeters"),
            "engine": self.engine.report("ngspice as the engine asks it (reltol 1e-9; 1e-7 where that fails)"),
        }
        for k in self.bare.above():
            print(f"  * no voltmeters: {self.bare.say(k)}")
        return found


def run_random(given: argparse.Namespace) -> dict[str, Any]:
    """Random circuits, four rows each."""
    asked, extra = Table(), Table()
    for number, seed in enumerate(given.seed, start=1):
        rng = np.random.default_rng(seed)
        k = 0
        while len(asked.native) < number * given.cases:
            kind, diode, celsius = KINDS[k % len(KINDS)], DIODES[(k // len(KINDS)) % 3], float(rng.choice(CELSIUS))
            circuit = random_circuit(rng, kind, diode, celsius)
            table = extra if diode == "BAT54" else asked
            x = rng.uniform(-1, 1, size=(4, circuit.n_in))
            table.add(circuit, x, celsius, f"{kind}, {diode}, {celsius:g} C, circuit {k} of seed {seed}")
            k += 1
    found = {"asked": asked.report("1N4148 and near-ideal")}
    if extra.native:
        found["BAT54"] = extra.report("BAT54")
    return found


def load(inputs: Path, name: str) -> tuple[Model, np.ndarray]:
    """A reference network and the rows of its data."""
    folder = inputs / "models/reference"
    if name.startswith("digits_mondeq"):
        arrays = np.load(folder / f"{name}.npz")
        network: Model = Equilibrium(*(arrays[key] for key in "WUbVc"), Decision("argmax"))
    elif name == "mnist_784_128_10":
        network = deploy.load(inputs / "models/mnist_784_128_10/mnist_784_128_10.dynamo.onnx")
    else:
        network = deploy.load(folder / f"{name}.onnx")
    file = "data/digits.npz" if name.startswith("digits") else "data/mnist/mnist_t10k.npz"
    x = np.load(inputs / file)["x"]
    return network, x.reshape(len(x), -1).astype(np.float64)


CALIBRATED_ON = {"digits": slice(0, 1437), "mnist_784_64x6_10": slice(6000, 8000), "mnist": slice(0, 8000)}
HELD_OUT = {"digits": slice(1437, 1797), "mnist": slice(8000, 10000)}


def rows(table: dict[str, slice], name: str) -> slice:
    """The slice of the longest key that starts the model's name."""
    return table[max((key for key in table if name.startswith(key)), key=len)]


def run_reference(given: argparse.Namespace) -> dict[str, Any]:
    """Reference networks with 1N4148."""
    found = {}
    for name, count in (("digits_64_32_10", 20), ("mnist_784_128_10", 2), ("digits_mondeq_64_48_10", 10)):
        model, x = load(given.inputs, name)
        circuit = compile_design(design_model(model, x[rows(CALIBRATED_ON, name)][:1500], CircuitOptions()))
        difference, residual, iterations = compare(circuit, x[rows(HELD_OUT, name)][:count])
        print(
            f"{name}: {count} rows, every node within {difference.max():.1e} V of ngspice; "
            f"residual {residual.max():.1e} A, {iterations.max()} iterations at most, {dict(circuit.counts())}"
        )
        found[name] = {"rows": count, "worst_V": float(difference.max()), "residual_A": float(residual.max())}
    return found


def run_ideal(given: argparse.Namespace) -> dict[str, Any]:
    """Ideal diodes: the network itself."""
    found = {}
    for name in ("digits_64_32_10", "digits_64_32_32_10", "mnist_784_64x6_10", "mnist_784_256_256_10"):
        model, x = load(given.inputs, name)
        for cell in ("clamp", "shunt", "series"):
            options = CircuitOptions(cell=cell, diode="ideal")
            design = design_model(model, x[rows(CALIBRATED_ON, name)][:1000], options)
            held_out = x[rows(HELD_OUT, name)]
            difference = plan_circuit(compile_design(design)).outputs(held_out) - model.logits(held_out)
            found[f"{name} {cell}"] = float(np.abs(difference).max())
        worst = max(value for key, value in found.items() if key.startswith(f"{name} "))
        print(f"{name}, ideal diodes: within {worst:.1e} logits of the network (clamp, shunt, series)")
    return found


def run_diodes(given: argparse.Namespace) -> dict[str, Any]:
    """1N4148: agreement with the network on held-out rows."""
    found = {}
    names = ("digits_64_32_10", "mnist_784_64x6_10", "mnist_784_256_256_10", "digits_mondeq_64_48_10")
    for name in names:
        model, x = load(given.inputs, name)
        held_out = x[rows(HELD_OUT, name)]
        digital = model.logits(held_out)
        for volts in (5.0, 10.0):
            started = time.process_time()
            deployment = convert_model(model, x[rows(CALIBRATED_ON, name)], CircuitOptions(full_scale_volts=volts))
            seconds = time.process_time() - started
            logits = deployment.logits(held_out)
            agreement = float(model.decision.agree(digital, logits).mean())
            rms = float(np.sqrt(np.mean((logits - digital) ** 2)))
            print(
                f"{name} at {volts:g} V (largest hidden output {deployment.facts.realisability['full_scale_volts']:.2f}"
                f" V): agreement {agreement:.4f} on {len(held_out)} held-out rows, rms {rms:.3f} logits, "
                f"{deployment.facts.power_W:.3g} W, converted in {seconds:.1f} s"
            )
            found[f"{name} {volts:g} V"] = {"agreement": agreement, "rms": rms, "power_W": deployment.facts.power_W}
    return found


SECTIONS = {"random": run_random, "reference": run_reference, "ideal": run_ideal, "diodes": run_diodes}


def main() -> None:
    """Run the sections."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--inputs", type=Path, default=os.environ.get("RELU_DEPLOY_INPUTS"))
    parser.add_argument("--cases", type=int, default=1000, help="of each seed")
    parser.add_argument("--seed", type=int, nargs="+", default=[0], help="of the random circuits, one or more")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sections = given.sections or list(SECTIONS)
    if set(sections) - set(SECTIONS):
        sys.exit(f"sections are {', '.join(SECTIONS)}")
    if given.inputs is None and set(sections) != {"random"}:
        sys.exit("give --inputs FOLDER, or set RELU_DEPLOY_INPUTS")
    print(
        f"python {platform.python_version()}, numpy {np.__version__}, {open_library().version}, "
        f"{' '.join(TOLERANCES.cards())}"
    )
    found = {name: SECTIONS[name](given) for name in sections}
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
