"""An operating point to dozens of digits, to tell whose error a difference between two solvers is.

Every equation of the circuit is evaluated in decimal arithmetic from the elements' own numbers (each float64 stands
for exactly itself), none is eliminated, and nothing of the native solver is used:

* Kirchhoff's current law at each node but ground, with the currents of voltage-defined elements as unknowns;
* the law of each voltage source, VCVS and op-amp;
* v_anode - v_cathode = v_j + R_S i(v_j) of each diode, with i the law of :mod:`analog.devices.diode`.

Newton's correction is solved in float64: it needs few digits, since the next residual says what it missed
(iterative refinement; Higham, "Accuracy and Stability of Numerical Algorithms", chapter 12).

Axes: ``nodes``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, Overflow, localcontext
from typing import Any

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.linalg import splu

from analog.circuit import GROUND, Circuit, Sources
from analog.conditions import Conditions
from deploy.arrays import Array
from deploy.errors import InputError

__all__ = ["RefinedPoint", "refine_operating_point"]

_E = Decimal("2.7182818284590452353602874713526624977572470936999595749669676277240766303535")


@dataclass(frozen=True, eq=False)
class RefinedPoint:
    """Where an operating point is.

    Parameters
    ----------
    volts : (nodes,) voltages; ground is 0.
    last_step_V : largest change of a voltage by the last correction: the digits of `volts` are good to about this.
        Infinite where the start was so far off that an exponential overflowed.
    steps : corrections that were made.
    """

    volts: tuple[Decimal, ...]
    last_step_V: float
    steps: int

    def distance(self, volts: Array) -> float:
        """Largest |difference| (V) of node voltages (nodes,) from the point, each taken exactly; NaN stays NaN."""
        if not np.isfinite(volts).all():
            return float("nan")
        pairs = zip(self.volts, np.asarray(volts).tolist(), strict=True)
        return float(max(abs(exact - Decimal(given)) for exact, given in pairs))


def refine_operating_point(
    circuit: Circuit,
    x: Array,
    volts: Array,
    conditions: Conditions | None = None,
    *,
    digits: int = 40,
    limit: int = 200,
) -> RefinedPoint:
    """Correct approximate node voltages until they stand still in `digits` digits.

    Parameters
    ----------
    x : (n_in,) the row that drives the circuit.
    volts : (nodes,) where to start; whoever they come from, an operating point nearby is found.
    limit : corrections at most; `last_step_V` tells where they did not suffice.

    Raises
    ------
    InputError : the circuit has ideal diodes, whose law is no function of the voltage; `volts` are not finite.

    Examples
    --------
    >>> from analog.build import CircuitBuilder
    >>> from analog.devices import D1N4148
    >>> wires = CircuitBuilder()
    >>> a, b = wires.node("a"), wires.node("b")
    >>> wires.voltage_source(a, 0, 5.0); wires.resistor(a, b, 1e3); wires.diode(b, 0, D1N4148)
    >>> point = refine_operating_point(wires.build(), np.zeros(0), np.array([0.0, 5.0, 0.6]))
    >>> print(f"{point.volts[2]:.30f}", point.last_step_V < 1e-38)
    0.653228243018676608746448562457 True
    """
    if any(circuit.models[index].ideal for index in circuit.diodes.model.tolist()):
        raise InputError("an ideal diode has no law to refine", remedy="use a near-ideal one")
    if not np.isfinite(volts).all():
        raise InputError("the voltages to start from are not finite", remedy="start from a row that was solved")
    with localcontext() as context:
        context.prec = digits + 20
        equations = _Equations(circuit, np.asarray(x, dtype=np.float64), conditions or Conditions())
        unknowns = equations.start(np.asarray(volts, dtype=np.float64).tolist())
        goal, moved, steps = Decimal(10) ** -digits, Decimal("Infinity"), 0
        while moved > goal and steps < limit:
            steps += 1
            try:
                residual, jacobian = equations.evaluate(unknowns)
            except Overflow:
                moved = Decimal("Infinity")
                break
            correction = _solve(jacobian, residual)
            unknowns = [old - new for old, new in zip(unknowns, correction, strict=True)]
            moved = max((abs(value) for value in correction[: equations.voltages]), default=Decimal(0))
    found = (Decimal(0), *unknowns[: equations.voltages])
    return RefinedPoint(found, float(moved), steps)


def _solve(jacobian: Sequence[tuple[int, int, float]], residual: list[Decimal]) -> list[Decimal]:
    """jacobian^-1 residual to float64's accuracy relative to the largest residual, rows scaled to one another."""
    rows, columns, values = (np.array(column) for column in zip(*jacobian, strict=True))
    n = len(residual)
    scale = np.zeros(n)
    np.maximum.at(scale, rows, np.abs(values))
    matrix = coo_matrix((values / scale[rows], (rows, columns)), shape=(n, n)).tocsc()
    scaled = [value / Decimal(row) for value, row in zip(residual, scale.tolist(), strict=True)]
    largest = max((abs(value) for value in scaled), default=Decimal(0)) or Decimal(1)
    solved = splu(matrix).solve(np.array([float(value / largest) for value in scaled]))
    return [Decimal(value) * largest for value in solved.tolist()]


