"""Progress for people, on stderr: bars where it is a terminal, plain lines where it is not."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deploy.progress import SILENT, Advance, Progress
from deploy.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

__all__ = ["draw_progress"]

PERIOD_S = 10.0
"""Between two lines of progress where stderr is no terminal."""


@contextmanager
def draw_progress(*, quiet: bool = False) -> Iterator[Progress]:
    """Give something that draws progress on stderr for the time of a ``with`` block."""
    if quiet:
        yield SILENT
    elif not sys.stderr.isatty():
        with _Lines(period_s=PERIOD_S) as lines:
            yield lines
    else:
        with _bars() as bars:
            yield _Drawn(bars)


class _Lines:
    """A line for the innermost stage every `period_s` seconds, for logs; what is said appears as it is."""

    def __init__(self, *, period_s: float) -> None:
        self._period_s = period_s
        self._stages: list[_Stage] = []
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> _Lines:
        self._clock.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Wait for the clock: a thread that writes while the interpreter ends would abort it."""
        self._ended.set()
        self._clock.join()

    def _tick(self) -> None:
        while not self._ended.wait(self._period_s):
            for stage in self._stages[-1:]:
                self.say(stage.line(time.monotonic()))

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Advance]:
        stage = _Stage(name, total, time.monotonic())
        self._stages.append(stage)
        try:
            yield stage.advance
        finally:
            self._stages.remove(stage)

    def say(self, line: str) -> None:
        try:
            print(printable(line), file=sys.stderr, flush=True)
        except (OSError, ValueError):  # whoever read it is gone, which is no reason to stop the work
            self._ended.set()


@dataclass(eq=False, slots=True)
class _Stage:
    name: str
    total: int | None
    started: float
    done: int = 0

    def advance(self, steps: int) -> None:
        self.done += steps

    def line(self, now: float) -> str:
        """Name, steps where some were counted, and seconds since the stage began."""
        of = "" if self.total is None else f" of {self.total}"
        count = f" {self.done}{of}," if self.done else ""
        return f"{self.name}:{count} {now - self.started:.0f} s"


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
        self._bars.console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
