"""What the trunk may rely on, of every target that is registered, and of a fourth one that it does not know."""

from __future__ import annotations

import importlib.metadata
import inspect
import itertools
import json
import math
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import pytest
from networks import random_equilibrium, random_mlp

from deploy.bundle import Bundle
from deploy.conversion import Conversion, convert
from deploy.cost import Kind
from deploy.dataset import Calibration
from deploy.errors import DeployError, RequirementMissing
from deploy.options import describe_options
from deploy.ranges import calibration_guard
from deploy.registry import target, target_names
from deploy.target import Deployment, Refusal, Target

NAMES = sorted({*target_names(), "toy"})


@dataclass(frozen=True, eq=False)
class Converted:
    """One target's deployment of a small network, and the rows around it."""

    name: str
    target: Target
    conversion: Conversion
    bundle: Bundle
    deployment: Deployment
    x: np.ndarray


@pytest.fixture(scope="module", params=NAMES)
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Converted:
    rng = np.random.default_rng(3)
    model = random_mlp(rng, (6, 8, 3))
    rows = rng.uniform(-1, 1, size=(260, 6))
    found = target(request.param)
    try:
        conversion = convert(model, Calibration(rows[:200]), {request.param: found.options()}, seed=5)
    except RequirementMissing as error:
        pytest.skip(str(error))
    bundle = conversion.write(tmp_path_factory.mktemp("contract") / "bundle")
    guard = calibration_guard(rows[:200])
    inside = rows[200:][~guard.outside(rows[200:]).any(axis=1)]
    deployment = conversion.converted[request.param].deployment
    return Converted(request.param, found, conversion, bundle, deployment, inside)


def test_it_says_what_it_guarantees_and_what_not(converted: Converted) -> None:
    assert isinstance(converted.target, Target)
    assert converted.target.name == converted.name
    assert len(converted.target.guarantee) > 20
    assert len(converted.target.non_guarantee) > 20


def test_every_option_has_a_default_and_a_meaning(converted: Converted) -> None:
    for option in describe_options(converted.target.options):
        assert option["meaning"], option["name"]
        assert option["type"], option["name"]
    converted.target.options()


def test_the_same_conversion_gives_the_same_bytes(converted: Converted) -> None:
    options = {converted.name: converted.target.options()}
    again = convert(converted.conversion.model, converted.conversion.calibration, options, seed=5)
    assert again.files() == converted.conversion.files()


def test_what_was_written_reads_back_as_the_same_deployment(converted: Converted) -> None:
    again = converted.bundle.deployment(converted.name)
    assert again.files() == converted.deployment.files()
    assert np.array_equal(again.logits(converted.x), converted.deployment.logits(converted.x))
    assert json.dumps(dict(again.summary())) == json.dumps(dict(converted.deployment.summary()))


def test_the_reference_is_in_the_models_units(converted: Converted) -> None:
    original = converted.conversion.model.logits(converted.x)
    found = converted.deployment.logits(converted.x)
    assert found.shape == original.shape
    assert np.isfinite(found).all()
    # A deployment that is worth the name follows the logits, not only their order.
    assert np.corrcoef(found.ravel(), original.ravel())[0, 1] > 0.9


def test_its_bound_holds_on_rows_it_has_not_seen(converted: Converted) -> None:
    bound = converted.deployment.bound(converted.x)
    if bound is None:
        pytest.skip(f"{converted.name} states no bound")
    original = converted.conversion.model.logits(converted.x)
    assert bound.abs_logit.shape == original.shape
    assert bound.kind in get_args(Kind)
    assert bound.source
    assert (np.abs(converted.deployment.logits(converted.x) - original) <= bound.abs_logit).all()


def test_its_costs_have_a_kind_and_are_foretold(converted: Converted) -> None:
    model, options = converted.conversion.model, converted.target.options()
    foretold = converted.target.predict_cost(model, options, calibration=converted.conversion.calibration)
    without_rows = converted.target.predict_cost(model, options, calibration=None)
    assert converted.deployment.cost()
    assert foretold
    for quantity in (*converted.deployment.cost(), *foretold, *without_rows):
        assert quantity.kind in get_args(Kind)
        assert math.isfinite(quantity.value)
        assert quantity.value >= 0


def test_its_summary_is_json_and_names_its_reference(converted: Converted) -> None:
    summary = dict(converted.deployment.summary())
    assert summary["reference"]
    json.dumps(summary, allow_nan=False)


def test_its_figures_are_json(converted: Converted) -> None:
    for panel in converted.deployment.panels(converted.x):
        assert panel.title
        json.dumps(dict(panel.data), allow_nan=False)


def test_it_answers_for_other_kinds_of_network(converted: Converted) -> None:
    rng = np.random.default_rng(4)
    for model in (
        random_equilibrium(rng, 6, 4, 3),
        random_mlp(rng, (6, 4, 3), activation="square"),
        random_mlp(rng, (6, 3)),
        random_mlp(rng, (6, 4, 1)),
    ):
        refusal = converted.target.accepts(model, converted.target.options())
        assert refusal is None or (isinstance(refusal, Refusal) and refusal.cause)


