"""What ``simulate`` offers for a circuit. Every study is picklable and its cases are a handful of numbers."""

from __future__ import annotations

from collections.abc import Mapping

from analog.circuit import ROLES
from analog.studies.points import CellTransfer, OperatingPoints
from analog.studies.subject import Subject, Variation
from analog.studies.transients import Settling, Waveform
from analog.studies.user_netlist import UserNetlistStudy
from analog.studies.variations import (
    AmplifierGain,
    AmplifierOffset,
    Corners,
    DiodeMismatch,
    ParameterSweep,
    Power,
    PreferredValues,
    ResistorTolerance,
    Temperature,
)
from deploy.study import Study

__all__ = ["Subject", "Variation", "circuit_studies"]


def circuit_studies(subject: Subject) -> Mapping[str, Study]:
    """Every study that makes sense for a circuit, by name; an equilibrium network has no cell to cut out."""
    found: dict[str, Study] = {
        "operating-points": OperatingPoints(subject),
        "cell-transfer": CellTransfer(subject),
        "resistor-tolerance": ResistorTolerance(subject),
        "diode-mismatch": DiodeMismatch(subject),
        "amplifier-offset": AmplifierOffset(subject),
        "amplifier-gain": AmplifierGain(subject),
        "temperature": Temperature(subject),
        "corners": Corners(subject),
        "preferred-values": PreferredValues(subject),
        "power": Power(subject),
        "settling": Settling(subject),
        "waveform": Waveform(subject),
        "parameter-sweep": ParameterSweep(subject),
        "netlist": UserNetlistStudy(subject),
    }
    if not (subject.circuit.node_origins["role"] == ROLES.index("amplified")).any():
        del found["cell-transfer"]
    return found
