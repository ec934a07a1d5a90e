"""Progress for people, on stderr: bars where it is a terminal, plain lines where it is not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from deploy.progress import SILENT, Advance, Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

__all__ = ["draw_progress"]


@contextmanager
def draw_progress(*, quiet: bool = False) -> Iterator[Progress]:
    """Give something that draws progress on stderr for the time of a ``with`` block."""
    if quiet:
        yield SILENT
    elif not sys.stderr.isatty():
        yield _Lines()
    else:
        with _bars() as bars:
            yield _Drawn(bars)


class _Lines:
    """No bar; what is said appears as it is."""

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Advance]:
        yield lambda steps: None

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def _bars() -> Bars:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    return Bars(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


class _Drawn:
    """One bar for each stage; it goes when the stage ends."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Advance]:
        bar = self._bars.add_task(name, total=total)
        try:
            yield lambda steps: self._bars.advance(bar, steps)
        finally:
            self._bars.remove_task(bar)

    def say(self, line: str) -> None:
        self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)
