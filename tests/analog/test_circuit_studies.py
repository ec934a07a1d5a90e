"""Studies: what a variation does is what its parameters say, tables resume and travel, failures are rows."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest

from analog.build import CircuitBuilder
from analog.circuit import Circuit, origins
from analog.conditions import Conditions
from analog.conversion import convert_model
from analog.deployment import CircuitDeployment
from analog.devices import D1N4148, IDEAL
from analog.engines import NativeEngine
from analog.options import CircuitOptions
from analog.solve import plan_circuit
from analog.studies.cell import extract_cell
from analog.studies.perturb import (
    limit_amplifier_gain,
    offset_amplifiers,
    scale_conductances,
    scale_resistors,
    scale_sources,
    select_resistors,
)
from analog.studies.transients import settling_time
from analog.survey import dissipation
from deploy.errors import InputError
from deploy.model import Affine, Decision, Mlp
from deploy.study import Case


def _network(rng: np.random.Generator, widths: tuple[int, ...] = (5, 7, 6, 3)) -> Mlp:
    affines = tuple(
        Affine(rng.normal(size=(b, a)) / np.sqrt(a), 0.3 * rng.normal(size=b))
        for a, b in itertools.pairwise(widths)
    )
    return Mlp(affines, ("relu",) * (len(affines) - 1), Decision("argmax"))


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.random.default_rng(3).uniform(-1, 1, size=(40, 5))


@pytest.fixture(scope="module")
def deployment(rows: np.ndarray) -> CircuitDeployment:
    return convert_model(_network(np.random.default_rng(2)), rows, CircuitOptions())


@pytest.fixture(scope="module")
def ideal(rows: np.ndarray) -> CircuitDeployment:
    return convert_model(_network(np.random.default_rng(2)), rows, CircuitOptions(diode="ideal"))


def _solve_all(deployment: CircuitDeployment, name: str, x: np.ndarray, /, **options: object) -> list[dict]:
    study = deployment.studies()[name]
    cases = study.cases(study.options(**options), np.random.default_rng(7))
    return [dict(study.solve(case, x)) for case in cases]


SPICE_STUDIES = ("settling", "waveform", "netlist")


def test_every_study_fills_every_column_and_survives_pickling(deployment, rows, library) -> None:
    for name, study in deployment.studies().items():
        case = next(study.cases(study.options(), np.random.default_rng(1)))
        row = study.solve(case, rows)
        assert set(row) == {column.name for column in study.columns}, name
        assert row["outcome"] == "ok", (name, row)
        again = pickle.loads(pickle.dumps(study)).solve(case, rows)  # noqa: S301 (our own bytes)
        assert repr(dict(again)) == repr(dict(row)), name


def test_every_number_with_a_unit_says_it(deployment) -> None:
    for study in deployment.studies().values():
        for column in study.columns:
            assert column.meaning
            if any(
                word in column.name for word in ("power", "energy", "settling", "temperature", "offset", "error")
            ):
                assert column.unit, column.name


def test_more_draws_extend_a_table(deployment) -> None:
    study = deployment.studies()["resistor-tolerance"]
    few = list(study.cases(study.options(percent=(5.0,), draws=3), np.random.default_rng(1)))
    many = list(study.cases(study.options(percent=(5.0,), draws=9), np.random.default_rng(1)))
    assert [(c.id, c.parameters) for c in few] == [(c.id, c.parameters) for c in many[:3]]
    assert len({case.id for case in many}) == 9


def test_every_draw_is_another_circuit_and_the_same_one_again(deployment) -> None:
    for name in ("resistor-tolerance", "diode-mismatch", "amplifier-offset"):
        study = deployment.studies()[name]
        first, second = itertools.islice(study.cases(study.options(), np.random.default_rng(1)), 2)
        of_another_seed = next(study.cases(study.options(), np.random.default_rng(2)))
        a, b, again, c = (study.vary(case.parameters) for case in (first, second, first, of_another_seed))

        def fingerprint(variation) -> bytes:
            circuit = variation.circuit
            factors = variation.saturation_factors
            return b"".join(
                column.tobytes()
                for column in (
                    circuit.resistors.ohm,
                    circuit.voltage_sources.value,
                    np.asarray(factors, dtype=float),
                )
            )

        assert len({fingerprint(a), fingerprint(b), fingerprint(c)}) == 3, name
        assert fingerprint(a) == fingerprint(again), name


def test_rows_that_fail_count_as_disagreement(deployment, rows) -> None:
    subject = deployment.studies()["power"].subject
    broken = np.array(rows)
    broken[3] = np.nan
    row = subject.judge(subject.nominal(), broken)
    whole = subject.judge(subject.nominal(), np.delete(rows, 3, axis=0))
    assert row["failed_rows"] == 1
    assert row["agreement"] == pytest.approx(whole["agreement"] * (len(rows) - 1) / len(rows))


def test_no_tolerance_changes_nothing_and_a_large_one_does(deployment, rows) -> None:
    none, large = _solve_all(deployment, "resistor-tolerance", rows, percent=(0.0, 30.0), draws=1)
    nominal = deployment.logits(rows) - deployment.model.logits(rows)
    assert none["rms_logit_error"] == pytest.approx(np.sqrt(np.mean(nominal**2)), rel=1e-9)
    assert large["rms_logit_error"] > 3 * none["rms_logit_error"]


def test_tolerance_draws_stay_within_their_law(deployment) -> None:
    study = deployment.studies()["resistor-tolerance"]
    nominal = deployment.plan.circuit.resistors.ohm
    for law, width in (("uniform", 0.05), ("normal", 0.05 * 5 / 3)):
        (case,) = study.cases(study.options(percent=(5.0,), draws=1, law=law), np.random.default_rng(1))
        off = study.vary(case.parameters).circuit.resistors.ohm / nominal - 1
        assert np.abs(off).max() <= width
        assert np.abs(off).max() > 0.03
        assert len(np.unique(off)) > len(off) // 2


def test_ideal_diodes_do_not_mind_mismatch(ideal, rows) -> None:
    for row in _solve_all(ideal, "diode-mismatch", rows, sigma=(1.0,), draws=2):
        assert row["max_logit_error"] < 1e-11  # rounding: the ideal circuit equals the network


def test_temperature_moves_real_diodes_only(deployment, ideal, rows) -> None:
    errors = [row["rms_logit_error"] for row in _solve_all(deployment, "temperature", rows)]
    assert max(errors) > 2 * min(errors)
    assert all(row["max_logit_error"] < 1e-11 for row in _solve_all(ideal, "temperature", rows))


def test_finite_gain_and_offset_vanish_in_the_limit(ideal, rows) -> None:
    gains = [row["max_logit_error"] for row in _solve_all(ideal, "amplifier-gain", rows, open_loop=(1e2, 1e4, 1e9))]
    assert gains[0] > 10 * gains[1] > 100 * gains[2]
    off = [
        row["max_logit_error"]
        for row in _solve_all(ideal, "amplifier-offset", rows, millivolts=(0.0, 5.0), draws=1)
    ]
    assert off[0] < 1e-11 < off[1]


def test_conductances_scale_power_and_no_voltage_of_an_ideal_circuit(ideal, rows) -> None:
    full, tenth = _solve_all(ideal, "power", rows, scales=(1.0, 0.1))
    assert tenth["mean_power"] == pytest.approx(0.1 * full["mean_power"], rel=1e-9)
    assert full["max_logit_error"] < 1e-11
    assert tenth["max_logit_error"] < 1e-11
    assert full["amplifier_power"] == ideal.amplifier_watts


def test_power_is_what_the_sources_deliver(deployment, rows) -> None:
    """Tellegen: heat of resistors and diodes of a circuit without amplifiers equals the sources' power."""
    wires = CircuitBuilder()
    a, b = wires.nodes(["a", "b"])
    wires.voltage_source(a, 0, 0.0, input=0, per_unit=1.0)
    wires.resistor([a, b], [b, 0], [1e3, 2e3])
    wires.diode(b, 0, D1N4148)
    circuit = wires.build(outputs=[b], n_in=1)
    plan = plan_circuit(circuit)
    volts = plan.volts(np.array([[5.0]]))
    current = (volts[0, 1] - volts[0, 2]) / 1e3
    assert dissipation(plan, volts)[0] == pytest.approx(5.0 * current, rel=1e-12)


