"""Compiled circuits compute their network; what cannot be met is reported."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import random_equilibrium, random_mlp

from analog.calibration import scale_network
from analog.calibration.least_squares import refit
from analog.circuit import ROLES, Circuit
from analog.compile import compile_equilibrium, dominant_scaling, respond
from analog.compile.design_file import compile_design, read_design, write_design
from analog.compile.summing import plan_summing
from analog.conditions import Conditions
from analog.conversion import convert_model, design_model
from analog.options import CircuitOptions
from analog.solve import plan_circuit
from deploy.errors import BundleError, ModelRefused
from deploy.model import Affine, Decision, Equilibrium, Mlp

CELLS = ["clamp", "shunt", "series", "superdiode"]


def dominant_equilibrium(rng: np.random.Generator, n: int = 6) -> Equilibrium:
    """Weak symmetric couplings of both signs, strong skew ones."""
    a, b = rng.normal(size=(2, n, n)) / np.sqrt(n)
    W = 0.15 * (a + a.T) + b - b.T
    return Equilibrium(
        W,
        rng.normal(size=(n, 4)),
        rng.normal(size=n),
        rng.normal(size=(3, n)),
        rng.normal(size=3),
        Decision("argmax"),
    )


def nodes_of(circuit: Circuit, role: str) -> np.ndarray:
    return np.flatnonzero(circuit.node_origins["role"] == ROLES.index(role))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), cell=st.sampled_from(["clamp", "shunt", "series"]), equalise=st.booleans())
def test_an_ideal_cascade_is_the_network(seed: int, cell: str, equalise: bool) -> None:
    """To 1e-11 of the largest logit: the products' rounding, at voltages up to 1e3 times full scale."""
    rng = np.random.default_rng(seed)
    model = random_mlp(rng, tuple(int(width) for width in rng.integers(1, 9, size=rng.integers(2, 6))))
    x = rng.normal(size=(40, model.n_in))
    options = CircuitOptions(cell=cell, diode="ideal", equalise=equalise)
    found = plan_circuit(compile_design(design_model(model, x[:20], options))).outputs(x)
    exact = model.logits(x)
    assert np.abs(found - exact).max() <= 1e-11 * max(1.0, np.abs(exact).max())


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), doubled=st.booleans(), volts=st.sampled_from([0.5, 5.0]))
def test_an_ideal_equilibrium_circuit_is_the_network(seed: int, doubled: bool, volts: float) -> None:
    """The digital solver stops at a residual of 1e-12 (1 + |q|), which 1/m and the readout amplify."""
    rng = np.random.default_rng(seed)
    model = dominant_equilibrium(rng) if doubled else random_equilibrium(rng, 4, 6, 3)
    x = rng.normal(size=(20, 4))
    design = design_model(model, x, CircuitOptions(diode="ideal", full_scale_volts=volts))
    assert design.realisation == ("doubled" if dominant_scaling(model.W) is not None else "controlled")
    found = plan_circuit(compile_design(design)).outputs(x)
    assert np.abs(found - model.logits(x)).max() <= 1e-9 * max(1.0, np.abs(found).max()) / model.monotonicity


def test_mirror_nodes_are_antisymmetric(rng) -> None:
    """p_i = -n_i: the mirror's clamp is the mirror image too; 1e-12 V of 5 V."""
    model = dominant_equilibrium(rng)
    assert dominant_scaling(model.W) is not None
    x = rng.normal(size=(10, 4))
    circuit = compile_design(design_model(model, x, CircuitOptions()))
    volts = plan_circuit(circuit).volts(x)
    assert np.abs(volts[:, nodes_of(circuit, "hidden")] + volts[:, nodes_of(circuit, "mirror")]).max() <= 1e-12
    assert (circuit.resistors.ohm > 0).all()
    coupling = [ROLES[role] for role in circuit.vccs.origin["role"]]
    assert set(coupling) == {"injection"}


def test_realisations_of_one_network_agree(rng) -> None:
    model = dominant_equilibrium(rng)
    x = rng.normal(size=(10, 4))
    design = design_model(model, x, CircuitOptions(diode="ideal"))
    other = replace(design, realisation="controlled")
    first, second = (plan_circuit(compile_equilibrium(each)).outputs(x) for each in (design, other))
    assert np.abs(first - second).max() <= 1e-11


