"""The demo takes the shipped model through every registered target, and needs nothing but what is shipped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from deploy.bundle import Bundle
from deploy.cli.main import run
from deploy.dataset import Calibration, HeldOut, check_disjoint, row_hashes
from deploy.demo import CALIBRATION, HELD_OUT, MODEL
from deploy.loaders import load
from deploy.registry import target, target_names


def test_the_demo_takes_every_target_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "-o", str(tmp_path / "d"), "--real", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["convert"]) == set(document["evaluate"]) == set(target_names())
    for name, entry in document["evaluate"].items():
        assert entry["agreement"] > 0.9, name
        [real] = entry["real"]
        assert real["agreement"] == 1, name
        assert real["failures"] == [], name
    assert Bundle.read(document["bundle"]).targets == tuple(sorted(target_names()))
    page = Path(document["report"]).read_text(encoding="utf-8")
    assert all(f"<h2>{name}</h2>" in page for name in target_names())


def test_the_demo_converts_once_more_where_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = target_names()[0]
    option = next(iter(target(name).options.model_fields))
    value = target(name).options.model_fields[option].default
    setting = f"{name}.{option}={value}"
    assert run(["demo", "-o", str(tmp_path / "d"), "--real", "1", "--also", setting, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    label = f"{name} ({option}={value})"
    assert document["evaluate"][label]["agreement"] == document["evaluate"][name]["agreement"]
    assert document["convert"][label]["calibration_agreement"] > 0.9


def test_the_demo_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.html").write_text("mine")
    assert run(["demo", "-o", str(tmp_path)]) == 4
    assert "exists already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_the_shipped_rows_are_what_they_are_said_to_be() -> None:
    rows, held_out = Calibration.read(CALIBRATION), HeldOut.read(HELD_OUT)
    check_disjoint(held_out, frozenset(row_hashes(rows.x)))
    assert len(rows) + len(held_out) == 1797
    assert (rows.x.min(), rows.x.max()) == (0, 1)
    model = load(MODEL)
    assert model.widths == (64, 32, 10)
    assert np.mean(model.decide(held_out.x) == held_out.y) > 0.96


def test_reading_what_is_shipped_needs_no_scikit_learn() -> None:
    code = (
        "import sys; from deploy.demo import *; from deploy.loaders import load; from deploy.dataset import HeldOut\n"
        "load(MODEL); HeldOut.read(HELD_OUT); print('sklearn' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
    )


def test_what_is_shipped_is_small() -> None:
    assert sum(path.stat().st_size for path in MODEL.parent.iterdir() if path.is_file()) < 100_000
