"""Fixtures that every test may use."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

# No deadline: no test may depend on how fast the machine is. The same examples in every run.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")

# A shell that starts a job in the background makes it ignore Ctrl-C, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def inputs() -> Path:
    """Folder of real models and data (RELU_DEPLOY_INPUTS); a test that asks for it is skipped without it."""
    folder = os.environ.get("RELU_DEPLOY_INPUTS")
    if not folder:
        pytest.skip("RELU_DEPLOY_INPUTS is not set: real models and data are not at hand")
    path = Path(folder).resolve()
    if not path.is_dir():
        pytest.fail(f"RELU_DEPLOY_INPUTS={folder} is no folder")
    return path


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers, the same in every run."""
    return np.random.default_rng(20260522)
