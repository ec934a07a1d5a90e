"""Can it be built? What a circuit needs, and which limits it breaks, in numbers; nothing is clipped to fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from analog.circuit import ROLES, Circuit
from analog.options import CircuitOptions
from analog.survey import Survey
from deploy.arrays import Array

__all__ = ["Realisability", "report_realisability"]


@dataclass(frozen=True, slots=True)
class Realisability:
    """Counts, ranges, and sentences on what cannot be met.

    Parameters
    ----------
    active_parts : parts that need a supply, by role.
    ohm_low, ohm_median, ohm_high : range of the resistors.
    full_scale_V : largest hidden output over the calibration rows.
    violations : limits that are broken, with numbers and remedy; empty where it can be built as it is.
    notes : how it is realised (which parts stand for which part of the network).
    """

    resistors: int
    diodes: int
    active_parts: Mapping[str, int]
    ohm_low: float
    ohm_median: float
    ohm_high: float
    full_scale_V: float
    violations: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "resistors": self.resistors,
            "diodes": self.diodes,
            "active_parts": dict(self.active_parts),
            "ohm": [self.ohm_low, self.ohm_median, self.ohm_high],
            "full_scale_volts": self.full_scale_V,
            "violations": list(self.violations),
            "notes": list(self.notes),
        }


def report_realisability(
    circuit: Circuit, survey: Survey, options: CircuitOptions, notes: tuple[str, ...] = ()
) -> Realisability:
    """Judge a circuit by what its survey saw on the calibration rows."""
    ohm = circuit.resistors.ohm
    hidden = _nodes(circuit, "hidden") if _nodes(circuit, "hidden").size else _nodes(circuit, "amplified")
    full_scale = float(np.max(survey.high_V[hidden], initial=0.0))
    violations = [
        *_resistor_limits(circuit, options),
        *_swing(circuit, survey, options),
        *_reverse(circuit, survey),
    ]
    return Realisability(
        resistors=len(circuit.resistors),
        diodes=len(circuit.diodes),
        active_parts=_active_parts(circuit),
        ohm_low=float(np.min(np.abs(ohm), initial=np.inf)),
        ohm_median=float(np.median(np.abs(ohm))) if len(ohm) else np.inf,
        ohm_high=float(np.max(np.abs(ohm), initial=0.0)),
        full_scale_V=full_scale,
        violations=tuple(violations),
        notes=notes,
    )


def _nodes(circuit: Circuit, role: str) -> Array:
    return np.flatnonzero(circuit.node_origins["role"] == ROLES.index(role))


def _active_parts(circuit: Circuit) -> dict[str, int]:
    found: Counter[str] = Counter()
    for table, each in ((circuit.vcvs, 1), (circuit.vccs, 1), (circuit.op_amps, 1), (circuit.gyrators, 2)):
        for role, count in zip(*np.unique(table.origin["role"], return_counts=True), strict=True):
            found[ROLES[int(role)]] += each * int(count)
    return dict(sorted(found.items()))


def _resistor_limits(circuit: Circuit, options: CircuitOptions) -> list[str]:
    ohm = circuit.resistors.ohm
    found = []
    negative = int(np.count_nonzero(ohm < 0))
    if negative:
        found.append(f"{negative} resistors are negative; each needs an active part")
    if options.max_ohm > 0:
        over = int(np.count_nonzero(ohm > options.max_ohm))
        if over:
            found.append(
                f"{over} of {len(ohm)} resistors exceed {options.max_ohm:.3g} ohm (the largest is {ohm.max():.3g}); "
                "raise max_conductance_siemens or max_ohm, or leave them out and evaluate"
            )
    return found


def _swing(circuit: Circuit, survey: Survey, options: CircuitOptions) -> list[str]:
    found = []
    for nodes, what in ((circuit.vcvs.plus, "amplifier"), (circuit.op_amps.out, "op-amp")):
        if not len(nodes):
            continue
        swing = np.maximum(survey.high_V[nodes], -survey.low_V[nodes])
        over = int(np.count_nonzero(swing > options.supply_volts))
        if over:
            found.append(
                f"{over} of {len(nodes)} {what} outputs swing beyond {options.supply_volts:g} V over the calibration "
                f"rows (up to {swing.max():.1f} V); raise supply_volts or lower full_scale_volts"
                + ("; a clamped unit's negative swing may saturate without effect" if what == "amplifier" else "")
            )
    return found


def _reverse(circuit: Circuit, survey: Survey) -> list[str]:
    if not len(circuit.diodes):
        return []
    rated = np.array([model.reverse_V for model in circuit.models])[circuit.diodes.model]
    over = survey.reverse_V > rated
    if not over.any():
        return []
    worst = int(np.argmax(survey.reverse_V - rated))
    return [
        f"{int(over.sum())} diodes see more reverse voltage than their rating (up to {survey.reverse_V[worst]:.1f} V "
        f"of {rated[worst]:.0f} V); lower full_scale_volts or choose another diode"
    ]
