"""Whatever a path argument leads to: one clear error, at once, whatever the size; pipes of a shell are read."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from deploy.cli.main import run
from deploy.demo import CALIBRATION, HELD_OUT, MODEL
from deploy.errors import BundleError, InputError
from deploy.reading import read_bounded, read_text

COMMAND = [sys.executable, "-c", "import sys; from deploy.cli.main import main; main()"]
ENDS = {
    "pipe": "is a pipe, not a file|this pipe did not end",
    "folder": "is a folder, not a file",
    "socket": "No such device or address|is a socket, not a file",
    "device": "is a device, not a file",
    "holes": "4,398,046,511,104 bytes, where at most 1,048,576 bytes are read",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one of everything that a name may lead to."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("deploy.reading.PIPE_WAIT_S", 0.2)
    os.mkfifo("pipe")
    Path("folder").mkdir()
    Path("device").symlink_to("/dev/zero")
    with Path("holes").open("wb") as file:
        file.truncate(1 << 42)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
    for suffix in (".csv", ".npz", ".npy", ".zip", ".onnx", ".pt", ".safetensors", ".nnet"):
        for name in ENDS:
            Path(f"{name}{suffix}").symlink_to(name)
    return tmp_path


CONVERT = ["convert", str(MODEL), "--target", "ternary", "-o", "new"]
CLIENT = ["--keys", "folder", "--archive"]
PLACES = [
    ["inspect", "{}"],
    ["inspect", "{}.onnx"],
    ["inspect", "{}.nnet"],
    ["inspect", "{}.pt"],
    ["inspect", "{}.safetensors"],
    ["inspect", "{}.zip"],
    ["evaluate", "{}", "--data", HELD_OUT],
    ["evaluate", "{}.zip", "--data", HELD_OUT],
    ["predict", "{}", "--data", HELD_OUT],
    ["report", "{}", "-o", "new"],
    ["compare", "{}", "{}"],
    ["simulate", "{}"],
    [*CONVERT, "--calibration", "{}"],
    [*CONVERT, "--calibration", "{}.csv"],
    [*CONVERT, "--calibration", "{}.npz"],
    [*CONVERT, "--calibration", "{}.npy"],
    [*CONVERT, "--calibration", CALIBRATION, "--options", "{}"],
    [*CONVERT, "--calibration", CALIBRATION, "--input-box", "{}"],
    ["encrypt", "--data", "{}.csv", "--keys", "folder", "-o", "new"],
    ["encrypt", "--data", HELD_OUT, *CLIENT, "{}", "-o", "new"],
    ["decrypt", "x", *CLIENT, "{}"],
    ["keygen", "--archive", "{}", "-o", "new"],
    ["keygen", "--archive", "x", "--passphrase-file", "{}", "-o", "new"],
]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("arguments", PLACES, ids=[" ".join(place[:1] + place[-3:])[-40:] for place in PLACES])
def test_what_is_no_file_is_one_error_at_once(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], end: str
) -> None:
    before = sorted(os.listdir(here))
    started, memory = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert run([argument.replace("{}", end) for argument in arguments]) in (2, 4)
    found = capsys.readouterr().err
    assert found.startswith("error: "), found
    assert "Traceback" not in found
    assert time.monotonic() - started < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 500_000  # kB: imports, and no file of 4 TB
    assert sorted(os.listdir(here)) == before


@pytest.mark.parametrize(("name", "words"), ENDS.items())
def test_the_reader_says_what_it_found(here: Path, name: str, words: str) -> None:
    started = time.monotonic()
    with pytest.raises(BundleError, match=words):
        read_bounded(Path(name), limit=1 << 20, error=BundleError)
    with pytest.raises(InputError, match=words):
        read_text(Path(name))
    assert time.monotonic() - started < 2


def test_the_reader_stops_at_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bounded(path, limit=5) == b"12345"
    with pytest.raises(InputError, match="5 bytes, where at most 4 bytes are read"):
        read_bounded(path, limit=4)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(InputError, match="Too many levels of symbolic links"):
        read_bounded(tmp_path / "link", limit=5, follow=False)
    with pytest.raises(InputError, match="no name of a file"):
        read_bounded(Path("a\0b"), limit=5)


def test_a_pipe_is_read_to_its_end_and_no_further_than_the_limit(here: Path) -> None:
    def write(data: bytes) -> threading.Thread:
        def work() -> None:
            with suppress(BrokenPipeError), Path("pipe").open("wb") as file:
                file.write(data)

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    writer = write(b"first\n")
    assert read_text(Path("pipe")) == "first\n"
    writer.join()
    writer = write(bytes(5_000_000))
    with pytest.raises(InputError, match="more, where at most 1,048,576 bytes"):
        read_text(Path("pipe"))
    writer.join()


def test_the_pipe_of_a_shell_carries_options(tmp_path: Path) -> None:
    line = f"{sys.executable} -c 'from deploy.cli.main import main; main()' convert {MODEL} --target ternary "
    line += f"--calibration '{CALIBRATION}' --dry-run --json -q --options <(echo '[ternary]'; sleep 0.2; echo 'levels = 7')"
    found = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert '"levels": 7' in found.stdout or '"levels": "7"' in found.stdout


def test_rows_of_holes_are_refused_before_they_are_read(tmp_path: Path) -> None:
    """A header that claims a terabyte, with the holes to back it."""
    path = tmp_path / "x.npy"
    np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(1 << 31, 64)).flush()
    assert run(["inspect", str(MODEL), "--calibration", str(path)]) == 4
    assert run(["inspect", str(MODEL), "--calibration", f"{path}[0:10]"]) == 0