def _holds(files: dict[str, bytes], model: Any) -> list[str]:
    """Names of files in which a row of weights stands as it is, in double or single precision."""
    rows = [row for layer in model.affines for row in layer.weight]
    needles = [row.astype(kind).tobytes() for row in rows for kind in ("<f8", "<f4")]
    return [name for name, data in files.items() if any(needle in data for needle in needles)]


def test_the_clients_archive_holds_no_weight(converted: Converted) -> None:
    if converted.deployment.archives() is None:
        pytest.skip(f"{converted.name} is not served")
    archive = converted.bundle.opened_archive(converted.name, "client")
    assert _holds(dict(archive.files), converted.conversion.model) == []


def test_client_and_server_agree_with_the_reference(converted: Converted) -> None:
    if converted.deployment.archives() is None:
        pytest.skip(f"{converted.name} is not served")
    client = converted.target.client(converted.bundle.opened_archive(converted.name, "client").files)
    server = converted.target.server(converted.bundle.opened_archive(converted.name, "server").files)
    if client is None or server is None:
        pytest.skip(f"{converted.name} has no service")
    assert client.decision == converted.conversion.model.decision
    assert [feature.low for feature in client.features] == client.guard.low.tolist()
    keys = client.generate_keys()
    assert (keys is None) == (server.limits.key_bytes == 0)
    rows = converted.x[: min(2, server.limits.rows_per_request)]
    key = None
    if keys is not None:
        path = converted.bundle.path.parent / f"{converted.name}.keys"
        path.write_bytes(keys.evaluation)
        assert keys.scope == server.limits.key_scope
        assert len(keys.evaluation) <= server.limits.key_bytes
        server.check_key(path)
        key = server.load_key(path)
    request = client.encrypt(rows, None if keys is None else keys.secret)
    assert len(request) <= server.limits.request_bytes
    answer = server.infer(request, key)
    assert len(answer) <= server.limits.answer_bytes
    logits = client.decrypt(answer, None if keys is None else keys.secret)
    reference = converted.deployment.logits(rows)
    # Encryption noise, single precision on the wire: far below what separates two logits.
    assert np.abs(logits[: len(rows)] - reference).max() <= 1e-2 * np.abs(reference).max()


def test_its_studies_repeat_and_travel(converted: Converted) -> None:
    studies = converted.deployment.studies()
    if not studies:
        pytest.skip(f"{converted.name} offers no study")
    for name, study in studies.items():
        assert study.summary, name
        for option in describe_options(study.options):
            assert option["meaning"], f"{name}.{option['name']}"
        travelled = pickle.loads(pickle.dumps(study))  # noqa: S301 (our own bytes)
        options = study.options()
        cases = list(itertools.islice(study.cases(options, np.random.default_rng(1)), 50))
        again = list(itertools.islice(study.cases(options, np.random.default_rng(1)), 50))
        assert [(case.id, case.parameters) for case in cases] == [(case.id, case.parameters) for case in again]
        assert len({case.id for case in cases}) == len(cases)
        row = study.solve(cases[0], converted.x[:2])
        assert set(row) == {column.name for column in study.columns}
        again_row = travelled.solve(cases[0], converted.x[:2])
        assert repr(again_row) == repr(row) or getattr(study, "is_timed", False)


def test_damaged_files_end_in_a_named_error(converted: Converted) -> None:
    files = dict(converted.deployment.files())
    trunk = {path: data for path, data in converted.bundle.files.items() if not path.startswith("targets/")}
    rng = np.random.default_rng(9)
    for name, data in files.items():
        missing = {other: content for other, content in files.items() if other != name}
        damaged = []
        for _ in range(6):
            changed = bytearray(data)
            changed[rng.integers(len(data))] ^= int(rng.integers(1, 256))
            damaged.append({**files, name: bytes(changed)})
        for tree in (missing, {**files, name: data[: len(data) // 2]}, {**files, name: b""}, *damaged):
            contents = {f"targets/{converted.name}/{path}": content for path, content in tree.items()}
            try:
                replace(converted.bundle, files={**trunk, **contents}).deployment(converted.name)
            except DeployError as error:
                assert str(error)


def test_its_verbs_can_be_read(converted: Converted) -> None:
    for command in converted.target.commands().values():
        assert command.help
        inspect.signature(command.run, eval_str=True)


@pytest.mark.parametrize("name", NAMES)
def test_importing_it_loads_nothing_heavy(name: str) -> None:
    [entry] = importlib.metadata.entry_points(group="deploy.targets", name=name)
    code = f"import sys, {entry.module} as m; m.{entry.attr}; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "scipy", "torch", "tenseal", "onnx", "numba", "matplotlib"} & set(loaded)
