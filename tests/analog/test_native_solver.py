"""The native solver: known answers, properties of every solution, and its evidence. ngspice checks it elsewhere."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import random_mlp

from analog.build import CircuitBuilder
from analog.circuit import Circuit
from analog.compile.design_file import compile_design
from analog.conditions import Conditions
from analog.conversion import design_model
from analog.devices import BAT54, D1N4148, IDEAL, NEAR_IDEAL, DiodeModel
from analog.options import CircuitOptions
from analog.solve import collect_evidence, plan_circuit, solve_draws
from deploy.errors import InputError, UsageError


def coupled_net(seed: int, model: DiodeModel, n: int = 8) -> Circuit:
    """Resistors, diodes and gyrators between random nodes: nothing can be solved one by one."""
    rng = np.random.default_rng(seed)
    wires = CircuitBuilder("coupled")
    source = wires.node("x")
    wires.voltage_source(source, 0, 0.0, input=0, per_unit=1.0)
    nodes = wires.nodes([f"n{k}" for k in range(n)])
    for a, b in itertools.combinations(nodes, 2):
        wires.resistor(a, b, 10 ** rng.uniform(3, 5))
    wires.resistor(source, nodes, 10 ** rng.uniform(3, 5, n))
    wires.resistor(nodes, 0, 1e4)
    wires.gyrator(nodes[:-1], 0, nodes[1:], 0, rng.normal(size=n - 1) * 1e-4)
    wires.current_source(0, nodes, rng.normal(size=n) * 1e-4, input=1, per_unit=1e-4)
    wires.diode(0, nodes, model)
    wires.diode(nodes[:-2], nodes[2:], model)
    return wires.build(outputs=nodes[:2], n_in=2)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    model=st.sampled_from([D1N4148, BAT54, NEAR_IDEAL, IDEAL]),
    celsius=st.sampled_from([-40.0, 27.0, 125.0]),
)
def test_every_solution_satisfies_kirchhoff_and_its_diodes(seed: int, model: DiodeModel, celsius: float) -> None:
    """Currents are 1e-3 A; loops of ideal diodes are solved to 1e-11 V over 1 kohm; a near-ideal diode of 1 mA has
    40 S, so a rounding of 1e-15 V is 4e-14 A there."""
    circuit = coupled_net(seed, model)
    x = np.random.default_rng(seed).uniform(-5, 5, (6, 2))
    found = plan_circuit(circuit, Conditions(celsius=celsius)).solve(x)
    assert found.converged.all(), found.hint
    assert found.residual.max() <= {NEAR_IDEAL: 1e-11, IDEAL: 1e-12}.get(model, 1e-14)
    assert found.complementarity.max() <= 1e-10  # V: ideal diodes in a loop are solved to |F| <= 1e-11 of 5 V
    assert np.median(found.iterations) <= 20


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_ideal_diodes_are_the_brute_force_complementarity(seed: int) -> None:
    """All 2^n states of n diodes: the one state that is feasible is the solver's, to 1e-12 V of 10 V."""
    rng = np.random.default_rng(seed)
    n = 5
    half = rng.normal(size=(n, n))
    Y = (half @ half.T + 0.5 * np.eye(n) + np.triu(half, 1) - np.triu(half, 1).T) * 1e-4
    j = rng.normal(size=n) * 1e-3
    wires = CircuitBuilder()
    nodes = wires.nodes([f"n{k}" for k in range(n)])
    wires.resistor(nodes, 0, 1e12)
    for a, b in itertools.product(range(n), range(n)):
        wires.vccs(nodes[a], 0, nodes[b], 0, Y[a, b])
    wires.current_source(0, nodes, j)
    wires.diode(0, nodes, IDEAL)
    volts = plan_circuit(wires.build()).volts(np.zeros((1, 0)))[0, 1:]
    feasible = []
    for state in itertools.product([False, True], repeat=n):
        on = np.array(state)
        v = np.zeros(n)
        v[~on] = np.linalg.solve(Y[np.ix_(~on, ~on)], j[~on]) if (~on).any() else []
        current = Y @ v - j
        if (v >= -1e-12).all() and (current[on] >= -1e-15).all():
            feasible.append(v)
    assert any(np.abs(volts - v).max() <= 1e-6 for v in feasible)  # 1e-12 S of leak at 10 V against 1e-5 S


