"""What `import deploy` offers, and what it does not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

import deploy

HEAVY = {"torch", "tenseal", "onnx", "onnxruntime", "matplotlib", "h5py", "numba", "cvxpy", "flint", "scipy.stats"}


def test_every_public_name_resolves_and_no_other() -> None:
    assert deploy.__all__ == sorted(deploy.__all__)
    assert set(deploy._HOME) == set(deploy.__all__)
    for name in deploy.__all__:
        assert getattr(deploy, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = deploy.nothing
    assert dir(deploy) == deploy.__all__


@pytest.mark.parametrize("package", ["deploy", "fhe", "quantization", "analog"])
def test_importing_a_package_loads_nothing_heavy(package: str) -> None:
    code = f"import sys, {package}; print(*sorted(set(sys.modules)), sep='\\n')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert not loaded & HEAVY
    assert "numpy" not in loaded


def test_the_trunk_in_full_loads_no_optional_dependency() -> None:
    code = (
        "import sys, deploy\n"
        "for name in deploy.__all__: getattr(deploy, name)\n"
        "print(*sorted(set(sys.modules)), sep='\\n')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(run.stdout.split()) & HEAVY
