"""Studies: the same table however it was computed, and an interrupted one goes on."""

from __future__ import annotations

import csv
import fcntl
import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from networks import random_mlp
from pydantic import BaseModel

import deploy
from deploy.cli.main import run
from deploy.errors import DataError, OutputExists, UsageError
from deploy.simulation import read_table, run_study, write_table
from deploy.simulation.journal import Journal, case_key, journal_path, plain_row
from deploy.study import Case, Column


class NoOptions(BaseModel):
    """Nothing to choose."""


class Count:
    """A study that counts how often it is asked, and stops where it is told to."""

    summary = "squares"
    options = NoOptions
    columns = (Column("square", "V²", "the square"), Column("note", "", "a word"))

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at = stop_at
        self.solved: list[str] = []

    def cases(self, options: NoOptions, rng: np.random.Generator) -> Iterator[Case]:
        for index in range(6):
            yield Case(f"c{index}", {"index": index})

    def solve(self, case: Case, x: np.ndarray) -> Mapping[str, Any]:
        index = case.parameters["index"]
        if index == self.stop_at:
            raise KeyboardInterrupt
        self.solved.append(case.id)
        return {"square": np.float64(index**2 if index else math.nan), "note": None if index == 1 else "x"}


CASES = list(Count().cases(NoOptions(), np.random.default_rng(0)))
X = np.zeros((1, 1))


