r"""Rectifier cells: what a hidden unit's diode does to its amplified sum.

With u = A s the amplified open-circuit sum, R the resistance that the diode sees, and a rail that offsets it
(docs/circuit-physics.md derives each):

==========  ==================================================  ===============================  =================
kind        parts                                               output v                         ideal diode
==========  ==================================================  ===============================  =================
clamp       A, series resistor, diode from a rail c to v        v = c - v_d,  c - u = v_d + R i   max(u, c)
shunt       diode from a rail c to the sum, A after it          v = A (c - v_d), R = 1 / G_t      max(u, A c)
series      A, diode to v, load R                               v = R i,  u = v_d + R i           max(u, 0)
superdiode  A, op-amp around a diode, load R                    v = R i                           max(u, 0)
==========  ==================================================  ===============================  =================

The rail of a series cell is a shift of its bias instead, for the drop of the diode; a superdiode has none.

Axes: ``batch``, ``units``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analog.conditions import Conditions
from analog.devices.diode import DiodeModel
from analog.options import CellKind
from analog.solve.loop import Junctions, solve_loops
from deploy.arrays import Array

__all__ = ["Cell", "respond"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A rectifier cell and its parts."""

    kind: CellKind
    diode: DiodeModel
    series_ohm: float = 1e4
    load_ohm: float = 1e4
    op_amp_gain: float = 1e3
    op_amp_rail_V: float = 12.0

    @property
    def takes_rail(self) -> bool:
        """Does a rail (or shift) compensate its diode?"""
        return self.kind != "superdiode" and not self.diode.ideal

    def with_(self, **changes: Any) -> Cell:
        """Copy with some parts replaced."""
        return replace(self, **changes)


def respond(
    cell: Cell, amplified: Array, rail_V: float, *, gain: float, total_S: float, conditions: Conditions
) -> Array:
    """Output (batch, units) in volts of cells whose amplified open-circuit sum is u (batch, units) volts.

    Parameters
    ----------
    rail_V : clamp rail; ignored by a series cell (its shift is part of the bias) and a superdiode.
    gain, total_S : A and G_t of the layer (a shunt cell sees its diode before the gain).
    """
    if cell.kind == "superdiode":
        return np.maximum(amplified, 0.0)
    junctions = Junctions.of((cell.diode,), np.zeros(1, dtype=int), conditions)
    flat = amplified.reshape(1, -1)
    if cell.kind == "series":
        current, _ = solve_loops(flat, np.array([cell.load_ohm]), junctions)
        return np.asarray(cell.load_ohm * current).reshape(amplified.shape)
    ohm, scale = (cell.series_ohm, 1.0) if cell.kind == "clamp" else (1 / total_S, gain)
    current, _ = solve_loops(rail_V - flat / scale, np.array([ohm]), junctions)
    return np.asarray(flat + scale * ohm * current).reshape(amplified.shape)
