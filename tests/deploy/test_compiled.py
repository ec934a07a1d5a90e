"""Kernels compile where numba has no place to keep them, and compile once where it has one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("numba")

NOWHERE = """
import numba.core.caching
numba.core.caching.CacheImpl._locator_classes = []
"""
FULL = """
import numba.core.caching
def full(self, signature, data):
    raise OSError(28, "No space left on device")
numba.core.caching.Cache.save_overload = full
numba.core.caching.FunctionCache.save_overload = full
"""
USE = """
import numba
from deploy.compiled import compiled
kernel = compiled(numba.int64(numba.int64))(lambda x: x + 1)
lazy = compiled()(lambda x: x + 2)
from analog.solve.kernel import wright_omega
print(kernel(1), lazy(1), wright_omega(1.0))
"""


@pytest.mark.parametrize("hindrance", ["", NOWHERE, FULL], ids=["writable", "no place", "disk full"])
def test_kernels_run_whether_or_not_they_can_be_kept(tmp_path, hindrance):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", hindrance + USE], capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stdout) == (0, "2 3 1.0\n"), done.stderr
    assert any(tmp_path.rglob("*.nbi")) == (hindrance == "")


def test_other_faults_of_a_kernel_are_not_hidden():
    import numba

    from deploy.compiled import compiled

    with pytest.raises(numba.TypingError):
        compiled(numba.int64(numba.int64))(lambda x: x.nothing)
