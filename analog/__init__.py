"""Resistor-diode circuits: compilers, native solver, netlists, SPICE engines, studies.

Importing this package loads no numerics; names are looked up when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analog.build import CircuitBuilder
    from analog.circuit import Circuit
    from analog.circuit_target import CircuitTarget
    from analog.conditions import Conditions
    from analog.devices.diode import DiodeModel
    from analog.solution import Solution
    from analog.solve.plan import plan_circuit

    target: CircuitTarget

__all__ = ["Circuit", "CircuitBuilder", "Conditions", "DiodeModel", "Solution", "plan_circuit", "target"]

_HOMES = {
    "Circuit": "analog.circuit",
    "CircuitBuilder": "analog.build",
    "Conditions": "analog.conditions",
    "DiodeModel": "analog.devices.diode",
    "Solution": "analog.solution",
    "plan_circuit": "analog.solve.plan",
}


def __getattr__(name: str) -> Any:
    if name == "target":
        from analog.circuit_target import CircuitTarget

        return CircuitTarget()
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
