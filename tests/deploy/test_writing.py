"""Outputs appear whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.errors import OutputExists, StorageError
from deploy.writing import write_file, write_tree


def test_an_existing_output_is_never_touched_without_force(tmp_path: Path) -> None:
    write_file(tmp_path / "a", b"old")
    write_tree(tmp_path / "t", {"x/y": b"old"})
    with pytest.raises(OutputExists, match="exists already; choose another name, or give --force"):
        write_file(tmp_path / "a", b"new")
    with pytest.raises(OutputExists, match="exists already"):
        write_tree(tmp_path / "t", {"x/y": b"new"})
    assert (tmp_path / "a").read_bytes() == b"old"
    assert (tmp_path / "t/x/y").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["a", "t"]


def test_force_replaces_all_of_it(tmp_path: Path) -> None:
    write_file(tmp_path / "a", b"old")
    write_tree(tmp_path / "t", {"x/y": b"old", "z": b"old"})
    write_file(tmp_path / "a", b"new", force=True)
    write_tree(tmp_path / "t", {"x/y": b"new"}, force=True, replaces=("x", "z"))
    assert (tmp_path / "a").read_bytes() == b"new"
    assert [p.relative_to(tmp_path).as_posix() for p in sorted((tmp_path / "t").rglob("*"))] == ["t/x", "t/x/y"]
    assert sorted(os.listdir(tmp_path)) == ["a", "t"]


@pytest.mark.parametrize("name", ["folder", "hidden", "link", "link to a folder", "dangling", "pipe", "tree"])
@pytest.mark.parametrize("write", ["file", "tree"])
def test_force_replaces_nothing_of_somebody_elses(tmp_path: Path, name: str, write: str) -> None:
    """As root, --force over a device would take it from the whole machine; a pipe stands for it here."""
    if (name, write) == ("tree", "tree"):
        pytest.skip("a tree of ours is what --force replaces")
    for folder, file in (("folder", "thesis.txt"), ("hidden", ".git"), ("tree", "x")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).write_bytes(b"precious")
    (tmp_path / "link").symlink_to(tmp_path / "folder/thesis.txt")
    (tmp_path / "link to a folder").symlink_to(tmp_path / "tree")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    before = [(path, path.lstat().st_ino) for path in sorted(tmp_path.rglob("*"))]
    with pytest.raises(OutputExists, match=r"which --force does not replace; choose another name$"):
        if write == "file":
            write_file(tmp_path / name, b"new", force=True)
        else:
            write_tree(tmp_path / name, {"x": b"new"}, force=True)
    assert [(path, path.lstat().st_ino) for path in sorted(tmp_path.rglob("*"))] == before


def test_replacing_works_where_the_system_cannot_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.writing._exchange", lambda first, second: False)
    write_tree(tmp_path / "t", {"z": b"old"})
    write_tree(tmp_path / "t", {"y": b"new"}, force=True, replaces=("z",))
    assert os.listdir(tmp_path / "t") == ["y"]
    assert os.listdir(tmp_path) == ["t"]


def test_the_owners_files_are_the_owners(tmp_path: Path) -> None:
    write_tree(tmp_path / "t", {"owner/a": b"1", "b": b"2"})
    assert (tmp_path / "t/owner/a").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "t/b").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("force", [False, True])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, force: bool) -> None:
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from deploy.writing import write_tree, write_file\n"
        "from deploy.errors import StorageError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "place, force, large = Path(sys.argv[1]), bool(int(sys.argv[2])), b'2' * 5000\n"
        "for act in (lambda: write_tree(place / 't', {'a': b'1', 'b': large}, force=force),\n"
        "            lambda: write_file(place / 'f', large, force=force)):\n"
        "    try:\n"
        "        act()\n"
        "    except StorageError as error:\n"
        "        print(error)\n"
    )
    if force:
        write_tree(tmp_path / "t", {"a": b"old"})
        write_file(tmp_path / "f", b"old")
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(int(force))], capture_output=True, text=True, check=True
    )
    assert run.stdout.count("cannot be written: File too large") == 2
    assert sorted(os.listdir(tmp_path)) == (["f", "t"] if force else [])
    if force:
        assert (tmp_path / "t/a").read_bytes() == b"old"
        assert (tmp_path / "f").read_bytes() == b"old"


def test_a_place_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        StorageError, match=r"none/a: cannot be written: No such file or directory; make the folder"
    ):
        write_file(tmp_path / "none" / "a", b"")
    with pytest.raises(StorageError, match="make the folder first"):
        write_tree(tmp_path / "none" / "a", {"b": b""})


def test_an_interrupt_at_any_moment_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from deploy.writing import write_tree\n"
        "print('ready', flush=True)\n"
        "for count in range(10**6):\n"
        "    write_tree(Path(sys.argv[1]) / 't', {f'd{i}/f': b'%d' % count for i in range(20)}, force=True)\n"
    )
    delays = [0.005, 0.02, 0.05, 0.09, 0.11, 0.13]
    for delay in delays:
        run = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        time.sleep(delay)
        run.send_signal(signal.SIGINT)
        try:
            run.communicate(timeout=60)
        finally:
            run.kill()
        assert set(os.listdir(tmp_path)) <= {"t"}
        if (tmp_path / "t").exists():
            contents = {path.read_bytes() for path in (tmp_path / "t").rglob("f")}
            assert len(contents) == 1
            assert len(list((tmp_path / "t").rglob("f"))) == 20


@pytest.mark.parametrize("write", ["file", "tree"])
def test_of_two_writers_at_once_one_wins_and_one_is_told(tmp_path: Path, write: str) -> None:
    """Both have seen that nothing is there; the second comes to the last step when the first is done."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "import deploy.writing as writing\n"
        "from deploy.errors import OutputExists\n"
        "sync = writing._sync_tree, writing.os.fsync\n"
        "def wait(real):\n"
        "    def waiting(given):\n"
        "        real(given)\n"
        "        print('here', flush=True)\n"
        "        sys.stdin.readline()\n"
        "    return waiting\n"
        "place, what = Path(sys.argv[1]), sys.argv[2].encode()\n"
        "try:\n"
        "    if sys.argv[3] == 'tree':\n"
        "        writing._sync_tree = wait(sync[0])\n"
        "        writing.write_tree(place, {'a': what, 'b/c': what})\n"
        "    else:\n"
        "        writing.os.fsync = wait(sync[1])\n"
        "        writing.write_file(place, what)\n"
        "    print('done')\n"
        "except OutputExists as error:\n"
        "    print(error)\n"
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "out"), name, write],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("first", "second")
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "here\n"
    said = [writer.communicate("\n" * 9, timeout=60)[0] for writer in writers]
    assert "done" in said[0]
    assert "exists already" in said[1]
    assert os.listdir(tmp_path) == ["out"]
    found = tmp_path / "out" if write == "file" else tmp_path / "out/b/c"
    assert found.read_text() == "first"
