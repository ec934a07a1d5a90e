"""A target for tests of the trunk, registered only while they run."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import copying_target
import pytest

import deploy.registry


@pytest.fixture
def copy_target(monkeypatch: pytest.MonkeyPatch) -> copying_target.CopyTarget:
    """The registry holds one target, ``copy``."""
    entry = EntryPoint("copy", "copying_target:target", deploy.registry.GROUP)
    monkeypatch.setattr(deploy.registry, "entry_points", lambda group: [entry])
    return copying_target.target
