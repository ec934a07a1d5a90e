"""How the driven sources of a circuit get their levels: held, swept over rows, or stepped in time.

Axes: ``rows``, ``sources`` (one table of :class:`analog.circuit.Sources`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from analog.circuit import Sources
from deploy.arrays import Array

__all__ = ["SWEEP_SOURCE", "Drive", "Hold", "Step", "Sweep"]

SWEEP_SOURCE = "vsweep"
"""Name of the source whose voltage is the row number in a sweep."""
_SWEEP_NODE = "sweep_row"
"""Its node, which :func:`analog.netlist.names.legal_name` gives to no other."""


class Drive(Protocol):
    """Writes the source cards of one circuit."""

    def preamble(self) -> Sequence[str]:
        """Cards that come first."""
        ...

    def cards(self, letter: str, names: Sequence[str], nodes: Sequence[str], table: Sources) -> Sequence[str]:
        """One card per source; `letter` is "v" or "i", `names` come without it, `nodes` are all node names."""
        ...


@dataclass(frozen=True, eq=False)
class Hold:
    """Every source at the level of one row x (n_in,)."""

    x: Array

    def preamble(self) -> Sequence[str]:
        """Nothing."""
        return ()

    def cards(self, letter: str, names: Sequence[str], nodes: Sequence[str], table: Sources) -> Sequence[str]:
        """``vname plus minus level``."""
        levels = table.levels(self.x[None])[0].tolist()
        return [
            f"{letter}{name} {nodes[plus]} {nodes[minus]} {level!r}"
            for name, plus, minus, level in zip(names, *_ends(table), levels, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class Step:
    """Every source goes from row `before` to row `after` (n_in,) at `at_s`, linearly within `rise_s`."""

    before: Array
    after: Array
    at_s: float
    rise_s: float

    def preamble(self) -> Sequence[str]:
        """Nothing."""
        return ()

    def cards(self, letter: str, names: Sequence[str], nodes: Sequence[str], table: Sources) -> Sequence[str]:
        """``vname plus minus pwl(…)`` for driven sources, a level for constant ones."""
        first, last = table.levels(np.stack([self.before, self.after])).tolist()
        end = self.at_s + self.rise_s
        return [
            f"{letter}{name} {nodes[plus]} {nodes[minus]} "
            + (f"{a!r}" if a == b else f"pwl(0 {a!r} {self.at_s!r} {a!r} {end!r} {b!r})")
            for name, plus, minus, a, b in zip(names, *_ends(table), first, last, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class Sweep:
    """Rows x (rows, n_in) as functions of one swept voltage: sample k is read where ``vsweep`` = k.

    One ``dc`` analysis then visits every row, without set-up and with a warm start: the fastest honest way to
    have ngspice solve many rows. Points are written with 17 digits (9 would cost 1e-7 V).
    """

    x: Array

    def preamble(self) -> Sequence[str]:
        """The swept source."""
        return (f"{SWEEP_SOURCE} {_SWEEP_NODE} 0 0",)

    def analysis(self) -> str:
        """The analysis command, without its dot."""
        return f"dc {SWEEP_SOURCE} 0 {len(self.x) - 1} 1"

    def cards(self, letter: str, names: Sequence[str], nodes: Sequence[str], table: Sources) -> Sequence[str]:
        """``bname plus minus v=pwl(v(sweep_row), …)``; a mirror of an earlier source follows it by ``e``."""
        levels = table.levels(self.x)
        lines = []
        leaders: dict[int, int] = {}
        columns = zip(names, *_ends(table), table.input.tolist(), strict=True)
        for index, (name, plus, minus, given) in enumerate(columns):
            ends = f"{nodes[plus]} {nodes[minus]}"
            leader = leaders.get(given)
            if given < 0:
                lines.append(f"{letter}{name} {ends} {float(table.value[index])!r}")
            elif letter == "v" and leader is not None and (levels[:, index] == -levels[:, leader]).all():
                control = f"{nodes[int(table.plus[leader])]} {nodes[int(table.minus[leader])]}"
                lines.append(f"e{name} {ends} {control} -1")
            else:
                leaders.setdefault(given, index)
                lines.append(f"b{name} {ends} {letter}={self._pwl(levels[:, index])}")
        return lines

    def _pwl(self, levels: Array) -> str:
        points = levels.tolist()
        points += points[-1:] if len(points) == 1 else []
        return "pwl(v(" + _SWEEP_NODE + ")," + ",".join(f"{k},{level!r}" for k, level in enumerate(points)) + ")"


def _ends(table: Sources) -> tuple[list[int], list[int]]:
    return table.plus.tolist(), table.minus.tolist()
