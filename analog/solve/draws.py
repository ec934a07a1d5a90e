"""One circuit in many states: Monte Carlo draws of its parts, temperatures, rows, in one call.

Axes: ``draws``, ``temperatures``, ``batch``, ``n_out``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analog.circuit import Circuit
from analog.conditions import Conditions
from analog.solve.plan import plan_circuit
from deploy.arrays import Array
from deploy.errors import UsageError

__all__ = ["solve_draws"]


def solve_draws(
    circuit: Circuit,
    x: Array,
    *,
    resistor_factors: Array | None = None,
    saturation_factors: Array | None = None,
    conditions: Sequence[Conditions] = (Conditions(),),
) -> Array:
    """Outputs of rows x (batch, n_in) for each draw and temperature: (draws, temperatures, batch, n_out).

    A draw's linear network is analysed once and serves all its temperatures, which move the diodes only.

    Parameters
    ----------
    resistor_factors : (draws, resistors) multiplies each resistance.
    saturation_factors : (draws, diodes) multiplies each diode's saturation current.

    Raises
    ------
    UsageError : factors of other shapes.

    Examples
    --------
    >>> from analog.build import CircuitBuilder
    >>> wires = CircuitBuilder()
    >>> top, middle = wires.nodes(["top", "middle"])
    >>> wires.voltage_source(top, 0, 9.0)
    >>> wires.resistor([top, middle], [middle, 0], 1e3)
    >>> divider = wires.build(outputs=[middle])
    >>> solve_draws(divider, np.zeros((1, 0)), resistor_factors=np.array([[1.0, 1.0], [2.0, 1.0]])).ravel()
    array([4.5, 3. ])
    """
    draws = max(len(f) for f in (resistor_factors, saturation_factors, [None]) if f is not None)
    for factors, parts in ((resistor_factors, circuit.resistors), (saturation_factors, circuit.diodes)):
        if factors is not None and factors.shape != (draws, len(parts)):
            raise UsageError(f"factors of shape {factors.shape}, ({draws}, {len(parts)}) are due")
    found = np.empty((draws, len(conditions), len(x), len(circuit.outputs)))
    for draw in range(draws):
        varied = circuit
        if resistor_factors is not None:
            ohm = circuit.resistors.ohm * resistor_factors[draw]
            varied = circuit.with_(resistors=circuit.resistors.with_(ohm=ohm))
        saturation = None if saturation_factors is None else saturation_factors[draw]
        plan = plan_circuit(varied, conditions[0], saturation_factors=saturation)
        for index, each in enumerate(conditions):
            found[draw, index] = plan.at(each).outputs(x)
    return found