def test_preferred_values_get_worse_from_E192_to_E3(deployment, rows) -> None:
    errors = {row["series"]: row["rms_logit_error"] for row in _solve_all(deployment, "preferred-values", rows)}
    assert errors["E192"] < errors["E24"] < errors["E3"]


def test_corners_are_every_combination(deployment, rows) -> None:
    found = _solve_all(deployment, "corners", rows)
    assert len(found) == 16
    assert len({(r["temperature"], r["saturation"], r["rail_error"], r["cell_error"]) for r in found}) == 16


def test_the_nominal_point_of_a_sweep_is_the_nominal_circuit(deployment, rows) -> None:
    for parameter in ("clamp_rail", "series_ohm", "saturation", "bias_rail", "input"):
        found = _solve_all(deployment, "parameter-sweep", rows, parameter=parameter, start=0.5, stop=1.5, points=3)
        nominal = deployment.logits(rows) - deployment.model.logits(rows)
        assert found[1]["max_logit_error"] == pytest.approx(np.abs(nominal).max(), rel=1e-9)
        assert found[0]["max_logit_error"] != found[1]["max_logit_error"]


def test_operating_points_by_ngspice_are_the_native_ones(deployment, rows, library) -> None:
    found = _solve_all(deployment, "operating-points", rows, rows=3, engine="ngspice")
    assert [row["outcome"] for row in found] == ["ok"] * 3
    assert max(row["volts_from_native"] for row in found) < 1e-12
    assert found[0]["engine"].startswith("ngspice-")


