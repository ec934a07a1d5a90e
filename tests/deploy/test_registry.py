"""Targets are found by entry point, and a file that hides one is named."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import copying_target
import pytest

import deploy.registry
from deploy.errors import ShadowError, UsageError
from deploy.registry import nearest, problems, target, target_names, targets
from deploy.target import Target


def test_a_registered_target_is_found(copy_target: copying_target.CopyTarget) -> None:
    assert target_names() == ("copy",)
    assert target("copy") is copy_target
    assert isinstance(copy_target, Target)
    assert list(targets()) == ["copy"]
    assert problems() == ()


@pytest.mark.usefixtures("copy_target")
def test_an_unknown_target_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no target 'cpoy'; did you mean copy\? known: copy"):
        target("cpoy")
    assert nearest("zzz", ["copy"]) == "known: copy"
    assert nearest("zzz", []) == "known: none"


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ("no_such_package_at_all:target", "package no_such_package_at_all is not installed"),
        ("copying_target:nothing", "cannot be imported"),
        ("copying_target.deeper:target", "cannot be imported"),
    ],
)
def test_a_broken_target_is_a_problem_and_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, value: str, match: str
) -> None:
    good = EntryPoint("copy", "copying_target:target", deploy.registry.GROUP)
    bad = EntryPoint("bad", value, deploy.registry.GROUP)
    monkeypatch.setattr(deploy.registry, "entry_points", lambda group: [good, bad])
    assert list(targets()) == ["copy"]
    [problem] = problems()
    assert problem.name == "bad"
    with pytest.raises(ShadowError, match=match):
        target("bad")


def test_a_file_that_hides_a_target_is_named_and_never_run(tmp_path: Path) -> None:
    package = tmp_path / "site" / "shadow_victim"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("target = 'the real one'\n")
    info = tmp_path / "site" / "shadow_victim-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shadow-victim\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[deploy.targets]\nvictim = shadow_victim:target\n")
    here = tmp_path / "here"
    here.mkdir()
    (here / "shadow_victim.py").write_text("raise SystemExit('the hiding file was run')\n")
    code = (
        "import sys; sys.path.append(sys.argv[1])\n"
        "from deploy.registry import target\n"
        "from deploy.errors import ShadowError\n"
        "try:\n    print(target('victim'))\n"
        "except ShadowError as error:\n    print(error)\n"
    )
    (here / "main.py").write_text(code)
    site = str(tmp_path / "site")
    hidden = subprocess.run([sys.executable, "main.py", site], cwd=here, capture_output=True, text=True)
    assert (
        f"module shadow_victim is {here / 'shadow_victim.py'}, which is not the installed package" in hidden.stdout
    )
    assert "rename that file, or start Python with -P" in hidden.stdout
    clear = subprocess.run([sys.executable, "-P", "main.py", site], cwd=here, capture_output=True, text=True)
    assert clear.stdout == "the real one\n"