def same(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> bool:
    return repr(first) == repr(second)


def test_an_interrupted_study_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with pytest.raises(KeyboardInterrupt), Journal(path, {"study": "count"}) as journal:
        run_study(Count(stop_at=4), CASES, X, journal=journal)
    second = Count()
    with Journal(path, {"study": "count"}) as journal:
        rows = run_study(second, CASES, X, journal=journal)
    assert second.solved == ["c4", "c5"]
    assert same(rows, run_study(Count(), CASES, X))
    assert [row["case"] for row in rows] == [case.id for case in CASES]
    assert math.isnan(rows[0]["square"])


def test_more_cases_extend_a_journal(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", {}) as journal:
        run_study(Count(), CASES[:2], X, journal=journal)
    study = Count()
    with Journal(tmp_path / "j", {}) as journal:
        run_study(study, CASES, X, journal=journal)
    assert study.solved == ["c2", "c3", "c4", "c5"]


def test_a_case_with_other_parameters_is_another_case(tmp_path: Path) -> None:
    changed = [Case(case.id, {"index": case.parameters["index"] + 10}) for case in CASES]
    with Journal(tmp_path / "j", {}) as journal:
        run_study(Count(), CASES, X, journal=journal)
        assert run_study(Count(), changed, X, journal=journal)[0]["square"] == 100


@pytest.mark.parametrize("keep", [0.3, 0.5, 0.99])
def test_a_journal_that_was_cut_short_loses_only_its_last_line(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "j"
    with Journal(path, {"a": 1}) as journal:
        run_study(Count(), CASES, X, journal=journal)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    study = Count()
    with Journal(path, {"a": 1}) as journal:
        rows = run_study(study, CASES, X, journal=journal)
    assert same(rows, run_study(Count(), CASES, X))
    assert 0 < len(study.solved) < len(CASES)
    with Journal(path, {"a": 1}) as journal:
        assert set(journal.rows) == {case_key(case) for case in CASES}


def test_another_studys_journal_is_not_continued(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", {"bundle": "a"}) as journal:
        run_study(Count(), CASES, X, journal=journal)
    with pytest.raises(OutputExists, match="another study's rows"):
        Journal(tmp_path / "j", {"bundle": "b"})
    with Journal(tmp_path / "j", {"bundle": "b"}, discard=True) as journal:
        assert journal.rows == {}


def test_two_runs_do_not_write_one_journal(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path, {"a": 1}) as first:
        run_study(Count(), CASES[:3], X, journal=first)
        before = path.read_bytes()
        for discard in (False, True):
            with pytest.raises(
                OutputExists, match="another run is writing this table; wait for it, or choose another"
            ):
                Journal(path, {"a": 1}, discard=discard)
        assert path.read_bytes() == before
    with Journal(path, {"a": 1}) as second:
        assert len(second.rows) == 3


def test_a_journal_that_was_removed_meanwhile_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking the other run may finish: a lock on a file without a name keeps nobody out."""
    path, lock = tmp_path / "j", fcntl.flock
    left = [path]

    def finish_first(file: Any, operation: int) -> None:
        if left:
            left.pop().unlink()
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", finish_first)
    with Journal(path, {"a": 1}) as journal:
        run_study(Count(), CASES, X, journal=journal)
        assert len(path.read_bytes().splitlines()) == 1 + len(CASES)


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_journal_is_a_plain_file(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    if kind == "link":
        (tmp_path / "j").symlink_to(target)
    else:
        os.mkfifo(tmp_path / "j")
    with pytest.raises(OutputExists, match="j: is a link, a device or a pipe"):
        Journal(tmp_path / "j", {}, discard=True)
    assert target.read_text() == "precious"


def test_a_value_that_no_table_holds_is_refused() -> None:
    with pytest.raises(DataError, match="type list"):
        plain_row({"square": [1, 2]})


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_reads_back(tmp_path: Path, suffix: str) -> None:
    rows = run_study(Count(), CASES, X)
    columns = [Column("case", "", "which"), *Count.columns]
    path = tmp_path / f"t{suffix}"
    write_table(path, columns, [{**row, "square": float(row["square"])} for row in rows])
    found = read_table(path)
    assert [row["case"] for row in found] == [case.id for case in CASES]
    assert [float(row["square"]) for row in found[1:]] == [1, 4, 9, 16, 25]
    assert math.isnan(float(found[0]["square"]))
    assert found[1]["note"] in (None, "")
    with pytest.raises(OutputExists):
        write_table(path, columns, rows)


def test_parquet_keeps_units_and_meanings(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{**row, "square": float(row["square"])} for row in run_study(Count(), CASES, X)]
    write_table(tmp_path / "t.parquet", Count.columns, rows)
    field = parquet.read_schema(tmp_path / "t.parquet").field("square")
    assert field.metadata == {b"unit": "V²".encode(), b"meaning": b"the square"}


def test_other_formats_are_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.csv or \.parquet"):
        write_table(tmp_path / "t.xlsx", Count.columns, [])


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(60, 5))
    np.savez(tmp_path / "rows.npz", x=x)
    options = deploy.parse_options({"toy": deploy.targets()["toy"]})
    deploy.convert(random_mlp(rng, (5, 7, 3)), deploy.Calibration(x[:30]), options).write(tmp_path / "b")
    return tmp_path / "b"


def simulate(bundle: Path, *arguments: object) -> int:
    rows = bundle.with_name("rows.npz")
    return run(["simulate", str(bundle), "shake", "--data", str(rows), *map(str, arguments)])


def test_every_number_of_workers_gives_the_same_bytes(bundle: Path, tmp_path: Path) -> None:
    tables = []
    for jobs in (1, 2):
        assert simulate(bundle, "-o", tmp_path / f"{jobs}.csv", "--jobs", jobs) == 0
        tables.append((tmp_path / f"{jobs}.csv").read_bytes())
    assert tables[0] == tables[1]
    assert len(tables[0].splitlines()) == 1 + 3 * 4


@pytest.mark.long
def test_a_cluster_gives_the_same_bytes(bundle: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed")
    assert simulate(bundle, "-o", tmp_path / "here.csv", "--jobs", 1) == 0
    code = "import sys; from deploy.cli.main import main; main()"
    arguments = ["simulate", bundle, "shake", "--data", bundle.with_name("rows.npz"), "-o", tmp_path / "there.csv"]
    subprocess.run([sys.executable, "-c", code, *arguments, "--jobs", "2", "--cluster", "local"], check=True)
    assert (tmp_path / "here.csv").read_bytes() == (tmp_path / "there.csv").read_bytes()


def test_the_seed_changes_the_cases_and_the_same_seed_does_not(bundle: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert simulate(bundle, "-o", tmp_path / f"{name}.csv", "--jobs", 1, "--seed", seed) == 0
    texts = [(tmp_path / f"{name}.csv").read_text() for name in "abc"]
    assert texts[0] == texts[1] != texts[2]


def test_without_an_output_the_table_is_on_stdout(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(bundle, "--jobs", 1, "--set", "samples=1", "--set", "amplitudes=[0]") == 0
    [row] = csv.DictReader(capsys.readouterr().out.splitlines())
    assert row == {"case": "0.0/0", "amplitude": "0.0", "sample": "0", "agreement": "1.0"}


def test_the_studies_are_listed(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", str(bundle), "--json"]) == 0
    [study] = json.loads(capsys.readouterr().out)["studies"]
    assert (study["target"], study["study"]) == ("toy", "shake")
    assert [column["name"] for column in study["columns"]] == ["amplitude", "sample", "agreement"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["shkae", "--data", "rows.npz"], 2, "did you mean shake?"),
        (["shake"], 2, "give --data FILE"),
        (["shake", "--data", "rows.npz", "--set", "samples=0"], 2, "greater than 0"),
        (["shake", "--data", "rows.npz", "--jobs", "0"], 2, "--jobs 0"),
        (["shake", "--data", "rows.npz", "-o", "t.txt"], 2, "tables are .csv or .parquet"),
        (["shake", "--data", "none.npz"], 4, "no such file"),
        (["shake", "--data", "rows.npz", "--target", "tyo"], 2, "no target 'tyo'"),
    ],
)
def test_what_cannot_be_run_is_said(
    bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(bundle.parent)
    assert run(["simulate", "b", *arguments]) == code
    assert said in capsys.readouterr().err
    assert sorted(path.name for path in bundle.parent.iterdir()) == ["b", "rows.npz"]


def test_a_finished_study_leaves_no_journal(bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / "t.csv"
    assert simulate(bundle, "-o", output, "--jobs", 1) == 0
    assert not journal_path(output).exists()
    assert simulate(bundle, "-o", output, "--jobs", 1) == 4


def test_a_table_that_another_run_writes_is_refused(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "t.csv"
    with Journal(journal_path(output), {"bundle": "other"}):
        for force in ([], ["--force"]):
            assert simulate(bundle, "-o", output, "--jobs", 1, *force) == 4
            assert "another run is writing this table" in capsys.readouterr().err
    assert not output.exists()


def test_a_journal_of_another_bundle_is_kept_until_forced(bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / "t.csv"
    with Journal(journal_path(output), {"bundle": "other"}) as journal:
        journal.add(CASES[0], {"square": 1.0, "note": None})
    assert simulate(bundle, "-o", output, "--jobs", 1) == 4
    assert case_key(CASES[0]).encode() in journal_path(output).read_bytes()
    assert simulate(bundle, "-o", output, "--jobs", 1, "--force") == 0