def test_rows_beyond_the_data_and_missing_programs_are_rows_of_the_table(deployment, rows, monkeypatch) -> None:
    found = _solve_all(deployment, "operating-points", rows[:1], rows=2)
    assert found[1]["outcome"] == "the data has 1 rows"
    monkeypatch.setenv("NGSPICE_LIBRARY_PATH", "/nonexistent.so")
    study = deployment.studies()["operating-points"]
    row = study.solve(Case("row", {"row": 0, "engine": "ngspice"}), rows)
    assert "searched: /nonexistent.so" in row["outcome"]


@pytest.mark.parametrize("cell", ["clamp", "shunt", "series", "superdiode"])
def test_a_cell_cut_out_does_what_it_does_in_its_circuit(cell: str, rows) -> None:
    deployment = convert_model(_network(np.random.default_rng(2)), rows, CircuitOptions(cell=cell))
    circuit = deployment.plan.circuit
    volts = deployment.plan.volts(rows)
    for layer, unit in ((0, 0), (1, 3)):
        alone = extract_cell(circuit, layer, unit)
        node = {name: k for k, name in enumerate(circuit.node_names)}
        hidden = node.get(f"layer {layer} hidden {unit}", node[f"layer {layer} amplified {unit}"])
        summing = node[f"layer {layer} sum {unit}"]
        gain = float(circuit.vcvs.gain[circuit.vcvs.plus == node[f"layer {layer} amplified {unit}"]][0])
        r = circuit.resistors
        at = (r.a == summing) | (r.b == summing)
        other = np.where(r.a[at] == summing, r.b[at], r.a[at])
        open_circuit = volts[:, other] @ (1 / r.ohm[at]) / np.sum(1 / r.ohm[at])
        found = plan_circuit(alone).outputs(gain * open_circuit[:, None])[:, 0]
        np.testing.assert_allclose(found, volts[:, hidden], atol=1e-9)


def test_the_transfer_curve_is_the_relu_with_ideal_diodes(ideal, rows) -> None:
    found = _solve_all(ideal, "cell-transfer", rows, points=9)
    assert max(abs(row["error"]) for row in found) < 1e-12
    missing = _solve_all(ideal, "cell-transfer", rows, unit=99, points=2)
    assert "layer 0 has no unit 99" in missing[0]["outcome"]


