"""What the package offers, and that importing it loads no numerics."""

import subprocess
import sys

import quantization

HEAVY = {"numpy", "scipy", "onnx", "onnxruntime", "llvmlite", "numba", "torch"}


def test_every_public_name_is_there_and_sorted():
    assert sorted(quantization.__all__) == quantization.__all__
    for name in quantization.__all__:
        assert getattr(quantization, name) is not None


def test_importing_the_target_loads_no_numerics():
    code = "import sys, quantization; quantization.target.commands(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not HEAVY & set(loaded)


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(quantization, "no_such_name")
