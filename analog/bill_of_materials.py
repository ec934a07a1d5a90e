"""What to buy: parts by kind and preferred value, and the circuit that they make.

Axes: ``resistors``.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import dataclass

import numpy as np

from analog.circuit import ROLES, Circuit
from analog.e_series import Series, round_to_series
from deploy.arrays import Array

__all__ = ["BomLine", "bill_of_materials", "round_resistors", "rounding_error", "write_bill_csv"]

_SCALES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"))


@dataclass(frozen=True, slots=True)
class BomLine:
    """One line: what, its value with unit ("10 kohm"; a model's name), how many, what for."""

    part: str
    value: str
    quantity: int
    roles: tuple[str, ...]


def round_resistors(circuit: Circuit, series: Series) -> Circuit:
    """Round every resistor to the nearest value of a series; the sign of a negative one stays.

    >>> from analog.build import CircuitBuilder
    >>> wires = CircuitBuilder()
    >>> a = wires.node("a")
    >>> wires.resistor(a, 0, [10_400.0, -950.0])
    >>> round_resistors(wires.build(), "E24").resistors.ohm.tolist()
    [10000.0, -910.0]
    """
    ohm = circuit.resistors.ohm
    rounded = np.sign(ohm) * round_to_series(np.abs(ohm), series)
    return circuit.with_(resistors=circuit.resistors.with_(ohm=rounded))


def rounding_error(circuit: Circuit, series: Series) -> float:
    """Largest relative change that rounding makes to a resistor; 0 where there is none."""
    ohm = np.abs(circuit.resistors.ohm)
    return float(np.max(np.abs(round_to_series(ohm, series) / ohm - 1), initial=0.0))


def bill_of_materials(circuit: Circuit, series: Series) -> tuple[BomLine, ...]:
    """List the parts, resistors rounded to `series` and sorted by value.

    Amplifiers are listed by gain: an E element stands for one buffered stage, a gyrator for two transconductors.

    >>> from analog.build import CircuitBuilder
    >>> from analog.devices import D1N4148
    >>> wires = CircuitBuilder()
    >>> a, b = wires.nodes(["a", "b"])
    >>> wires.resistor([a, a, b], 0, [9_990.0, 10_010.0, 4_700.0]); wires.diode(a, b, D1N4148)
    >>> [(line.part, line.value, line.quantity) for line in bill_of_materials(wires.build(), "E24")]
    [('resistor', '4.7 kohm', 1), ('resistor', '10 kohm', 2), ('diode', '1N4148', 1)]
    """
    lines = _resistors(round_resistors(circuit, series))
    lines += _counted(
        "diode", [circuit.models[k].name for k in circuit.diodes.model.tolist()], circuit.diodes.origin
    )
    for part, unit, kind in (("amplifier", "gain", "vcvs"), ("transconductor", "S", "vccs")):
        table = getattr(circuit, kind)
        values = getattr(table, table.numbers[0]).tolist()
        lines += _counted(
            part, [f"{unit} {v:.6g}" if unit == "gain" else f"{v:.6g} S" for v in values], table.origin
        )
    amps = circuit.op_amps
    lines += _counted("op-amp", [f"open-loop gain {gain:.6g}" for gain in amps.gain.tolist()], amps.origin)
    gyrators = circuit.gyrators
    lines += _counted("gyrator", [f"{abs(v):.6g} S" for v in gyrators.siemens.tolist()], gyrators.origin)
    return tuple(lines)


def write_bill_csv(lines: tuple[BomLine, ...]) -> str:
    """The bill as CSV with the columns part, value, quantity, used for."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["part", "value", "quantity", "used for"])
    writer.writerows([line.part, line.value, line.quantity, ", ".join(line.roles)] for line in lines)
    return text.getvalue()


def _resistors(circuit: Circuit) -> list[BomLine]:
    ohm, inverse, counts = np.unique(circuit.resistors.ohm, return_inverse=True, return_counts=True)
    roles = np.zeros((len(ohm), len(ROLES)), dtype=bool)
    roles[inverse, circuit.resistors.origin["role"]] = True
    return [
        BomLine("resistor", _engineering(float(v), "ohm"), int(n), tuple(np.array(ROLES)[used].tolist()))
        for v, n, used in zip(ohm, counts, roles, strict=True)
    ]


def _counted(part: str, values: list[str], origin: Array) -> list[BomLine]:
    counts = Counter(values)
    roles: dict[str, dict[str, None]] = {value: {} for value in counts}
    for value, role in zip(values, origin["role"].tolist(), strict=True):
        roles[value][ROLES[role]] = None
    return [BomLine(part, value, count, tuple(roles[value])) for value, count in sorted(counts.items())]


def _engineering(value: float, unit: str) -> str:
    for scale, letter in _SCALES:
        if abs(value) >= scale:
            return f"{value / scale:.4g} {letter}{unit}"
    return f"{value:.4g} {unit}"
