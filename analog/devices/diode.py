"""The junction diode of ngspice, exactly, in direct current.

With v_j the junction voltage, V_T = k (T + 273.15) / q, gmin the simulator's shunt and a saturation current
that moves with temperature,

    I_S(T) = I_S exp((T/T_nom - 1) EG / (N V_T) + (XTI / N) ln(T / T_nom))

    i(v_j) = I_S (exp(v_j / (N V_T)) - 1) + gmin v_j                        v_j >= -3 N V_T
    i(v_j) = -I_S (1 + (3 N V_T / (e v_j))^3) + gmin v_j                    otherwise

and RS ohms in series. Shockley's law alone is wrong by up to 1e-5 V in these circuits (docs/circuit-physics.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from deploy.arrays import Array
from deploy.errors import InputError

__all__ = ["KELVIN", "DiodeModel", "thermal_voltage"]

KELVIN = 273.15
BOLTZMANN = 1.38064852e-23
CHARGE = 1.6021766208e-19
"""Constants as ngspice writes them (CODATA 2014); newer ones move 0.6 V by 6e-8 V."""


def thermal_voltage(celsius: float) -> float:
    """k T / q in volts."""
    return BOLTZMANN / CHARGE * (celsius + KELVIN)


@dataclass(frozen=True, slots=True)
class DiodeModel:
    """Parameters of one diode, SI units, named as a SPICE model card names them in its second column.

    Parameters
    ----------
    saturation_A (IS), emission (N), series_ohm (RS) : direct current.
    gap_eV (EG), temperature_exponent (XTI), nominal_celsius (TNOM) : temperature law; nominal_celsius None means
        that the law is switched off: the card is written with TNOM equal to the ambient temperature.
    junction_F (CJO), junction_V (VJ), grading (M), transit_s (TT) : transients only.
    reverse_V : rated reverse voltage; a limit that compilers check, not part of the law (no breakdown).
    ideal : no drop, no leakage; native solver only (SPICE gets the near-ideal card).

    Examples
    --------
    >>> from analog.devices import D1N4148
    >>> f"{D1N4148.saturation(125.0):.1e} A"
    '1.7e-06 A'
    """

    name: str
    saturation_A: float
    emission: float = 1.0
    series_ohm: float = 0.0
    gap_eV: float = 1.11
    temperature_exponent: float = 3.0
    nominal_celsius: float | None = 27.0
    junction_F: float = 0.0
    junction_V: float = 1.0
    grading: float = 0.5
    transit_s: float = 0.0
    reverse_V: float = np.inf
    ideal: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        for name, low in (("saturation_A", 0.0), ("emission", 0.0), ("gap_eV", 0.09999), ("reverse_V", 0.0)):
            value = getattr(self, name)
            if not value > low:
                raise InputError(f"{name} = {value} must exceed {low:g}", place=f"diode model {self.name}")
        for name in ("series_ohm", "junction_F", "transit_s"):
            if not (np.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise InputError(
                    f"{name} = {getattr(self, name)} must be finite and >= 0", place=f"diode model {self.name}"
                )

    def slope_V(self, celsius: float) -> float:
        """N V_T in volts."""
        return self.emission * thermal_voltage(celsius)

    def saturation(self, celsius: float) -> float:
        """I_S at a temperature, in amperes."""
        if self.nominal_celsius is None:
            return self.saturation_A
        ratio = (celsius + KELVIN) / (self.nominal_celsius + KELVIN)
        gap = (ratio - 1) * self.gap_eV / self.slope_V(celsius)
        return float(self.saturation_A * np.exp(gap + self.temperature_exponent / self.emission * np.log(ratio)))

    def current(self, junction: Array, *, celsius: float = 27.0, gmin: float = 1e-12) -> Array:
        """Current (A) at junction voltages (V), any shape; overflows to inf where the exponent does."""
        v = np.asarray(junction, dtype=np.float64)
        slope, saturation = self.slope_V(celsius), self.saturation(celsius)
        reverse = np.minimum(v, -3 * slope)
        with np.errstate(over="ignore"):
            forward = saturation * np.expm1(v / slope)
        cubic = -saturation * (1 + (3 * slope / (np.e * reverse)) ** 3)
        return np.where(v >= -3 * slope, forward, cubic) + gmin * v

    def with_(self, **changes: Any) -> DiodeModel:
        """Copy with some parameters replaced."""
        return replace(self, **changes)
