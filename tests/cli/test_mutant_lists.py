"""The lists of mutants keep up with the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RUNNER = Path(__file__).parents[1] / "mutants" / "run.py"


def test_every_mutant_can_still_be_applied() -> None:
    found = subprocess.run([sys.executable, RUNNER, "--check"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "mutants can be applied" in found.stdout