def test_settling_of_an_rc_is_its_time_constant(library) -> None:
    """An RC settles to 1 % in ln 100 = 4.6 time constants; 1 % is the integration's and the ramp's share."""
    wires = CircuitBuilder()
    a, b = wires.nodes(["a", "b"])
    wires.voltage_source(a, 0, 0.0, input=0, per_unit=1.0)
    wires.resistor([a, b], [b, 0], [2e4, 2e4])
    circuit = wires.build(outputs=[b], n_in=1)
    from analog.studies import Subject, circuit_studies

    model = Mlp((Affine([[0.5]], [0.0]),), (), Decision("value", 1e-6))
    study = circuit_studies(Subject(circuit, Conditions(), model))["settling"]
    (case,) = study.cases(study.options(rows=1, node_farad=1e-11), np.random.default_rng(0))
    row = study.solve(case, np.array([[2.0]]))
    tau = 1e4 * 1e-11
    assert row["outcome"] == "ok"
    assert row["settling_1_percent"] == pytest.approx(np.log(100) * tau, rel=0.01)
    assert row["settling_01_percent"] == pytest.approx(np.log(1000) * tau, rel=0.01)
    assert row["energy"] == pytest.approx(row["power"] * row["settling_01_percent"])
    assert row["power"] == pytest.approx(4 / 4e4)


def test_settling_time_is_nan_where_the_end_is_outside() -> None:
    time = np.array([0.0, 1.0])
    assert np.isnan(settling_time(time, np.array([[0.0], [0.5]]), np.ones(1), np.array([0.1])))
    assert settling_time(time, np.ones((2, 1)), np.ones(1), np.array([0.1])) == 0.0


def test_settling_waits_for_the_slowest_output() -> None:
    time = np.array([0.0, 1.0, 2.0, 3.0])
    volts = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    assert settling_time(time, volts, np.ones(2), np.full(2, 0.1)) == pytest.approx(1.9)


def test_a_waveform_starts_and_ends_at_operating_points(deployment, rows, library) -> None:
    found = _solve_all(deployment, "waveform", rows, row=4, points=3, stop_seconds=2e-6)
    outputs = deployment.plan.circuit.outputs
    volts = deployment.plan.volts(np.stack([np.zeros(5), rows[4]]))[:, outputs]
    for k in range(3):
        assert found[0][f"output_{k}"] == pytest.approx(volts[0, k], abs=1e-5)
        assert found[-1][f"output_{k}"] == pytest.approx(volts[1, k], abs=1e-4)


def test_a_users_netlist_is_solved_by_both_and_judged_by_name(deployment, rows, library, tmp_path) -> None:
    good = tmp_path / "mine.cir"
    cards = "V1 in 0 3\nR1 in out 1k\nD1 out 0 dx\n.model dx d(is=1n n=1.8)"
    good.write_text(f"mine\n{cards}\n.temp 60\n.options reltol=1e-7\n.op\n.end\n")
    found = _solve_all(deployment, "netlist", rows, file=str(good))
    assert [row["node"] for row in found] == ["in", "out"]
    assert all(row["outcome"] == "ok" for row in found)
    assert max(abs(row["difference"]) for row in found) < 1e-10  # at the netlist's own reltol
    floating = tmp_path / "floating.cir"
    floating.write_text("mine\nV1 in 0 3\nR1 in 0 1k\nC1 in mid 1n\n.op\n.end\n")
    row = next(iter(_solve_all(deployment, "netlist", rows, file=str(floating))))
    assert "node mid has no path of direct current to ground" in row["outcome"]
    with pytest.raises(InputError, match="cannot be read"):
        _solve_all(deployment, "netlist", rows, file=str(tmp_path / "none.cir"))
    with pytest.raises(InputError, match="is a folder, not a file; give a file"):
        _solve_all(deployment, "netlist", rows, file=str(tmp_path))
    study = deployment.studies()["netlist"]
    case = next(study.cases(study.options(file=str(good)), np.random.default_rng(0)))
    good.write_text("other\nR1 a 0 1\nV1 a 0 1\n.end\n")
    assert study.solve(case, rows)["outcome"].endswith("has changed since the study began")