class _Equations:
    """Unknowns: node voltages without ground, junction voltages, currents of voltage-defined elements."""

    def __init__(self, circuit: Circuit, x: Array, conditions: Conditions) -> None:
        self._circuit = circuit
        self._gmin = Decimal(conditions.gmin)
        self._models = [
            (Decimal(m.slope_V(conditions.celsius)), Decimal(m.saturation(conditions.celsius)), m)
            for m in circuit.models
        ]
        self._volts = _levels(circuit.voltage_sources, x)
        self._amps = _levels(circuit.current_sources, x)
        self.voltages = circuit.n_nodes - 1
        self._first_branch = self.voltages + len(circuit.diodes)

    def start(self, volts: list[float]) -> list[Decimal]:
        """Unknowns for approximate node voltages; branch currents 0 (they are linear, one step finds them)."""
        c = self._circuit
        across = [volts[a] - volts[k] for a, k in zip(*_lists(c.diodes.anode, c.diodes.cathode), strict=True)]
        branches = len(c.voltage_sources) + len(c.vcvs) + len(c.op_amps)
        return [Decimal(value) for value in (*volts[1:], *across, *[0.0] * branches)]

    def evaluate(self, unknowns: list[Decimal]) -> tuple[list[Decimal], list[tuple[int, int, float]]]:
        """Residual of each equation, and the Jacobian's entries (row, column, value)."""
        self._v = [Decimal(0), *unknowns[: self.voltages]]
        self._F = [Decimal(0)] * len(unknowns)
        self._J: list[tuple[int, int, float]] = []
        self._add_linear()
        self._add_diodes(unknowns[self.voltages : self._first_branch])
        self._add_branches(unknowns[self._first_branch :])
        return self._F, self._J

    def _flow(self, plus: int, minus: int, amps: Decimal) -> None:
        """A current that leaves node `plus` and enters `minus`."""
        if plus != GROUND:
            self._F[plus - 1] += amps
        if minus != GROUND:
            self._F[minus - 1] -= amps

    def _slope(self, row: int, node: int, value: float) -> None:
        if node != GROUND:
            self._J.append((row, node - 1, value))

    def _flow_slope(self, plus: int, minus: int, column: int, value: float) -> None:
        if plus != GROUND:
            self._J.append((plus - 1, column, value))
        if minus != GROUND:
            self._J.append((minus - 1, column, -value))

    def _transconduct(self, plus: int, minus: int, control_plus: int, control_minus: int, siemens: Decimal) -> None:
        self._flow(plus, minus, siemens * (self._v[control_plus] - self._v[control_minus]))
        for node, sign in ((control_plus, 1.0), (control_minus, -1.0)):
            if node != GROUND:
                self._flow_slope(plus, minus, node - 1, sign * float(siemens))

    def _add_linear(self) -> None:
        c = self._circuit
        for a, b, ohm in zip(*_lists(c.resistors.a, c.resistors.b, c.resistors.ohm), strict=True):
            self._transconduct(a, b, a, b, 1 / Decimal(ohm))
        g = c.vccs
        for plus, minus, control_plus, control_minus, siemens in zip(
            *_lists(g.plus, g.minus, g.control_plus, g.control_minus, g.siemens), strict=True
        ):
            self._transconduct(plus, minus, control_plus, control_minus, Decimal(siemens))
        y = c.gyrators
        for ap, am, bp, bm, siemens in zip(
            *_lists(y.a_plus, y.a_minus, y.b_plus, y.b_minus, y.siemens), strict=True
        ):
            self._transconduct(ap, am, bp, bm, Decimal(siemens))
            self._transconduct(bp, bm, ap, am, -Decimal(siemens))
        for plus, minus, amps in zip(
            *_lists(c.current_sources.plus, c.current_sources.minus), self._amps, strict=True
        ):
            self._flow(plus, minus, amps)

    def _add_diodes(self, junctions: list[Decimal]) -> None:
        d = self._circuit.diodes
        for k, (anode, cathode, index) in enumerate(zip(*_lists(d.anode, d.cathode, d.model), strict=True)):
            slope, saturation, model = self._models[index]
            amps, siemens = _law(junctions[k], slope, saturation, self._gmin)
            row = self.voltages + k
            self._flow(anode, cathode, amps)
            self._flow_slope(anode, cathode, row, float(siemens))
            series = Decimal(model.series_ohm)
            self._F[row] = self._v[anode] - self._v[cathode] - junctions[k] - series * amps
            self._slope(row, anode, 1.0)
            self._slope(row, cathode, -1.0)
            self._J.append((row, row, -1.0 - float(series * siemens)))

    def _add_branches(self, currents: list[Decimal]) -> None:
        c, row = self._circuit, self._first_branch
        v, e, o = c.voltage_sources, c.vcvs, c.op_amps
        laws: list[tuple[int, int, int, int, Decimal, Decimal]] = []
        for plus, minus, level in zip(*_lists(v.plus, v.minus), self._volts, strict=True):
            laws.append((plus, minus, GROUND, GROUND, level, Decimal(0)))
        for *ends, gain in zip(*_lists(e.plus, e.minus, e.control_plus, e.control_minus, e.gain), strict=True):
            controlled = self._v[ends[2]] - self._v[ends[3]]
            laws.append((*ends, Decimal(gain) * controlled, Decimal(gain)))
        columns = _lists(o.out, o.plus, o.minus, o.gain, o.offset, o.low, o.high)
        for out, plus, minus, *numbers in zip(*columns, strict=True):
            output, gain = _saturate(self._v[plus] - self._v[minus], *(Decimal(number) for number in numbers))
            laws.append((out, GROUND, plus, minus, output, gain))
        for k, (plus, minus, control_plus, control_minus, level, gain) in enumerate(laws):
            self._flow(plus, minus, currents[k])
            self._flow_slope(plus, minus, row + k, 1.0)
            self._F[row + k] = self._v[plus] - self._v[minus] - level
            for node, value in (
                (plus, 1.0),
                (minus, -1.0),
                (control_plus, -float(gain)),
                (control_minus, float(gain)),
            ):
                self._slope(row + k, node, value)


