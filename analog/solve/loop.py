r"""One diode behind a resistor: z = v_d + R i, in closed form.

With R' = R + R_S and the law of :mod:`analog.devices.diode`, gmin is absorbed exactly: i = i' + gmin v_j turns
z = v_j + R' i into z / a = v_j + (R' / a) i' with a = 1 + R' gmin. In the forward region the solution is

    i' = (s / r) omega(ln(I_S r / s) + (z / a + I_S r) / s) - I_S,        r = R' / a,  s = N V_T

with omega the Wright function, omega + ln omega = argument (Corless and Jeffrey 2002), which does not overflow
where W0(exp(.)) does. Below v_j = -3 s the law is rational and Newton from i' = -I_S needs no transcendental.
An ideal diode has i = max(z, 0) / R.

The slope di/dz = g / (1 + R' g) lies in (0, 1/R'): that is why Newton in z needs no junction limiting.

Axes: ``ports``, ``batch``: rows are ports here, so that one port's samples are contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analog.conditions import Conditions
from analog.devices.diode import DiodeModel
from deploy.arrays import Array
from deploy.requirement import require

__all__ = ["Junctions", "solve_loops"]


@dataclass(frozen=True, eq=False)
class Junctions:
    """Numbers of each diode at given conditions, (ports,) each: s = N V_T, I_S, R_S, whether it is ideal; gmin."""

    slope: Array
    saturation: Array
    series: Array
    ideal: Array
    gmin: float

    @classmethod
    def of(cls, models: tuple[DiodeModel, ...], index: Array, conditions: Conditions) -> Junctions:
        """Evaluate the temperature law of `models` and spread it over diodes of model `index` (ports,)."""
        table = np.array(
            [
                (m.slope_V(conditions.celsius), m.saturation(conditions.celsius), m.series_ohm, float(m.ideal))
                for m in models
            ]
        ).reshape(-1, 4)[index]
        slope, saturation, series = (np.ascontiguousarray(table[:, k]) for k in range(3))
        return cls(slope, saturation, series, table[:, 3] > 0, conditions.gmin)

    def take(self, ports: Array) -> Junctions:
        """Keep some ports."""
        return Junctions(
            self.slope[ports], self.saturation[ports], self.series[ports], self.ideal[ports], self.gmin
        )

    def scale_saturation(self, factors: Array) -> Junctions:
        """Multiply each saturation current, for mismatch."""
        return Junctions(self.slope, self.saturation * factors, self.series, self.ideal, self.gmin)


def solve_loops(waves: Array, ohm: Array, junctions: Junctions) -> tuple[Array, Array]:
    """Solve z = v_d + R i of each port.

    Parameters
    ----------
    waves : (ports, batch) z in volts; of an open-circuit source behind R, z is the open-circuit voltage.
    ohm : (ports,) R >= 0; R + R_S must be positive unless the port is purely voltage-driven with R_S = 0.

    Returns
    -------
    current (ports, batch) in A and slope di/dz (ports, batch) in S.
    """
    z = np.ascontiguousarray(waves, dtype=np.float64)
    current, slope = np.empty_like(z), np.empty_like(z)
    require("numba", extra="circuit")
    from analog.solve.kernel import solve_diode_loops

    solve_diode_loops(
        z,
        np.ascontiguousarray(ohm, dtype=np.float64),
        junctions.slope,
        junctions.saturation,
        junctions.series,
        junctions.ideal,
        junctions.gmin,
        current,
        slope,
    )
    return current, slope