def _stage() -> Circuit:
    wires = CircuitBuilder()
    a, b, c = wires.nodes(["a", "b", "c"])
    wires.voltage_source(a, 0, 1.0, origin=origins("clamp rail", 1, layer=0))
    wires.vcvs(b, 0, a, 0, 10.0)
    wires.vcvs(c, 0, a, 0, -2.0)
    wires.resistor([b, c], 0, 1e3, origins("series", 2, layer=0))
    wires.op_amp(wires.node("d"), a, c, gain=5.0, low=-9.0, high=9.0)
    return wires.build(outputs=[b, c])


def _outputs(circuit: Circuit) -> np.ndarray:
    with NativeEngine(circuit) as engine:
        return circuit.read_outputs(engine.solve(np.zeros((1, 0))).volts)[0]


def test_perturbations_do_what_they_say() -> None:
    stage = _stage()
    shifted = offset_amplifiers(stage, np.array([0.1, 0.2, 0.3]))
    np.testing.assert_allclose(_outputs(shifted), [11.0, -2.4], rtol=1e-12)
    assert shifted.op_amps.offset.tolist() == [0.3]
    limited = limit_amplifier_gain(stage, 100.0)
    np.testing.assert_allclose(_outputs(limited), [10 / 1.1, -2 / 1.03], rtol=1e-12)
    assert limited.op_amps.gain.tolist() == [100.0]
    np.testing.assert_allclose(_outputs(scale_sources(stage, "clamp rail", 0.5)), [5.0, -1.0], rtol=1e-12)
    np.testing.assert_allclose(_outputs(scale_sources(stage, "input", 0.5)), [10.0, -2.0], rtol=1e-12)
    which = select_resistors(stage, ("series",))
    assert which.all()
    assert scale_resistors(stage, 2.0, which).resistors.ohm.tolist() == [2e3, 2e3]
    assert scale_resistors(stage, 2.0, ~which).resistors.ohm.tolist() == [1e3, 1e3]
    assert scale_conductances(stage, 0.1).resistors.ohm.tolist() == [1e4, 1e4]
    assert IDEAL.ideal


def test_a_variation_that_cannot_be_solved_is_a_row(deployment, rows) -> None:
    subject = deployment.studies()["power"].subject
    wires = CircuitBuilder()
    lonely = wires.node("lonely")
    wires.current_source(0, lonely, 1e-3)
    from analog.studies import Variation

    row = subject.judge(Variation(wires.build(outputs=[lonely]), Conditions()), rows)
    assert "no path of direct current to ground: lonely" in row["outcome"]
    assert row["failed_rows"] == len(rows)


_ON_A_CLUSTER = """
import numpy as np
from analog.conversion import convert_model
from analog.options import CircuitOptions
from deploy.model import Affine, Decision, Mlp
from deploy.simulation import run_study

rng = np.random.default_rng(2)
model = Mlp((Affine(rng.normal(size=(6, 4)), rng.normal(size=6)), Affine(rng.normal(size=(3, 6)), np.zeros(3))),
            ("relu",), Decision("argmax"))
x = rng.uniform(-1, 1, size=(30, 4))
deployment = convert_model(model, x, CircuitOptions())
for name, given in (("resistor-tolerance", {"draws": 2}), ("temperature", {}), ("operating-points", {"rows": 3})):
    study = deployment.studies()[name]
    cases = list(study.cases(study.options(**given), np.random.default_rng(7)))
    here, pool, cluster = (
        run_study(study, cases, x, jobs=jobs, cluster=address) for jobs, address in ((1, None), (2, None), (2, "local"))
    )
    assert repr(here) == repr(pool) == repr(cluster), name
"""


@pytest.mark.long
def test_one_worker_joblib_and_a_ray_cluster_give_the_same_rows() -> None:
    pytest.importorskip("ray", reason='ray is not installed: pip install "relu-deploy[cluster]"')
    subprocess.run([sys.executable, "-c", _ON_A_CLUSTER], check=True)
