"""doctor says what is missing, why, and the line that installs it."""

from __future__ import annotations

import importlib.metadata
import json

import pytest

from deploy.cli.main import run
from deploy.errors import ShadowError
from deploy.registry import Problem


def ask(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict]:
    code = run(["doctor", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_complete_installation_has_no_problem(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = ask(capsys)
    assert code == 0
    assert document["problems"] == []
    assert {"circuit", "ckks", "ternary"} <= set(document["targets"])
    assert "tenseal" in document["extras"]["ckks"]["packages"]
    assert run(["doctor"]) == 0
    assert "target ckks is registered" in capsys.readouterr().out


def test_a_missing_package_is_named_with_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == "tenseal":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert ask(capsys)[1]["extras"]["ckks"]["packages"]["tenseal"] is None
    assert run(["doctor"]) == 0
    assert 'missing tenseal; run: pip install "relu-deploy[ckks]"' in capsys.readouterr().out


def test_a_missing_program_is_named_with_where_it_was_looked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    _, document = ask(capsys)
    [problem] = [item["problem"] for item in document["targets"]["circuit"] if item["name"] == "ngspice"]
    assert "searched: /nowhere" in problem
    assert "apt-get install" in problem


def test_a_hidden_package_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    error = ShadowError("module fhe is ./fhe.py", remedy="rename that file")
    monkeypatch.setattr("deploy.registry.problems", lambda: (Problem("ckks", error),))
    code, document = ask(capsys)
    assert code == 1
    assert document["error"]["code"] == "shadowed"
    assert document["problems"] == ["module fhe is ./fhe.py; rename that file"]


def test_a_package_with_two_owners_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    owners = {"analog": ["relu-deploy", "analog"], "numpy": ["numpy"], "fhe": ["relu-deploy"]}
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: owners)
    code, document = ask(capsys)
    assert code == 1
    assert document["problems"] == ["package analog belongs to analog and relu-deploy"]
