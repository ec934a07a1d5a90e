"""Cases from public bug reports of encrypted-inference tools, each with the answer a user should get."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deploy
from deploy.conversion import convert
from deploy.dataset import Calibration, HeldOut
from deploy.errors import InputError, PlanError
from deploy.evaluation import evaluate
from deploy.model import Affine, Decision, Mlp
from deploy.registry import target
from fhe.deployment import CkksDeployment
from fhe.network import PolynomialNetwork
from fhe.options import CkksOptions
from fhe.plan import Ranges, plan_network
from fhe.plan.parameters import Parameters

RESIDENT = """
import json, sys
import numpy as np
from deploy.bundle import Bundle

def resident():
    return int(open("/proc/self/statm").read().split()[1])

bundle = Bundle.read(sys.argv[1])
x = np.load(sys.argv[2])
found = []
with bundle.deployment("ckks").engines()["ckks"] as engine:
    for count in range(30):
        engine.run(x[count % len(x)][None])
        if count in (4, 29):
            found.append(resident())
print(json.dumps(found))
"""


def _case(inputs: Path, name: str) -> tuple[dict[str, Any], Mlp, np.ndarray]:
    folder = inputs / "cases" / name
    model = deploy.load(folder / "model.onnx")
    assert isinstance(model, Mlp)
    return json.loads((folder / "case.json").read_text()), model, np.load(folder / "io.npz")["x"].astype(float)


def _deployment(model: Mlp, x: np.ndarray, **options: Any) -> CkksDeployment:
    conversion = convert(model, Calibration(x), {"ckks": CkksOptions(**options)})
    if conversion.refused:
        refusal = conversion.refused["ckks"]
        raise PlanError(refusal.cause, remedy=refusal.remedy)
    found = conversion.converted["ckks"].deployment
    assert isinstance(found, CkksDeployment)
    return found


def _around(x: np.ndarray, rows: int = 300) -> np.ndarray:
    """Rows like those of a case, which come by the handful."""
    rng = np.random.default_rng(0)
    return np.vstack([x, rng.normal(x.mean(axis=0), x.std(axis=0) + 1e-3, size=(rows, x.shape[1]))])


def test_a_chain_too_short_fails_before_encryption_with_the_levels(inputs: Path) -> None:
    case, model, x = _case(inputs, "fhe_depth_budget")
    fixed = case["fixed_params"]
    with pytest.raises(PlanError) as caught:
        _deployment(
            model,
            _around(x),
            poly_modulus_degree=fixed["poly_modulus_degree"],
            coeff_modulus_bits=tuple(fixed["coeff_mod_bit_sizes"]),
        )
    assert "need 4 levels, the chain [60, 40, 40, 60] at N=8192 has 2" in str(caught.value)
    deployment = _deployment(model, _around(x))
    assert deployment.plan.exchange.parameters.poly_modulus_degree > 8192
    with deployment.engines()["ckks"] as engine:
        run = engine.run(x[:1])
    assert not run.failures
    assert np.argmax(run.logits, axis=1).tolist() == np.argmax(deployment.logits(x[:1]), axis=1).tolist()


def test_identity_and_zero_layers_decrypt_to_the_plain_result(inputs: Path) -> None:
    _, model, x = _case(inputs, "fhe_identity_and_zero_layers")
    deployment = _deployment(model, _around(x))
    with deployment.engines()["ckks"] as engine:
        run = engine.run(x[:2])
    assert not run.failures
    # what the plan was asked for: eight deviations of a logit's error
    assert run.logits == pytest.approx(deployment.logits(x[:2]), abs=0.016)


def test_an_input_wider_than_the_slots_is_split(inputs: Path, tmp_path: Path) -> None:
    recipe = inputs / "cases" / "fhe_input_wider_than_slots" / "make.py"
    subprocess.run(
        [sys.executable, str(recipe)], cwd=tmp_path, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    model = deploy.load(tmp_path / "model.onnx")
    assert isinstance(model, Mlp)
    x = np.random.default_rng(2).normal(size=(20, 5000))
    for pinned in (None, 8192):
        deployment = _deployment(model, x, poly_modulus_degree=pinned)
        with deployment.engines()["ckks"] as engine:
            run = engine.run(x[:1])
        assert run.logits == pytest.approx(model.logits(x[:1]), abs=0.016)


def test_a_hidden_layer_wider_than_the_slots_runs_in_several_ciphertexts() -> None:
    rng = np.random.default_rng(3)
    layers = (Affine(rng.normal(size=(4200, 3)), rng.normal(size=4200)), Affine(rng.normal(size=(2, 4200)), [0, 0]))
    model = Mlp(layers, ("relu",), Decision("argmax"))
    x = rng.normal(size=(50, 3))
    deployment = _deployment(model, x, poly_modulus_degree=8192, fit="least-squares")
    assert "2 ciphertexts" in deployment.plan.text()
    with deployment.engines()["ckks"] as engine:
        run = engine.run(x[:1])
    assert (np.abs(run.logits - deployment.logits(x[:1])) <= deployment.plan.bound).all()


def test_polynomials_of_degree_nought_and_one_run(inputs: Path) -> None:
    case = json.loads((inputs / "cases" / "fhe_constant_and_linear_polynomial" / "case.json").read_text())
    rng = np.random.default_rng(4)
    x = rng.normal(size=(40, 5))
    for powers in case["coefficient_lists_low_to_high"]:
        table = np.zeros((6, max(2, len(powers))))
        table[:, : len(powers)] = powers
        first = Affine(rng.normal(size=(6, 5)), rng.normal(size=6))
        last = Affine(rng.normal(size=(3, 6)), rng.normal(size=3))
        network = PolynomialNetwork((first, last), (table,), Decision("argmax"))
        model = Mlp((first, last), ("relu",), Decision("argmax"))
        seed = _deployment(model, x, fit="least-squares")
        planned = _plan(seed, network, x)
        with planned.engines()["ckks"] as engine:
            run = engine.run(x[:1])
        assert not run.failures, powers
        assert run.logits == pytest.approx(network.logits(x[:1]), abs=0.016), powers


def _plan(seed: CkksDeployment, network: PolynomialNetwork, x: np.ndarray) -> CkksDeployment:
    plan = plan_network(network, Ranges.seen(network, x))
    return CkksDeployment(seed.model, network, plan, seed.report, seed.certificates)


def test_parameters_outside_the_security_table_are_refused_with_the_limit(inputs: Path) -> None:
    case = json.loads((inputs / "cases" / "fhe_param_limits" / "case.json").read_text())
    assert len(case["sets"]) == 5
    for chosen in case["sets"]:
        with pytest.raises(InputError) as caught:
            Parameters(poly_modulus_degree=chosen["N"], coeff_modulus_bits=tuple(chosen["bits"]))
        text = str(caught.value)
        assert str(chosen["N"]) in text
        if chosen["N"] in (4096, 8192):
            assert str(sum(chosen["bits"])) in text
            assert {4096: "109", 8192: "218"}[chosen["N"]] in text


def test_a_row_far_outside_the_calibration_is_flagged(inputs: Path, tmp_path: Path) -> None:
    case, model, x = _case(inputs, "fhe_preactivation_out_of_interval")
    rows = _around(x)
    conversion = convert(model, Calibration(rows), {"ckks": CkksOptions()})
    bundle = conversion.write(tmp_path / "b")
    far = np.array([case["x_far"]])
    found = evaluate(bundle, HeldOut(far))
    assert found["rows_outside_input_guard"] == 1
    assert bundle.interface.guard.outside(far).any()
    assert found["rows_outside_activation_guard"] == 1
    inside = HeldOut(rows.mean(axis=0, keepdims=True))
    found = evaluate(bundle, inside)
    assert (found["rows_outside_input_guard"], found["rows_outside_activation_guard"]) == (0, 0)


def test_sizes_are_told_before_and_the_secret_stays_home(inputs: Path, tmp_path: Path) -> None:
    """What is printed at plan time is what the files weigh, and neither archive holds what it must not."""
    folder = inputs / "models" / "reference"
    model = deploy.load(folder / "digits_64_32_10.onnx")
    x = np.load(inputs / "data" / "digits.npz")["x"][:1437].astype(float)
    bundle = convert(model, Calibration(x), {"ckks": CkksOptions(fit="least-squares")}).write(tmp_path / "b")
    deployment = bundle.deployment("ckks")
    told = {quantity.name: quantity.value for quantity in deployment.cost()}
    archive = bundle.opened_archive("ckks", "client")
    client = target("ckks").client(archive.files)
    assert client is not None
    keys = client.generate_keys()
    assert keys is not None
    assert len(keys.evaluation) == pytest.approx(told["evaluation_key_bytes"], rel=0.05)
    request = client.encrypt(x[:1], keys.secret)
    assert len(request) == pytest.approx(told["request_bytes"], rel=0.05)
    server = target("ckks").server(bundle.opened_archive("ckks", "server").files)
    assert server is not None
    path = tmp_path / "key"
    path.write_bytes(keys.evaluation)
    server.check_key(path)
    answer = server.infer(request, server.load_key(path))
    assert len(answer) == pytest.approx(told["answer_bytes"], rel=0.05)
    assert client.decrypt(answer, keys.secret) == pytest.approx(deployment.logits(x[:1]), abs=0.016)
    secret_part = keys.secret[len(keys.secret) // 2 :][:64]
    for data in (request, keys.evaluation, *bundle.files.values()):
        assert secret_part not in data


def test_memory_is_flat_over_thirty_encrypted_inferences(inputs: Path, tmp_path: Path) -> None:
    _, model, x = _case(inputs, "fhe_memory_flat_over_many_calls")
    convert(model, Calibration(_around(x)), {"ckks": CkksOptions(fit="least-squares")}).write(tmp_path / "b")
    np.save(tmp_path / "x.npy", x)
    run = subprocess.run(
        [sys.executable, "-c", RESIDENT, str(tmp_path / "b"), str(tmp_path / "x.npy")],
        capture_output=True,
        text=True,
        check=True,
    )
    early, late = json.loads(run.stdout)
    assert late <= 1.1 * early
