"""The toy target, registered as any other: by the entry point of a distribution on the path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

TOY = Path(__file__).parent / "toy"


@pytest.fixture(scope="module", autouse=True)
def toy_on_path() -> Iterator[None]:
    """Register the toy target in this process and in the ones it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TOY)
        patch.setenv("PYTHONPATH", str(TOY))
        yield
