"""The toy target, registered as any other: by the entry point of a distribution on the path."""

from __future__ import annotations

from pathlib import Path

import pytest

TOY = Path(__file__).parent / "toy"


@pytest.fixture(autouse=True)
def toy_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the toy target in this process and in the ones it starts."""
    monkeypatch.syspath_prepend(TOY)
    monkeypatch.setenv("PYTHONPATH", str(TOY))