def test_a_divider_a_floating_source_and_a_current_source() -> None:
    wires = CircuitBuilder()
    top, middle, up = wires.nodes(["top", "middle", "up"])
    wires.voltage_source(top, 0, 10.0)
    wires.resistor([top, middle], [middle, 0], [9e3, 1e3])
    wires.voltage_source(up, middle, 2.0)
    wires.resistor(up, 0, 1e9)
    wires.current_source(0, middle, 1e-3)
    volts = plan_circuit(wires.build()).volts(np.zeros((1, 0)))[0]
    # 1 mA into the parallel of 9k and 1k adds 0.9 V; 1e9 ohm takes 3e-9 A, that is 3e-6 V
    assert volts[[top, middle, up]] == pytest.approx([10.0, 1.9, 3.9], abs=1e-5)


def test_gyrators_and_transconductances_have_the_documented_signs() -> None:
    wires = CircuitBuilder()
    a, b, c = wires.nodes(["a", "b", "c"])
    wires.resistor([a, b, c], 0, 1e3)
    wires.current_source(0, a, 1e-3)
    wires.gyrator(a, 0, b, 0, 1e-3)
    wires.vccs(0, c, b, 0, 2e-3)
    volts = plan_circuit(wires.build()).volts(np.zeros((1, 0)))[0]
    # a: v_a / 1k + 1m v_b = 1m;  b: v_b / 1k - 1m v_a = 0  =>  v_a = v_b = 0.5;  c: 2m v_b into 1k = 1 V
    assert volts[[a, b, c]] == pytest.approx([0.5, 0.5, 1.0], abs=1e-12)


@pytest.mark.parametrize("model", [D1N4148, IDEAL], ids=lambda model: model.name)
@pytest.mark.parametrize("gain", [1e2, 1e3, 1e5])
def test_a_superdiode_rectifies_and_saturates(model: DiodeModel, gain: float) -> None:
    """Error at most (|x| + V_D) / gain below the rail; the output stops one diode drop below the rail."""
    wires = CircuitBuilder()
    source, out, load = wires.nodes(["source", "out", "load"])
    wires.voltage_source(source, 0, 0.0, input=0, per_unit=1.0)
    wires.op_amp(out, source, load, gain=gain, low=-12.0, high=12.0)
    wires.diode(out, load, model)
    wires.resistor(load, 0, 1e4)
    x = np.concatenate([np.linspace(-12, 8, 201), [-1e-9, 1e-9, 1e-4, -1e-4]])[:, None]
    found = plan_circuit(wires.build(outputs=[load], n_in=1)).solve(x)
    assert found.converged.all(), found.hint
    error = np.abs(found.volts[:, load] - np.maximum(x[:, 0], 0))
    # a blocked diode leaks up to I_S + gmin 12 V = 2.5 nA into 10 kohm
    assert (error <= 3 * (np.abs(x[:, 0]) + 1) / gain + 3e-5).all()
    assert found.residual.max() <= 1e-14
    beyond = plan_circuit(wires.build(outputs=[load], n_in=1)).volts(np.array([[100.0]]))[0]
    assert 11.0 < beyond[load] <= beyond[out] <= 12.0


def test_a_cascade_never_meets_the_coupled_solver(rng) -> None:
    """Every diode of a feed-forward circuit is a loop of its own: no iteration anywhere."""
    model = random_mlp(rng, (6, 9, 7, 4))
    x = rng.normal(size=(50, 6))
    plan = plan_circuit(compile_design(design_model(model, x, CircuitOptions())))
    assert sum(len(stage.ports) for stage in plan.stages) == 9 + 7
    assert all(stage.singles == len(stage.ports) for stage in plan.stages)
    assert plan.solve(x).iterations.max() == 0


def test_outputs_are_the_read_nodes_whatever_the_batch(cascade, rng) -> None:
    circuit = cascade([5, 8, 3])
    plan = plan_circuit(circuit)
    x = rng.normal(size=(1030, 5))
    whole = plan.outputs(x)
    assert np.array_equal(whole[:3], plan.outputs(x)[:3])
    # products of other shapes round differently in the last bits
    assert np.allclose(whole[700:704], plan.outputs(x[700:704]), rtol=0, atol=1e-13)
    assert np.allclose(whole, circuit.read_outputs(plan.volts(x)), rtol=0, atol=1e-13)


