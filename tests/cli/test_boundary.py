"""What leaves the command: one exit code, data on stdout, words on stderr, no traceback unless asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.cli.app import find_command
from deploy.cli.main import run
from deploy.cli.verb import as_verb, environment_variable
from deploy.cli.verbs import VERBS
from deploy.errors import DeployError
from deploy.registry import Problem

HEAVY = {"torch", "tenseal", "onnx", "matplotlib", "numba", "onnxruntime", "cvxpy", "ray", "fastapi", "pyarrow"}
COMMAND = [sys.executable, "-c", "import sys; from deploy.cli.main import main; main()"]


def options_of(verb: str) -> Iterator[Any]:
    command = find_command(verb)
    assert command is not None
    for parameter in as_verb(verb, command).params:
        if parameter.param_type_name == "option" and parameter.name != "help":
            yield parameter


@pytest.mark.parametrize("arguments", [["--help"], ["convert", "--help"], ["-h"], []])
def test_help_loads_no_numerics(arguments: list[str]) -> None:
    found = subprocess.run(
        [sys.executable, "-X", "importtime", *COMMAND[1:], *arguments], capture_output=True, text=True, check=True
    )
    assert "Usage: relu-deploy" in found.stdout
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in found.stderr.splitlines()}
    assert "typer" in loaded
    assert not loaded & (HEAVY | {"numpy", "scipy", "sklearn", "joblib"})


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_has_an_environment_variable_and_a_meaning(verb: str) -> None:
    for option in options_of(verb):
        assert str(option.envvar).startswith("RELU_DEPLOY_"), option.name
        assert option.help, option.name


def test_no_two_options_of_a_verb_share_a_variable() -> None:
    for verb in VERBS:
        variables = [option.envvar for option in options_of(verb)]
        assert len(set(variables)) == len(variables), verb


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "--help"]) == 0
    found = capsys.readouterr()
    assert f"relu-deploy {verb}" in found.out
    assert found.err == ""


@pytest.mark.parametrize("verb", VERBS)
def test_help_fits_a_terminal_and_names_the_rule_of_variables_once(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run([verb, "--help"]) == 0
    found = capsys.readouterr().out
    assert max(map(len, found.splitlines())) <= 100
    assert found.count("RELU_DEPLOY_FAIL_UNDER") == 1
    assert "<bool>" not in found
    for option in options_of(verb):
        unusual = option.envvar != environment_variable(option.opts[0])
        shown = f"[env var: {option.envvar}]" in " ".join(found.replace("│", " ").split())
        assert shown is unusual, option.name


@pytest.mark.parametrize(
    ("arguments", "code", "cause"),
    [
        (["convrt"], 2, "no verb 'convrt'"),
        (["targets", "--no-such-option"], 2, "No such option: --no-such-option"),
        (["convert"], 2, "Missing argument 'MODEL|BUNDLE'"),
        (["evaluate", "b"], 2, "Missing option '--data'"),
        (["evaluate", "b", "--data", "x", "--real", "-1"], 2, "Invalid value for '--real'"),
        (["evaluate", "no-such-bundle", "--data", "x"], 4, "no such bundle"),
        (["inspect", "no-such-model.onnx"], 4, "no such file"),
        (["inspect", "x" * 5000], 4, "File name too long"),
    ],
)
def test_an_error_is_one_document_and_one_message(
    arguments: list[str], code: int, cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "--json"]) == code
    found = capsys.readouterr()
    document = json.loads(found.out)["error"]
    assert cause in document["cause"]
    assert set(document) == {"code", "cause", "place", "remedy"}
    assert document["remedy"] or code == 4
    assert cause in found.err
    assert "Traceback" not in found.err
    assert run(arguments) == code
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("arguments", [["--json", "targets"], ["-q", "--json", "targets"], ["targets", "--json"]])
def test_common_flags_stand_before_the_verb_or_behind_it(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 0
    assert "targets" in json.loads(capsys.readouterr().out)


def test_the_variable_stands_for_the_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RELU_DEPLOY_JSON", "1")
    assert run(["targets"]) == 0
    assert "targets" in json.loads(capsys.readouterr().out)
    monkeypatch.setenv("RELU_DEPLOY_DATA", "rows.npz")
    assert run(["evaluate", "no-such-bundle"]) == 4
    assert json.loads(capsys.readouterr().out)["error"]["cause"] == "no such bundle"


def test_an_unexpected_error_says_how_to_see_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode() -> None:
        raise ZeroDivisionError("nobody foresaw this")

    monkeypatch.setattr("deploy.registry.problems", explode)
    assert run(["targets"]) == 1
    found = capsys.readouterr()
    assert "unexpected ZeroDivisionError: nobody foresaw this" in found.err
    assert "--debug" in found.err
    assert "Traceback" not in found.err
    assert run(["targets", "--debug"]) == 1
    assert "in explode" in capsys.readouterr().err


def test_an_interrupt_gives_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("deploy.registry.problems", interrupt)
    assert run(["targets", "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "interrupted"


def test_a_reader_that_goes_early_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as gone:
        found = subprocess.run([*COMMAND, "targets"], stdout=gone, stderr=subprocess.PIPE, text=True)
    assert found.returncode == 0
    assert found.stderr == ""


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize(("arguments", "code"), [(["targets"], 0), (["inspect", "nowhere.onnx"], 4)])
def test_closed_streams_change_no_exit_code(closed: tuple[int, ...], arguments: list[str], code: int) -> None:
    def close() -> None:
        for stream in closed:
            os.close(stream)

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        found = subprocess.run(
            [*COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=err, preexec_fn=close
        )
        err.seek(0)
        assert b"Traceback" not in err.read()
    assert found.returncode == code


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("name", ["\u0142\U0001f600.onnx", os.fsdecode(b"\xff\xfe.onnx"), "a\nb.onnx"])
def test_no_file_name_and_no_encoding_ends_in_a_traceback(encoding: str, name: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    found = subprocess.run([*COMMAND, "inspect", name, "--json"], capture_output=True, env=environment)
    assert found.returncode == 4
    assert b"Traceback" not in found.stderr
    assert json.loads(found.stdout.decode(encoding))["error"]["cause"] == "no such file"


def test_an_answer_that_cannot_be_written_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("deploy.options.describe_options", lambda options: float("inf"))
    assert run(["targets", "--json"]) == 1
    found = capsys.readouterr()
    assert json.loads(found.out)["error"]["code"] == "internal"
    assert "Traceback" not in found.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_stdout_is_an_error() -> None:
    with Path("/dev/full").open("wb") as full:
        found = subprocess.run([*COMMAND, "targets"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert found.returncode == 1
    assert "stdout cannot be written: No space left on device" in found.stderr
    assert "Traceback" not in found.stderr


def test_nothing_is_coloured_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    found = subprocess.run([*COMMAND, "convert", "--help"], capture_output=True, text=True, check=True)
    assert "\x1b" not in found.stdout + found.stderr


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("relu-deploy ")


def test_a_name_cannot_move_the_cursor_of_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "\x1b[2J\x9b31m.onnx"]) == 4
    assert "\\x1b[2J\\x9b31m.onnx: no such file" in capsys.readouterr().err


def test_what_a_terminal_shows_has_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("deploy.registry.problems", lambda: [Problem("x", DeployError("\x1b]0;title\x07"))])
    assert run(["targets"]) == 0
    assert "\x1b" in capsys.readouterr().out  # a file gets the bytes
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(["targets"]) == 0
    assert "\\x1b]0;title\\x07" in capsys.readouterr().out


@pytest.mark.parametrize("presses", [1, 3])
def test_an_import_is_finished_before_ctrl_c_is_heard(tmp_path: Path, presses: int) -> None:
    """Half-done imports of modules in C and Rust end in other errors, or in an abort."""
    (tmp_path / "pressed.py").write_text(
        "import os, signal, time\n"
        f"for _ in range({presses}):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(0.05)\n"
        "print('imported', flush=True)\n"
    )
    code = (
        "import deploy.registry, time\n"
        "from deploy.cli.main import main\n"
        "def problems():\n"
        "    import pressed\n"
        "    time.sleep(30)\n"
        "deploy.registry.problems = problems\n"
        "main()\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, "targets"], capture_output=True, text=True, timeout=25, cwd=tmp_path
    )
    assert (found.returncode, found.stdout, found.stderr) == (130, "imported\n", "interrupted\n")
