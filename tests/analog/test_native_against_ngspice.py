"""The native solver against ngspice, on circuits that neither was tuned on.

A case is one network, one sample, one cell, one diode, one temperature. Cases that ngspice itself cannot solve to
its tight tolerance (reltol 1e-9; it says so, falls back to 1e-7, or hands over voltages that miss Kirchhoff's law)
are counted and must stay under 5 %; where it fell back, the two must still agree to a microvolt.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import deploy
from analog.build import CircuitBuilder
from analog.circuit import Circuit
from analog.conditions import Conditions
from analog.conversion import convert_model
from analog.devices import D1N4148, NEAR_IDEAL, DiodeModel
from analog.engines import NativeEngine, OperatingPointEngine, PySpiceEngine, RealEngine, SweepEngine
from analog.options import CircuitOptions
from deploy.model import Affine, Decision, Equilibrium, Mlp

CLAIM_V = 1e-10


@dataclass
class Tally:
    """Worst |native - ngspice| over the cases, how many there were, and what ngspice (or native) could not solve."""

    cases: int = 0
    unsolved: int = 0
    given_up: int = 0
    worst_V: float = 0.0
    worst_where: str = ""
    notes: list[str] = field(default_factory=list)

    def compare(self, circuit: Circuit, x: np.ndarray, conditions: Conditions, where: str) -> None:
        with NativeEngine(circuit, conditions) as native, OperatingPointEngine(circuit, conditions) as engine:
            ours, theirs = native.solve(x), engine.solve(x)
        self.cases += len(x)
        self.given_up += int(np.count_nonzero(~ours.converged))
        loose = np.array(["only" in theirs.notes.get(row, "") for row in range(len(x))])
        strict = theirs.converged & ~loose & ours.converged
        self.unsolved += int(np.count_nonzero(~theirs.converged | loose))
        self.notes += list(theirs.notes.values())
        difference = np.abs(ours.volts - theirs.volts).max(axis=1)
        assert (difference[loose & theirs.converged & ours.converged] < 1e-6).all(), where
        if strict.any():
            worst = float(difference[strict].max())
            if worst > self.worst_V:
                self.worst_V, self.worst_where = worst, where

    def check(self, at_least: int, claim_V: float = CLAIM_V) -> None:
        assert self.cases >= at_least
        assert self.given_up <= self.cases / 1000, "the native solver says so itself, but it should not be often"
        assert self.unsolved < 0.05 * self.cases, self.notes[:5]
        assert self.worst_V <= claim_V, self.worst_where


def _random_network(rng: np.random.Generator) -> Mlp:
    depth = int(rng.integers(2, 5))
    widths = [int(width) for width in rng.integers(2, 9, size=depth + 1)]
    affines = tuple(
        Affine(rng.normal(size=(b, a)) / np.sqrt(a), 0.3 * rng.normal(size=b))
        for a, b in itertools.pairwise(widths)
    )
    return Mlp(affines, ("relu",) * (depth - 1), Decision("value", 1e-6))


def _random_equilibrium(rng: np.random.Generator) -> Equilibrium:
    n, n_in, n_out = (int(k) for k in rng.integers(2, 8, size=3))
    A, B = rng.normal(size=(n, n)) / n, rng.normal(size=(n, n)) / n
    W = 0.5 * np.eye(n) - A.T @ A + B - B.T
    U, V = rng.normal(size=(n, n_in)), rng.normal(size=(n_out, n))
    return Equilibrium(W, U, 0.3 * rng.normal(size=n), V, np.zeros(n_out), Decision("value", 1e-6))


def _random_options(rng: np.random.Generator) -> CircuitOptions:
    return CircuitOptions(
        cell=str(rng.choice(["clamp", "shunt", "series", "superdiode"])),
        diode=str(rng.choice(["1N4148", "near_ideal"])),
        full_scale_volts=float(rng.choice([1.0, 5.0, 10.0])),
        celsius=float(rng.uniform(-40, 125)),
    )


def _random_coupled(rng: np.random.Generator, model: DiodeModel) -> Circuit:
    """Resistors, diodes and gyrators between any nodes: every diode's loop depends on every other's."""
    wires = CircuitBuilder("coupled")
    count = int(rng.integers(3, 10))
    nodes = wires.nodes([f"n{k}" for k in range(count)])
    wires.resistor(nodes, 0, rng.uniform(1e3, 1e5, count))
    pairs = [pair for pair in itertools.combinations(range(count), 2) if rng.random() < 0.5]
    for a, b in pairs:
        kind = rng.random()
        if kind < 0.5:
            wires.resistor(nodes[a], nodes[b], rng.uniform(1e3, 1e5))
        elif kind < 0.8:
            wires.diode(nodes[a], nodes[b], model)
        else:
            wires.gyrator(nodes[a], 0, nodes[b], 0, rng.uniform(1e-5, 2e-4))
    wires.diode(0, nodes, model)
    wires.current_source(0, nodes, 0.0, input=np.arange(count), per_unit=1e-4)
    return wires.build(outputs=nodes, n_in=count)


def _random_cases(nets: int, samples: int, seed: int) -> Tally:
    rng = np.random.default_rng(seed)
    tally = Tally()
    for index in range(nets):
        if index % 4 == 3:
            circuit = _random_coupled(rng, D1N4148 if rng.random() < 0.5 else NEAR_IDEAL)
            conditions, where = Conditions(celsius=float(rng.uniform(-40, 125))), f"{seed}/{index}: coupled"
        else:
            network = _random_equilibrium(rng) if index % 4 == 2 else _random_network(rng)
            options = _random_options(rng)
            deployment = convert_model(network, rng.uniform(-1, 1, size=(30, network.n_in)), options)
            circuit, conditions = deployment.plan.circuit, Conditions(celsius=options.celsius)
            where = f"{seed}/{index}: {network.kind} {network.widths} {options.cell} {options.diode}"
        x = rng.uniform(-1, 1, size=(samples, circuit.n_in))
        tally.compare(circuit, x, conditions, where)
    return tally


def test_a_thousand_random_cases_agree_within_a_tenth_of_a_nanovolt(library: None) -> None:
    tally = _random_cases(nets=126, samples=8, seed=1)
    tally.check(at_least=1000)


@pytest.mark.long
def test_ten_thousand_random_cases_agree(library: None) -> None:
    tally = _random_cases(nets=1000, samples=10, seed=2)
    tally.check(at_least=10_000)


@pytest.mark.parametrize(("cell", "diode"), [("clamp", "1N4148"), ("series", "1N4148"), ("shunt", "near_ideal")])
def test_digits_agree_within_a_picovolt(cell: str, diode: str, inputs: Path, library: None) -> None:
    model = deploy.load(inputs / "models/reference/digits_64_32_10.onnx")
    x = np.load(inputs / "data/digits.npz")["x"]
    deployment = convert_model(model, x[:1437], CircuitOptions(cell=cell, diode=diode))
    tally = Tally()
    tally.compare(deployment.plan.circuit, x[1437:1477], deployment.plan.conditions, cell)
    tally.check(at_least=40, claim_V=1e-12)
    assert tally.unsolved == 0


def test_the_equilibrium_network_with_gyrators_agrees_within_a_picovolt(inputs: Path, library: None) -> None:
    model = deploy.load(inputs / "models/reference/digits_mondeq_64_48_10.npz")
    x = np.load(inputs / "data/digits.npz")["x"]
    deployment = convert_model(model, x[:1437], CircuitOptions())
    circuit = deployment.plan.circuit
    assert len(circuit.gyrators) > 0
    tally = Tally()
    tally.compare(circuit, x[1437:1457], deployment.plan.conditions, "mondeq")
    tally.check(at_least=20, claim_V=1e-12)
    assert tally.unsolved == 0


@pytest.fixture(scope="module")
def mnist(inputs: Path):
    x = np.load(inputs / "data/mnist/mnist_t10k.npz")["x"].reshape(-1, 784)
    model = deploy.load(inputs / "models/mnist_784_128_10/mnist_784_128_10.dynamo.onnx")
    return convert_model(model, x[6000:7000], CircuitOptions()), x[8000:]


def test_mnist_784_128_10_agrees_within_a_picovolt(mnist, library: None) -> None:
    deployment, x = mnist
    tally = Tally()
    tally.compare(deployment.plan.circuit, x[:2], deployment.plan.conditions, "mnist")
    tally.check(at_least=2, claim_V=1e-12)


@pytest.mark.long
def test_mnist_784_128_10_agrees_in_a_sweep_and_in_pyspice(mnist, library: None) -> None:
    deployment, x = mnist
    circuit = deployment.plan.circuit
    with NativeEngine(circuit) as native, SweepEngine(circuit) as sweep:
        ours = native.solve(x[:30])
        assert np.abs(ours.volts - sweep.solve(x[:30]).volts).max() <= 1e-12
    pytest.importorskip("PySpice")
    with RealEngine(PySpiceEngine(circuit)) as engine:
        assert engine.run(x[:5]).diagnostics["max_abs_volts_difference"] <= 1e-9