def test_evidence_notices_a_moved_node(cascade, rng) -> None:
    """1 mV at a summing node of about 1e-3 S must show as some 1e-6 A."""
    circuit = cascade([4, 5, 2])
    x = rng.normal(size=(3, 4))
    conditions = Conditions()
    volts = plan_circuit(circuit).volts(x)
    assert collect_evidence(circuit, volts, x, conditions).residual.max() <= 1e-14
    free = circuit.node_names.index("sum1.0")
    volts[:, free] += 1e-3
    assert collect_evidence(circuit, volts, x, conditions).residual.min() >= 1e-8


def test_evidence_notices_an_ideal_diode_that_conducts_backwards() -> None:
    wires = CircuitBuilder()
    node = wires.node("n")
    wires.resistor(node, 0, 1e3)
    wires.current_source(0, node, 1e-3)
    wires.diode(0, node, IDEAL)
    circuit = wires.build()
    x = np.zeros((1, 0))
    right = plan_circuit(circuit).solve(x)
    assert right.volts[0, node] == pytest.approx(1.0)
    assert right.complementarity[0] <= 1e-15
    wrong = collect_evidence(circuit, np.array([[0.0, 0.0]]), x, Conditions())
    assert wrong.complementarity[0] == pytest.approx(1e-3)


def test_mismatch_scales_each_saturation_current() -> None:
    """Behind 1 Mohm a diode ten times larger drops n V_T ln 10 less."""
    wires = CircuitBuilder()
    source, a, b = wires.nodes(["source", "a", "b"])
    wires.voltage_source(source, 0, 5.0)
    wires.resistor(source, [a, b], 1e6)
    wires.diode([a, b], 0, D1N4148)
    circuit = wires.build()
    volts = plan_circuit(circuit, saturation_factors=np.array([1.0, 10.0])).volts(np.zeros((1, 0)))[0]
    assert volts[a] - volts[b] == pytest.approx(D1N4148.slope_V(27.0) * np.log(10), rel=2e-2)


def test_a_plan_moved_to_another_temperature_is_the_plan_made_there(rng) -> None:
    circuit = coupled_net(3, D1N4148)
    x = rng.uniform(-5, 5, (9, 2))
    factors = rng.lognormal(size=(2, len(circuit.diodes)))
    hot, cold = Conditions(celsius=110.0), Conditions(celsius=-30.0)
    found = solve_draws(circuit, x, saturation_factors=factors, conditions=[cold, hot])
    for draw, (index, conditions) in itertools.product(range(2), enumerate([cold, hot])):
        own = plan_circuit(circuit, conditions, saturation_factors=factors[draw]).outputs(x)
        assert np.allclose(found[draw, index], own, rtol=0, atol=1e-12)


def test_draws_of_resistors_are_the_circuits_with_these_resistors(cascade, rng) -> None:
    circuit = cascade([4, 5, 2])
    x = rng.normal(size=(6, 4))
    factors = rng.uniform(0.8, 1.2, size=(3, len(circuit.resistors)))
    found = solve_draws(circuit, x, resistor_factors=factors)
    assert found.shape == (3, 1, 6, 2)
    for draw in range(3):
        own = circuit.with_(resistors=circuit.resistors.with_(ohm=circuit.resistors.ohm * factors[draw]))
        assert np.array_equal(found[draw, 0], plan_circuit(own).outputs(x))
    with pytest.raises(UsageError, match="factors of shape"):
        solve_draws(circuit, x, resistor_factors=factors[:, :-1])


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        (lambda w, n: w.current_source(0, n, 1e-3), "nodes have no path of direct current to ground: lost"),
        (lambda w, n: [w.voltage_source(n, 0, 1.0), w.voltage_source(n, 0, 1.0)], "form a loop between nodes lost"),
        (lambda w, n: [w.voltage_source(n, 0, 1.0), w.vcvs(n, 0, n, 0, 1.0)], "form a loop"),
        (lambda w, n: w.resistor(n, 0, 0.0), "a resistance of 0.0 ohm"),
        (lambda w, n: w.resistor(n, 99, 1.0), "names a node that does not exist"),
        (lambda w, n: w.voltage_source(n, 0, 0.0, input=3, per_unit=1.0), "driven by input 3, there are 0"),
        (
            lambda w, n: [w.resistor(n, 0, 1e3), w.vccs(n, 0, n, 0, -1e-3)],
            "no unique operating point at nodes lost",
        ),
    ],
)
def test_what_has_no_operating_point_is_refused_by_name(wire, message: str) -> None:
    wires = CircuitBuilder()
    wire(wires, wires.node("lost"))
    with pytest.raises(InputError, match=message):
        plan_circuit(wires.build())
