"""Progress of long work, as the work sees it; the command draws it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

__all__ = ["SILENT", "Advance", "Progress"]

Advance = Callable[[int], None]


class Progress(Protocol):
    """Something that shows stages of work.

    >>> with SILENT.stage("fit layer 1", 10) as advance:
    ...     advance(10)
    """

    def stage(self, name: str, total: int | None = None) -> AbstractContextManager[Advance]:
        """Open a stage of `total` steps (None: unknown); call the value that ``with`` binds with steps done."""
        ...

    def say(self, line: str) -> None:
        """Tell people one line."""
        ...


class _Silent:
    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Advance]:
        yield lambda steps: None

    def say(self, line: str) -> None:
        return None


SILENT: Progress = _Silent()
"""Shows nothing: the default of every function that takes a `progress`."""
