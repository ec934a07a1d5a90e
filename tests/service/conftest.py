"""Servers for the tests: in-process applications and real processes, over test doubles of a target."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

STANDIN = str(Path(__file__).parent / "standin")


@pytest.fixture(scope="module")
def standin() -> Iterator[str]:
    """Make the stand-in targets known to this process and to the workers that it starts."""
    before = os.environ.get("PYTHONPATH")
    sys.path.insert(0, STANDIN)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (STANDIN, before)))
    try:
        yield STANDIN
    finally:
        sys.path.remove(STANDIN)
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="session")
def digits_bundle(tmp_path_factory) -> Path:
    """The shipped digits model, converted for ckks."""
    import deploy
    from deploy.demo import CALIBRATION, MODEL
    from deploy.registry import target

    options = deploy.parse_options({"ckks": target("ckks")})
    path = tmp_path_factory.mktemp("digits") / "digits.bundle"
    deploy.convert(deploy.load(MODEL), deploy.Calibration.read(CALIBRATION), options).write(path)
    return path
