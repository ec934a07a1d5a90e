"""Whatever is handed over: one clear error, the right exit code, nothing half-written, nothing overwritten."""

from __future__ import annotations

import hashlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from deploy.bundle import Bundle
from deploy.cli.main import run
from deploy.demo import CALIBRATION, HELD_OUT, MODEL

COMMAND = [sys.executable, "-c", "import sys; from deploy.cli.main import main; main()"]
CONVERT = ["convert", str(MODEL), "--calibration", CALIBRATION, "--target", "toy"]


def snapshot(folder: Path) -> dict[str, str]:
    """Hash of every file below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, toy_on_path: None) -> Path:
    """A good bundle, as folder and as zip."""
    folder = tmp_path_factory.mktemp("made")
    for name in ("good", "good.zip"):
        assert run([*CONVERT, "-o", str(folder / name), "-q"]) == 0
    good = (folder / "good.zip").read_bytes()
    _rewrite(good, folder / "bomb.zip", extra={"targets/toy/bomb": bytes(200_000_000)})
    return folder


@pytest.fixture
def here(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own with files that are wrong in one way each."""
    monkeypatch.chdir(tmp_path)
    x = np.full((20, 64), 0.5)
    np.savez("empty.npz", x=x[:0])
    np.savez("narrow.npz", x=x[:, :7])
    np.savez("labels.npz", x=x, y=np.array(["seven"] * 20))
    np.savez("short.npz", x=x, y=np.arange(3))
    x[3, 5] = np.nan
    np.savez("nan.npz", x=x)
    Path("letters.csv").write_text("a,b\n1,two\n")
    Path("rows.xyz").write_text("1 2 3")
    Path("text.npz").write_text("this is no zip")
    Path("text.onnx").write_text("this is no model")
    tanh = helper.make_graph(
        [helper.make_node("Tanh", ["x"], ["y"], name="squash")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
    )
    onnx.save(helper.make_model(tanh, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "tanh.onnx")
    good = (made / "good.zip").read_bytes()
    Path("good.zip").write_bytes(good)
    _rewrite(good, Path("changed.zip"), damage="model.safetensors")
    _rewrite(good, Path("outside.zip"), extra={"../outside.txt": b"out"})
    os.link(made / "bomb.zip", "bomb.zip")
    Path("mine.txt").write_text("mine")
    return tmp_path


def _rewrite(data: bytes, path: Path, *, damage: str = "", extra: dict[str, bytes] | None = None) -> None:
    """Zip the same files again, one of them damaged in its last byte, and more of them."""
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in source.namelist():
            content = source.read(entry)
            archive.writestr(entry, content[:-1] + b"?" if entry == damage else content)
        for entry, content in (extra or {}).items():
            archive.writestr(entry, content)


EVALUATE = ["evaluate", "good.zip", "--data"]
CASES = [
    (["convert", "none.onnx", "--calibration", CALIBRATION, "-o", "new"], 4, "none.onnx: no such file"),
    (["convert", str(MODEL), "--calibration", "none.npz", "-o", "new"], 4, "none.npz: no such file"),
    (["convert", str(MODEL), "--calibration", "empty.npz", "-o", "new"], 4, "empty.npz: no values"),
    (["convert", str(MODEL), "--calibration", "nan.npz", "-o", "new"], 4, "the first at row 3, column 5"),
    (["convert", str(MODEL), "--calibration", "narrow.npz", "-o", "new"], 4, "the model takes 64 values a row"),
    (
        ["convert", str(MODEL), "--calibration", "letters.csv", "-o", "new"],
        4,
        "line 2, column 2: 'two'",
    ),
    (["convert", str(MODEL), "--calibration", "rows.xyz", "-o", "new"], 4, "unknown format '.xyz'"),
    (["convert", str(MODEL), "--calibration", "text.npz", "-o", "new"], 4, "text.npz: cannot be read"),
    (["convert", str(MODEL), "--calibration", f"{CALIBRATION[:-8]}[5:1]", "-o", "new"], 4, "rows [5:1]"),
    (["convert", "text.onnx", "--calibration", CALIBRATION, "-o", "new"], 4, "text.onnx"),
    (["convert", "tanh.onnx", "--calibration", CALIBRATION, "-o", "new"], 4, "Tanh"),
    ([*CONVERT, "-o", "mine.txt"], 4, "mine.txt: exists already"),
    ([*CONVERT, "-o", "good.zip"], 4, "good.zip: exists already"),
    ([*CONVERT, "-o", "none/new"], 1, "No such file or directory"),
    ([*CONVERT, "-o", "mine.txt/new"], 1, "mine.txt"),
    ([*CONVERT, "-o", "new", "--target", "tyo"], 2, "did you mean toy?"),
    ([*CONVERT, "-o", "new", "--set", "toy.ofset=1"], 2, "did you mean offset?"),
    ([*CONVERT, "-o", "new", "--set", "toy.offset=much"], 2, "toy.offset"),
    ([*CONVERT, "-o", "new", "--set", "toy"], 2, "write --set target.option=value"),
    ([*CONVERT, "-o", "new", "--options", "mine.txt"], 2, "mine.txt: is no TOML"),
    ([*CONVERT, "-o", "new", "--held-out", CALIBRATION], 4, "1437 of 1437 rows were calibrated on"),
    ([*CONVERT, "-o", "new", "--decision", "loudest"], 2, "decision rule 'loudest' is unknown"),
    ([*CONVERT, "-o", "new", "--decision", "sign"], 4, "decision rule sign needs 1 output"),
    ([*CONVERT, "-o", "new", "--tolerance", "1"], 2, "belongs to a value decision"),
    ([*CONVERT, "-o", "new", "--input-box", "up"], 2, "give LOW:HIGH"),
    ([*CONVERT, "-o", "new", "--held-out", "narrow.npz"], 4, "narrow.npz: rows of shape (20, 7)"),
    ([*CONVERT, "-o", "new", "--input-box", "1:0"], 4, "the lower end exceeds the upper end"),
    ([*CONVERT, "-o", "new", "--input-box", "0:inf"], 4, "the input box is not finite at feature 0: 0.0:inf"),
    ([*CONVERT, "-o", "new", "--classes", "a,b"], 4, "2 class labels for 10 classes"),
    ([*CONVERT], 2, "give -o BUNDLE"),
    ([*CONVERT, "-o", "new", "--set", "toy.widest=10"], 4, "a layer of 64 units, 10 are taken"),
    (["convert", "good.zip", "--calibration", CALIBRATION], 2, "give --target"),
    (["convert", "good.zip", "--calibration", CALIBRATION, "--target", "toy"], 4, "target toy is there already"),
    ([*EVALUATE, "labels.npz"], 4, "labels are no class of the model, for instance 'seven'"),
    ([*EVALUATE, "short.npz"], 4, "labels of shape (3,) for 20 rows"),
    ([*EVALUATE, CALIBRATION], 4, "1437 of 1437 rows were calibrated on"),
    ([*EVALUATE, HELD_OUT, "--target", "ckss"], 2, "no target 'ckss' in this bundle, it has: toy"),
    ([*EVALUATE, HELD_OUT, "--real", "1", "--engine", "sngle"], 2, "did you mean single?"),
    (["evaluate", "changed.zip", "--data", HELD_OUT], 4, "has been changed"),
    (["evaluate", "outside.zip", "--data", HELD_OUT], 4, "the name '../outside.txt' is refused"),
    (["evaluate", "bomb.zip", "--data", HELD_OUT], 4, "targets/toy/bomb: is not in the manifest"),
    (["evaluate", "mine.txt", "--data", HELD_OUT], 4, "mine.txt: cannot be read as a zip file"),
    (["inspect", "changed.zip"], 4, "has been changed"),
    (["predict", "good.zip", "--data", HELD_OUT, "-o", "mine.txt"], 4, "mine.txt: exists already"),
    (["predict", "good.zip", "--data", "narrow.npz", "-o", "new.csv"], 4, "the model takes 64 values a row"),
    (["report", "outside.zip", "-o", "new.html"], 4, "is refused"),
    (["simulate", "good.zip", "shake", "--data", "nan.npz", "-o", "new.csv"], 4, "NaN"),
]


@pytest.mark.parametrize(("arguments", "code", "said"), CASES, ids=[" ".join(case[0][:6])[-60:] for case in CASES])
def test_it_is_refused_with_a_reason_and_leaves_nothing_behind(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    before = snapshot(here)
    assert run([*arguments, "--json"]) == code
    found = capsys.readouterr()
    assert said in found.err
    assert "Traceback" not in found.err
    assert "error" in json.loads(found.out)
    assert snapshot(here) == before


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("arguments", "code", "said"), [case for case in CASES if "new" in case[0] and "toy.widest=10" not in case[0]]
)
def test_a_dry_run_refuses_it_too(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    assert run([*arguments, "--dry-run"]) == code
    assert said in capsys.readouterr().err


def test_overlap_of_real_rows_is_refused_with_its_count(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, rows = inputs / "models/mnist_784_128_10", inputs / "data/mnist/mnist_t10k.npz"
    [file] = list(model.glob("*.onnx"))[:1]
    arguments = [str(file), "--calibration", f"{rows}[0:8000]", "--target", "toy", "-o", str(tmp_path / "b")]
    assert run(["convert", *arguments, "-q"]) == 0
    assert run(["evaluate", str(tmp_path / "b"), "--data", f"{rows}[7000:9000]"]) == 4
    assert "1000 of 2000 rows were calibrated on, the first is row 7000" in capsys.readouterr().err
    assert run(["evaluate", str(tmp_path / "b"), "--data", f"{rows}[8000:10000]", "-q", "--json"]) == 0


@pytest.mark.usefixtures("here")
def test_a_target_that_refuses_does_not_stop_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*CONVERT, "-o", "new", "--target", "ternary", "--set", "toy.widest=10", "--json"]
    assert run(arguments) == 4
    document = json.loads(capsys.readouterr().out)
    assert list(document["targets"]) == ["ternary"]
    assert "64 units" in document["refused"]["toy"]["cause"]
    assert document["error"]["code"] == "model_refused"
    assert Bundle.read("new").targets == ("ternary",)


@pytest.mark.usefixtures("here")
def test_a_missed_gate_is_said_after_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*CONVERT, "-o", "new", "--set", "toy.offset=9", "--held-out", HELD_OUT]
    assert run([*arguments, "--fail-under", "0.99", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["targets"]["toy"]["held_out_agreement"] < 0.99
    assert document["error"]["code"] == "gate_missed"
    assert run(["evaluate", "new", "--data", HELD_OUT, "--fail-under", "0.99", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["targets"]["toy"]["agreement"] < 0.99
    assert Bundle.read("new").report()["targets"]["toy"]["agreement"] < 0.99
    assert run(["evaluate", "good.zip", "--data", HELD_OUT, "--fail-under", "1"]) == 0


@pytest.mark.parametrize("output", ["new", "new.zip"])
def test_a_full_disk_leaves_nothing_behind(here: Path, output: str) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000))

    before = snapshot(here)
    found = subprocess.run(
        [*COMMAND, *CONVERT, "-o", output, "--json"], capture_output=True, text=True, preexec_fn=small_files
    )
    assert found.returncode == 1
    assert json.loads(found.stdout)["error"]["code"] == "storage"
    assert "cannot be written" in found.stderr
    assert "Traceback" not in found.stderr
    assert snapshot(here) == before


@pytest.mark.parametrize("output", ["good", "good.zip"])
def test_a_full_disk_keeps_what_was_there(made: Path, tmp_path: Path, output: str) -> None:
    mounted = tmp_path / "small"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(mounted)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a small file system")
    try:
        assert run([*CONVERT, "-o", str(mounted / output), "-q"]) == 0
        before = snapshot(mounted)
        left = os.statvfs(mounted)
        (mounted / "filler").write_bytes(bytes(left.f_bavail * left.f_frsize - 8192))
        assert run([*CONVERT, "-o", str(mounted / output), "-q", "--force", "--set", "toy.offset=1"]) == 1
        (mounted / "filler").unlink()
        assert snapshot(mounted) == before
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def _interrupt(folder: Path, delay: float) -> int:
    """Start a conversion over a bundle that is there, press Ctrl-C after `delay` seconds; give the exit code."""
    arguments = [*COMMAND, *CONVERT, "-o", str(folder / "b"), "--force", "--set", "toy.offset=1"]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    if process.returncode == 130:
        assert said.decode().endswith("interrupted\n")
    return process.returncode


def _check_interrupts(tmp_path: Path, delays: list[float]) -> None:
    assert run([*CONVERT, "-o", str(tmp_path / "b"), "-q"]) == 0
    before = snapshot(tmp_path)
    assert run([*CONVERT, "-o", str(tmp_path / "b"), "-q", "--force", "--set", "toy.offset=1"]) == 0
    after = snapshot(tmp_path)
    assert before != after
    codes = []
    for delay in delays:
        assert run([*CONVERT, "-o", str(tmp_path / "b"), "-q", "--force"]) == 0
        codes.append(_interrupt(tmp_path, delay))
        # Whole, old or new, and no temporary file beside it.
        assert snapshot(tmp_path) in (before, after)
        if codes[-1] == 0:
            assert snapshot(tmp_path) == after
    # -2: pressed before Python had read the first line of ours.
    assert set(codes) <= {0, 130, -signal.SIGINT}


def test_an_interrupt_leaves_the_old_or_the_new_bundle(tmp_path: Path) -> None:
    _check_interrupts(tmp_path, [0.2, 0.5, 0.8, 1.1])


@pytest.mark.long
def test_many_interrupts_leave_the_old_or_the_new_bundle(tmp_path: Path, rng: np.random.Generator) -> None:
    _check_interrupts(tmp_path, rng.uniform(0, 1.6, size=60).tolist())
