"""The public names of fhe, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import fhe


def test_the_public_names_are_these():
    assert fhe.__all__ == [
        "CkksDeployment",
        "CkksOptions",
        "CkksTarget",
        "PolynomialNetwork",
        "separate",
        "target",
    ]
    assert sorted(dir(fhe)) == fhe.__all__
    for name in fhe.__all__:
        assert getattr(fhe, name) is not None


def test_the_target_is_light():
    code = "import sys, fhe; fhe.target.options; fhe.target.commands(); print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
