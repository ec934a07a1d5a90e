"""The conditions of an operating point that are not in the netlist's elements."""

from __future__ import annotations

from dataclasses import dataclass

from analog.devices.diode import KELVIN
from deploy.errors import UsageError

__all__ = ["Conditions"]


@dataclass(frozen=True, slots=True)
class Conditions:
    """Ambient temperature (degrees Celsius) and the shunt conductance of every junction (S, SPICE's GMIN).

    >>> Conditions(celsius=-300.0)
    Traceback (most recent call last):
        ...
    deploy.errors.UsageError: -300 degrees Celsius is below absolute zero
    """

    celsius: float = 27.0
    gmin: float = 1e-12

    def __post_init__(self) -> None:
        if not self.celsius > -KELVIN:
            raise UsageError(f"{self.celsius:g} degrees Celsius is below absolute zero")
        if not 0 <= self.gmin < 1:
            raise UsageError(f"gmin = {self.gmin} S must lie in [0, 1)")
