"""Every verb of the trunk carries a target that no line of the trunk names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from networks import random_mlp

import deploy
from deploy.bundle import Bundle
from deploy.cli.main import run

Call = Callable[..., tuple[int, Any]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command with --json in this process: exit code and document."""

    def call(*arguments: object) -> tuple[int, Any]:
        code = run([*map(str, arguments), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def rows(tmp_path: Path, rng: np.random.Generator) -> Path:
    x = rng.normal(size=(80, 5))
    path = tmp_path / "rows.npz"
    np.savez(path, x=x, y=np.arange(80) % 3)
    return path


@pytest.fixture
def bundle(tmp_path: Path, rng: np.random.Generator, rows: Path) -> Path:
    model = random_mlp(rng, (5, 7, 3))
    options = deploy.parse_options({"toy": deploy.targets()["toy"]})
    deploy.convert(model, deploy.Calibration.read(f"{rows}[0:50]"), options).write(tmp_path / "b")
    return tmp_path / "b"


def test_targets_lists_it(call: Call) -> None:
    code, document = call("targets")
    assert code == 0
    toy = document["targets"]["toy"]
    assert toy["guarantee"].startswith("Every decision")
    assert [option["name"] for option in toy["options"]] == ["offset", "widest"]
    assert list(toy["commands"]) == ["count-parameters"]


def test_a_bundle_converts_again_with_its_options(call: Call, bundle: Path, rows: Path, tmp_path: Path) -> None:
    arguments = ["convert", bundle, "--calibration", f"{rows}[0:50]", "--target", "toy", "--set", "toy.offset=100"]
    code, document = call(*arguments)
    assert (code, document["error"]["code"]) == (4, "output_exists")
    code, document = call(*arguments, "-o", tmp_path / "c.zip", "--force")
    assert code == 0
    assert document["targets"]["toy"]["offset"] == 100
    assert document["targets"]["toy"]["calibration_agreement"] < 1
    assert Bundle.read(tmp_path / "c.zip").targets == ("toy",)


def test_evaluate_judges_it_and_keeps_the_report(call: Call, bundle: Path, rows: Path) -> None:
    code, document = call("evaluate", bundle, "--data", f"{rows}[50:80]", "--real", 5)
    assert code == 0
    entry = document["targets"]["toy"]
    assert entry["agreement"] == 1
    assert entry["worst_logit_error"] == 0
    assert entry["certified"] == 1
    assert entry["real"][0]["engine"] == "single"
    assert entry["real"][0]["max_abs_error"] < 1e-6  # half a unit of single precision, of logits below 10
    assert Bundle.read(bundle).report()["targets"]["toy"]["agreement"] == 1


def test_predict_decides_as_the_model(call: Call, bundle: Path, rows: Path) -> None:
    code, document = call("predict", bundle, "--data", rows)
    assert code == 0
    model = Bundle.read(bundle).model
    assert document["decisions"] == model.decide(np.load(rows)["x"]).tolist()


def test_inspect_shows_its_cost(call: Call, bundle: Path) -> None:
    code, document = call("inspect", bundle)
    assert code == 0
    assert document["targets"]["toy"]["cost"][0]["value"] == document["model"]["parameters"]


def test_its_own_verb_is_hung_in(call: Call, bundle: Path) -> None:
    assert call("count-parameters", bundle) == (0, {"parameters": 66})
    code, document = call("count-parameters", bundle, "--at-most", "3")
    assert (code, document["error"]["code"]) == (2, "usage")


def test_no_line_of_the_trunk_names_it() -> None:
    trunk = Path(deploy.__file__).parent
    assert not [path for path in trunk.rglob("*.py") if "toy" in path.read_text(encoding="utf-8").lower()]
