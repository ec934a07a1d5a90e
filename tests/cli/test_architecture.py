"""The division of knowledge is kept by machine, and the set-up needs nothing that it does not say."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("deploy", "fhe", "quantization", "analog")
LINT = "from importlinter.cli import lint_imports; import sys; sys.exit(lint_imports(no_cache=True))"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("quantization/planted.py", "import fhe.options", "Targets never import each other"),
        ("analog/planted.py", "from quantization import target", "Targets never import each other"),
        ("deploy/planted.py", "def hidden():\n    import analog", "The trunk never imports a target"),
    ],
)
def test_a_planted_cross_import_is_rejected(copy: Path, file: str, line: str, contract: str) -> None:
    (copy / file).write_text(line + "\n")
    found = subprocess.run([sys.executable, "-c", LINT], cwd=copy, capture_output=True, text=True, check=False)
    assert found.returncode == 1, found.stdout + found.stderr
    assert f"{contract} BROKEN" in found.stdout


def test_the_wheel_holds_the_four_packages_and_every_target_is_registered() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == list(PACKAGES)
    entries = project["project"]["entry-points"]["deploy.targets"]
    assert {value.split(":")[0] for value in entries.values()} <= set(PACKAGES) - {"deploy"}


def test_every_package_is_typed() -> None:
    assert all((ROOT / package / "py.typed").is_file() for package in PACKAGES)


def test_importing_the_trunk_loads_nothing_heavy() -> None:
    code = "import deploy, sys; print(*sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "torch", "tenseal", "onnx", "matplotlib", "scipy"} & set(found.stdout.split())


def test_no_module_outgrows_a_head() -> None:
    """400 lines is where to think again; past 600 a module says more than one thing."""
    long = {
        str(path.relative_to(ROOT)): lines
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 600
    }
    assert long == {}