@given(seed=st.integers(0, 10_000), n=st.integers(1, 7), strength=st.floats(0.01, 3))
def test_dominant_scaling_is_dominant_or_impossible(seed: int, n: int, strength: float) -> None:
    """Found: diag(d) S diag(d) is diagonally dominant. None: the comparison matrix has an eigenvalue <= 0."""
    W = np.random.default_rng(seed).normal(size=(n, n)) * strength
    d = dominant_scaling(W)
    S = np.eye(n) - (W + W.T) / 2
    comparison = np.where(np.eye(n, dtype=bool), S, -np.abs(S))
    if d is None:
        assert np.linalg.eigvalsh(comparison).min() <= 1e-9
    else:
        scaled = d[:, None] * comparison * d
        assert (scaled.sum(axis=1) >= -1e-9 * np.abs(scaled).max()).all()
        assert (d > 0).all()


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("diode", ["1N4148", "BAT54"])
def test_the_calibrations_model_of_a_cell_is_the_circuits(cell: str, diode: str, rng) -> None:
    """1e-12 V: both are closed forms. A superdiode is modelled as ideal: (5 V + V_D) / gain and leakage apart."""
    model = random_mlp(rng, (5, 7, 3))
    x = rng.uniform(-1, 1, (30, 5))
    options = CircuitOptions(cell=cell, diode=diode)
    design = design_model(model, x, options)
    circuit = compile_design(design)
    volts = plan_circuit(circuit).volts(x)
    [layer] = design.layers
    summing = layer.plan(design.parts)
    u = x * design.input_volts_per_unit @ layer.weight.T + layer.bias
    expected = respond(
        design.parts.cell,
        u,
        layer.rail_V,
        gain=summing.gain,
        total_S=summing.total_S,
        conditions=Conditions(),
    )
    found = volts[:, nodes_of(circuit, "amplified" if cell == "shunt" else "hidden")]
    assert np.abs(found - expected).max() <= (0.03 if cell == "superdiode" else 1e-11)


def test_every_row_of_a_layer_totals_the_same_conductance(rng) -> None:
    """So one gain serves the layer; 1e-12 relative."""
    model = random_mlp(rng, (6, 8, 3))
    x = rng.normal(size=(20, 6))
    circuit = compile_design(design_model(model, x, CircuitOptions()))
    r = circuit.resistors
    g = np.bincount(r.a, 1 / r.ohm, circuit.n_nodes) + np.bincount(r.b, 1 / r.ohm, circuit.n_nodes)
    for layer in (0, 1):
        sums = nodes_of(circuit, "sum")
        totals = g[sums[circuit.node_origins["layer"][sums] == layer]]
        assert np.ptp(totals) <= 1e-12 * totals.max()


def test_equalised_units_all_reach_full_scale_and_the_function_stays(rng) -> None:
    model = random_mlp(rng, (6, 8, 7, 3))
    x = rng.normal(size=(200, 6))
    scaled = scale_network(model, x, full_scale_V=5.0, equalise=True)
    h = x * scaled.input_volts_per_unit
    for weight, bias in scaled.layers:
        h = np.maximum(h @ weight.T + bias, 0)
        largest = h.max(axis=0)
        assert np.allclose(largest[largest > 0.1], 5.0, rtol=1e-12)
        assert largest.max() <= 5.0 * (1 + 1e-12)
    weight, bias = scaled.readout
    assert np.allclose(h @ weight.T + bias, model.logits(x), rtol=0, atol=1e-11)


def test_one_scale_a_layer_without_equalising(rng) -> None:
    model = random_mlp(rng, (6, 8, 3))
    x = rng.normal(size=(50, 6))
    scaled = scale_network(model, x, full_scale_V=2.0, equalise=False)
    [(weight, _)] = scaled.layers
    ratio = weight * scaled.input_volts_per_unit / model.affines[0].weight
    assert np.ptp(ratio) <= 1e-12 * ratio.max()


def test_a_dead_unit_and_a_constant_input_are_no_division_by_zero() -> None:
    weight = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])
    layers = (Affine(weight, np.array([0.0, -5.0, 0.0])), Affine(np.ones((2, 3)), np.zeros(2)))
    model = Mlp(layers, ("relu",), Decision("argmax"))
    x = np.column_stack([np.linspace(0, 1, 9), np.zeros(9)])
    found = plan_circuit(compile_design(design_model(model, x, CircuitOptions(diode="ideal")))).outputs(x)
    assert np.abs(found - model.logits(x)).max() <= 1e-12


def test_the_refit_recovers_weights_and_stays_near_where_rows_say_nothing(rng) -> None:
    weight, bias = rng.normal(size=(3, 5)), rng.normal(size=3)
    given = rng.normal(size=(400, 5))
    given[:, 4] = 0
    wanted = given @ weight.T + bias
    start = weight + 0.1
    start[:, 4] = 7.0
    found, found_bias, rest = refit(given, wanted, start, bias - 0.2, unit_V=1.0)
    # the ridge of 1e-5 pulls a move of 0.1 back by about 1e-5 of it
    assert np.abs(found[:, :4] - weight[:, :4]).max() <= 1e-5
    assert np.abs(found_bias - bias).max() <= 1e-5
    assert (found[:, 4] == 7.0).all()
    assert rest <= 1e-5


