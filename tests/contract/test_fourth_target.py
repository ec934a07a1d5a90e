"""Every verb of the trunk carries a target that no line of the trunk names."""

from __future__ import annotations

import csv
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from networks import random_mlp

import deploy
from deploy.bundle import Bundle
from deploy.cli.main import run
from deploy.dataset import row_hashes

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


def test_inspecting_a_bundle_loads_nothing_heavy(bundle: Path) -> None:
    code = "from deploy.cli.main import main; main()"
    found = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code, "inspect", bundle],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "every hash checked" in found.stdout
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in found.stderr.splitlines()}
    assert not loaded & {"torch", "tenseal", "onnx", "matplotlib", "numba", "cvxpy"}


def test_a_target_is_added_to_a_bundle_in_place(call: Call, bundle: Path, rows: Path) -> None:
    before = Bundle.read(bundle)
    assert call("evaluate", bundle, "--data", f"{rows}[50:80]")[0] == 0
    code, document = call("convert", bundle, "--calibration", f"{rows}[0:50]", "--target", "ternary")
    assert code == 0
    assert list(document["targets"]) == ["ternary"]
    after = Bundle.read(bundle)
    assert after.targets == ("ternary", "toy")
    assert after.target_files("toy") == before.target_files("toy")
    assert after.model.sha256 == before.model.sha256
    assert list(after.report()["targets"]) == ["toy"]


def test_a_dry_run_foretells_and_writes_nothing(call: Call, bundle: Path, rows: Path, tmp_path: Path) -> None:
    arguments = ["convert", bundle, "--calibration", f"{rows}[0:50]", "--target", "toy", "--force", "--dry-run"]
    before = sorted(tmp_path.rglob("*"))
    code, document = call(*arguments, "-o", tmp_path / "new")
    assert code == 0
    assert document["bundle"] is None
    assert document["targets"]["toy"]["cost"][0]["name"] == "parameters"
    assert sorted(tmp_path.rglob("*")) == before


def test_the_worst_rows_are_kept_only_where_asked(call: Call, bundle: Path, rows: Path, tmp_path: Path) -> None:
    code, document = call("evaluate", bundle, "--data", f"{rows}[50:80]", "--keep-rows", tmp_path / "kept")
    assert code == 0
    kept = np.load(tmp_path / "kept" / "toy.npz")
    worst = [row["row"] for row in document["targets"]["toy"]["worst_rows"]]
    assert kept["row"].tolist() == worst
    assert np.array_equal(kept["x"], np.load(rows)["x"][worst])
    row = np.load(rows)["x"][worst[0]].tobytes()
    assert not [name for name, data in Bundle.read(bundle).reports.items() if row in data]


def test_rows_calibrated_on_may_be_left_out(call: Call, bundle: Path, rows: Path) -> None:
    code, document = call("evaluate", bundle, "--data", f"{rows}[40:80]")
    assert code == 4
    assert "10 of 40 rows were calibrated on, the first is row 40" in document["error"]["cause"]
    code, document = call("evaluate", bundle, "--data", f"{rows}[40:80]", "--drop-overlap")
    assert (code, document["rows"], document["dropped_overlap"]) == (0, 30, 10)


def test_rows_keep_their_numbers_where_others_are_left_out(
    call: Call, bundle: Path, rows: Path, tmp_path: Path
) -> None:
    code, document = call(
        "evaluate", bundle, "--data", f"{rows}[40:80]", "--drop-overlap", "--keep-rows", tmp_path / "kept"
    )
    assert code == 0
    kept = np.load(tmp_path / "kept" / "toy.npz")
    assert kept["row"].tolist() == [row["row"] for row in document["targets"]["toy"]["worst_rows"]]
    assert kept["row"].min() >= 50
    assert np.array_equal(kept["x"], np.load(rows)["x"][kept["row"]])
    for worst, row in zip(document["targets"]["toy"]["worst_rows"], kept["x"], strict=True):
        assert worst["sha256"] == row_hashes(row[np.newaxis])[0].hex()


def test_predictions_are_written_as_csv(call: Call, bundle: Path, rows: Path, tmp_path: Path) -> None:
    code, document = call(
        "predict", bundle, "--data", f"{rows}[70:80]", "--engine", "single", "-o", tmp_path / "p.csv"
    )
    assert (code, document["output"]) == (0, str(tmp_path / "p.csv"))
    with (tmp_path / "p.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [int(row["row"]) for row in table] == list(range(70, 80))
    assert [int(row["decision"]) for row in table] == document["decisions"]
    logits = [[float(row[f"logit_{i}"]) for i in range(3)] for row in table]
    assert np.argmax(logits, axis=1).tolist() == document["decisions"]


def test_progress_is_drawn_on_a_terminal_and_only_there(bundle: Path, rows: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from deploy.cli.main import main; main()", "convert", bundle]
    command += ["--calibration", f"{rows}[0:50]", "--target", "toy", "--force"]
    here, there = pty.openpty()
    with subprocess.Popen(
        [*command, "-o", tmp_path / "p"], stderr=there, stdout=subprocess.PIPE, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(there)
        drawn = b""
        while True:
            try:
                part = os.read(here, 4096)
            except OSError:  # Linux says EIO where the other side is closed
                break
            if not part:
                break
            drawn += part
        said = process.stdout.read() if process.stdout else b""
    os.close(here)
    assert process.returncode == 0
    assert b"\x1b[" in drawn
    assert b"\x1b[" not in said
    plain = subprocess.run([*command, "-o", tmp_path / "q"], capture_output=True, check=True)
    assert b"\x1b[" not in plain.stderr + plain.stdout
    assert b"toy, before the work:\n  parameters: " in plain.stderr
    quiet = subprocess.run([*command, "-o", tmp_path / "r", "--quiet"], capture_output=True, check=True)
    assert quiet.stderr == b""


def test_its_own_verb_is_hung_in(call: Call, bundle: Path) -> None:
    assert call("count-parameters", bundle) == (0, {"parameters": 66})
    code, document = call("count-parameters", bundle, "--at-most", "3")
    assert (code, document["error"]["code"]) == (2, "usage")


def test_no_line_of_the_trunk_names_it() -> None:
    trunk = Path(deploy.__file__).parent
    assert not [path for path in trunk.rglob("*.py") if "toy" in path.read_text(encoding="utf-8").lower()]
