"""What happens in a circuit over many rows: dissipation, swings, reverse voltages.

Axes: ``batch``, ``nodes``, ``diodes``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix

from analog.circuit import Circuit
from analog.solve.loop import solve_loops
from analog.solve.plan import NativePlan
from deploy.arrays import Array

__all__ = ["Survey", "dissipation", "survey_rows"]

MAX_ROWS = 10_000
"""More rows than this are thinned evenly."""

_CHUNK = 256


@dataclass(frozen=True, eq=False)
class Survey:
    """Over `rows` rows: mean dissipation (W) in resistors and diodes, extreme voltage of each node (nodes,), largest
    reverse voltage and forward current of each diode (diodes,)."""

    rows: int
    dissipated_W: float
    low_V: Array
    high_V: Array
    reverse_V: Array
    forward_A: Array


def survey_rows(plan: NativePlan, x: Array) -> Survey:
    """Solve rows x (batch, n_in) and keep what a report needs; rows that fail are left out."""
    step = -(-len(x) // MAX_ROWS)
    rows = x[::step]
    circuit = plan.circuit
    low, high = np.full(circuit.n_nodes, np.inf), np.full(circuit.n_nodes, -np.inf)
    reverse, forward = np.zeros(len(circuit.diodes)), np.zeros(len(circuit.diodes))
    watts: list[Array] = []
    meter = _Meter(plan)
    for start in range(0, len(rows), _CHUNK):
        volts = plan.volts(rows[start : start + _CHUNK])
        volts = volts[np.isfinite(volts).all(axis=1)]
        if not len(volts):
            continue
        low, high = np.minimum(low, volts.min(axis=0)), np.maximum(high, volts.max(axis=0))
        across, amps, power = meter.measure(volts)
        watts.append(power)
        reverse = np.maximum(reverse, -across.min(axis=1, initial=0.0))
        forward = np.maximum(forward, amps.max(axis=1, initial=0.0))
    measured = np.concatenate(watts) if watts else np.array([np.nan])
    return Survey(len(measured), float(measured.mean()), low, high, reverse, forward)


def dissipation(plan: NativePlan, volts: Array) -> Array:
    """Heat of resistors and diodes at operating points (batch, nodes): (batch,) in watts.

    What sources, amplifiers and gyrators deliver or take is not in it; amplifiers need their own supply.
    """
    return _Meter(plan).measure(volts)[2]


class _Meter:
    """Sum of v_ab² / ohm as a quadratic form: squares by node, minus twice the products along resistors."""

    def __init__(self, plan: NativePlan) -> None:
        self._plan = plan
        circuit: Circuit = plan.circuit
        r = circuit.resistors
        g = 1 / r.ohm
        n = circuit.n_nodes
        self._square = np.bincount(r.a, g, n) + np.bincount(r.b, g, n)
        degree = np.bincount(r.a, minlength=n) + np.bincount(r.b, minlength=n)
        # the end with more resistors becomes the row: few long rows make a small dense product
        swap = degree[r.a] < degree[r.b]
        rows, columns = np.where(swap, r.b, r.a), np.where(swap, r.a, r.b)
        matrix = coo_matrix((g, (rows, columns)), shape=(n, n)).tocsr()
        self._rows = np.flatnonzero(np.diff(matrix.indptr))
        self._products = matrix[self._rows]
        if self._products.nnz > 0.1 * self._products.shape[0] * self._products.shape[1]:
            self._products = self._products.toarray()

    def measure(self, volts: Array) -> tuple[Array, Array, Array]:
        """Diode voltages and currents (diodes, batch), and watts (batch,), of node voltages (batch, nodes)."""
        v = np.ascontiguousarray(volts.T)
        resistors = self._square @ (v * v) - 2 * np.sum(v[self._rows] * (self._products @ v), axis=0)
        diodes = self._plan.circuit.diodes
        across = v[diodes.anode] - v[diodes.cathode]
        amps = np.zeros_like(across)
        real = np.flatnonzero(~self._plan.junctions.ideal)
        amps[real], _ = solve_loops(across[real], np.zeros(len(real)), self._plan.junctions.take(real))
        return across, amps, np.asarray(resistors + np.sum(across * amps, axis=0))