def test_compensation_and_a_fitted_rail_earn_their_place(rng) -> None:
    """Root mean square logit error of a three-layer network with 1N4148, on rows that were not calibrated on."""
    model = random_mlp(rng, (8, 12, 12, 12, 4))
    x, held_out = rng.normal(size=(400, 8)), rng.normal(size=(300, 8))

    def error(**choices: object) -> float:
        design = design_model(model, x, CircuitOptions(**choices))
        found = plan_circuit(compile_design(design)).outputs(held_out)
        return float(np.sqrt(np.mean((found - model.logits(held_out)) ** 2)))

    bare = error(fit_rail=False, rail_volts=0.0, compensate=False)
    railed = error(compensate=False)
    both = error()
    assert railed < bare / 2
    assert both < railed
    assert error(full_scale_volts=20.0) < both


def test_gamma_makes_the_largest_weight_the_largest_conductance() -> None:
    summing = plan_summing(np.array([[2.0, -1.0]]), np.array([30.0]), max_conductance_S=1e-4, bias_rail_V=5.0)
    assert summing.gamma_S == pytest.approx(1e-4 / 6)
    assert summing.total_S == pytest.approx(1e-4 / 6 * 9)


def test_limits_that_are_broken_are_reported_with_numbers(rng) -> None:
    model = random_mlp(rng, (6, 8, 3))
    x = rng.normal(size=(50, 6))
    options = CircuitOptions(full_scale_volts=100.0, supply_volts=12.0, max_ohm=2e4, diode="BAT54")
    violations = convert_model(model, x, options).facts.realisability["violations"]
    text = " | ".join(violations)
    assert "resistors exceed 2e+04 ohm" in text
    assert "outputs swing beyond 12 V" in text
    assert "more reverse voltage than their rating" in text
    assert convert_model(model, x, CircuitOptions(supply_volts=500.0)).facts.realisability["violations"] == []


def test_full_scale_is_the_largest_hidden_output_over_the_calibration_rows(rng) -> None:
    """Within 5 %: the refit moves it a little."""
    model = random_mlp(rng, (6, 8, 8, 3))
    x = rng.normal(size=(300, 6))
    for volts in (2.0, 5.0):
        report = convert_model(model, x, CircuitOptions(full_scale_volts=volts)).facts.realisability
        assert report["full_scale_volts"] == pytest.approx(volts, rel=0.05)


def test_resistors_alone_are_refused_where_no_scaling_exists(rng) -> None:
    model = random_equilibrium(rng, 4, 12, 3, m=0.05)
    assert dominant_scaling(model.W) is None
    with pytest.raises(ModelRefused, match="no nonsingular M-matrix"):
        design_model(model, rng.normal(size=(10, 4)), CircuitOptions(realisation="doubled"))


@pytest.mark.parametrize("kind", ["mlp", "equilibrium"])
def test_a_design_reads_back_bit_for_bit(kind: str, rng) -> None:
    model = random_mlp(rng, (4, 5, 3)) if kind == "mlp" else random_equilibrium(rng, 4, 5, 3)
    x = rng.normal(size=(30, 4))
    options = CircuitOptions(cell="clamp", full_scale_volts=3.0)
    design = design_model(model, x, options)
    again, read_options = read_design(write_design(design, options))
    assert read_options == options
    outputs = [plan_circuit(compile_design(each)).outputs(x) for each in (design, again)]
    assert np.array_equal(*outputs)


def test_a_design_of_other_shapes_is_refused(rng) -> None:
    from safetensors.numpy import load, save

    files = write_design(
        design_model(random_mlp(rng, (4, 5, 3)), rng.normal(size=(9, 4)), CircuitOptions()), CircuitOptions()
    )
    arrays = load(files["design.safetensors"])
    arrays["bias_0"] = arrays["bias_0"][:-1]
    with pytest.raises(BundleError, match=r"a weight of shape \(5, 4\) where \(4, 4\) is due"):
        read_design({**files, "design.safetensors": save(arrays)})


def test_dissipation_is_what_every_element_turns_into_heat(rng) -> None:
    """Summed element by element, 1e-12 relative."""
    model = random_mlp(rng, (4, 5, 3))
    x = rng.normal(size=(7, 4))
    deployment = convert_model(model, x, CircuitOptions())
    circuit, volts = deployment.plan.circuit, deployment.plan.volts(x)
    r, d = circuit.resistors, circuit.diodes
    watts = ((volts[:, r.a] - volts[:, r.b]) ** 2 / r.ohm).sum(axis=1)
    amps = deployment.plan.solve(x).diode_amps
    watts += ((volts[:, d.anode] - volts[:, d.cathode]) * amps).sum(axis=1)
    assert deployment.facts.power_W == pytest.approx(watts.mean(), rel=1e-12)