def _lists(*columns: Array) -> list[list[Any]]:
    return [column.tolist() for column in columns]


def _levels(sources: Sources, x: Array) -> list[Decimal]:
    """Exact levels: value + per_unit x[input]."""
    columns = (sources.value, sources.per_unit, sources.input)
    return [
        Decimal(value) + (Decimal(per_unit) * Decimal(float(x[index])) if index >= 0 else 0)
        for value, per_unit, index in zip(*_lists(*columns), strict=True)
    ]


def _law(v: Decimal, slope: Decimal, saturation: Decimal, gmin: Decimal) -> tuple[Decimal, Decimal]:
    """Current and conductance of a junction."""
    if v >= -3 * slope:
        grown = saturation * (v / slope).exp()
        return grown - saturation + gmin * v, grown / slope + gmin
    cubic = (3 * slope / (_E * v)) ** 3
    return -saturation * (1 + cubic) + gmin * v, 3 * saturation * cubic / v + gmin


def _saturate(
    across: Decimal, gain: Decimal, offset: Decimal, low: Decimal, high: Decimal
) -> tuple[Decimal, Decimal]:
    """Output of an op-amp and its derivative by the input."""
    middle, half = (low + high) / 2, (high - low) / 2
    e = (-2 * abs(gain * (across + offset) / half)).exp()
    tanh = (1 - e) / (1 + e)
    return middle + half * tanh.copy_sign(across + offset), gain * (1 - tanh * tanh)
