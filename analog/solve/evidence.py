"""Is it an operating point? Recomputed from node voltages alone, by the devices' own laws.

Axes: ``batch``, ``nodes``, ``diodes``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from analog.circuit import GROUND, Circuit
from analog.conditions import Conditions
from analog.solve.loop import Junctions, solve_loops
from deploy.arrays import Array

__all__ = ["Evidence", "collect_evidence", "kcl_residual"]


@dataclass(frozen=True, eq=False)
class Evidence:
    """Residual of Kirchhoff's current law (batch,), complementarity (batch,), diode currents (batch, diodes)."""

    residual: Array
    complementarity: Array
    diode_amps: Array


def kcl_residual(circuit: Circuit, volts: Array, x: Array, conditions: Conditions) -> Array:
    """Largest current (A) that Kirchhoff's law misses, (batch,); see :func:`collect_evidence`."""
    return collect_evidence(circuit, volts, x, conditions).residual


def collect_evidence(
    circuit: Circuit,
    volts: Array,
    x: Array,
    conditions: Conditions,
    *,
    junctions: Junctions | None = None,
    ideal_amps: Array | None = None,
) -> Evidence:
    """Check node voltages (batch, nodes) of rows x (batch, n_in).

    Currents of voltage sources are free, so the law is checked for each group of nodes that voltage sources join,
    as one; the group of ground is exempt.

    Parameters
    ----------
    junctions : the diodes' numbers where they are not those of `conditions` alone (mismatch).
    ideal_amps : (diodes, batch) currents that somebody claims for ideal diodes, which voltages do not tell. Without
        them an ideal diode gets what the law leaves over at its node: right where no node has two of them.
    """
    if junctions is None:
        junctions = Junctions.of(circuit.models, circuit.diodes.model, conditions)
    v = np.ascontiguousarray(volts.T)
    out = _linear_currents(circuit, v, x)
    amps, complementarity = _diode_currents(circuit, v, out, junctions, ideal_amps)
    _scatter(out, circuit.diodes.anode, amps)
    _scatter(out, circuit.diodes.cathode, -amps)
    group = _source_groups(circuit)
    total = coo_matrix((np.ones(len(group)), (group, np.arange(len(group))))).tocsr() @ out
    total[group[GROUND]] = 0.0
    return Evidence(np.abs(total).max(axis=0, initial=0.0), complementarity, amps.T)


def _linear_currents(circuit: Circuit, v: Array, x: Array) -> Array:
    """Current that leaves each node through linear elements and current sources, (nodes, batch)."""
    n = circuit.n_nodes
    r, g, y = circuit.resistors, circuit.vccs, circuit.gyrators
    rows: list[Array] = [r.a, r.a, r.b, r.b]
    columns: list[Array] = [r.a, r.b, r.b, r.a]
    values: list[Array] = [1 / r.ohm, -1 / r.ohm, 1 / r.ohm, -1 / r.ohm]
    for plus, minus, control_plus, control_minus, siemens in (
        (g.plus, g.minus, g.control_plus, g.control_minus, g.siemens),
        (y.a_plus, y.a_minus, y.b_plus, y.b_minus, y.siemens),
        (y.b_plus, y.b_minus, y.a_plus, y.a_minus, -y.siemens),
    ):
        rows += [plus, plus, minus, minus]
        columns += [control_plus, control_minus, control_plus, control_minus]
        values += [siemens, -siemens, -siemens, siemens]
    matrix = coo_matrix((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=(n, n))
    out = np.asarray(matrix.tocsr() @ v)
    levels = circuit.current_sources.levels(x).T
    _scatter(out, circuit.current_sources.plus, levels)
    _scatter(out, circuit.current_sources.minus, -levels)
    return out


def _diode_currents(
    circuit: Circuit, v: Array, out: Array, junctions: Junctions, claimed: Array | None
) -> tuple[Array, Array]:
    d = circuit.diodes
    across = v[d.anode] - v[d.cathode]
    real = np.flatnonzero(~junctions.ideal)
    ideal = np.flatnonzero(junctions.ideal)
    amps = np.zeros_like(across)
    amps[real], _ = solve_loops(across[real], np.zeros(len(real)), junctions.take(real))
    if not ideal.size:
        return amps, np.zeros(v.shape[1])
    if claimed is None:
        pending = out.copy()
        _scatter(pending, d.anode[real], amps[real])
        _scatter(pending, d.cathode[real], -amps[real])
        held = np.zeros(circuit.n_nodes, dtype=bool)
        held[_held_nodes(circuit)] = True
        at_cathode = ~held[d.cathode[ideal]]
        amps[ideal] = np.where(at_cathode[:, None], pending[d.cathode[ideal]], -pending[d.anode[ideal]])
    else:
        amps[ideal] = claimed[ideal]
    i, u = amps[ideal], across[ideal]
    return amps, np.asarray(np.max(np.maximum.reduce([-i, u, np.abs(i * u)]), axis=0))


def _held_nodes(circuit: Circuit) -> Array:
    """Nodes whose current is free: ground and every node that a voltage source touches."""
    v, e = circuit.voltage_sources, circuit.vcvs
    return np.concatenate([[GROUND], v.plus, v.minus, e.plus, e.minus, circuit.op_amps.out])


def _source_groups(circuit: Circuit) -> Array:
    v, e, a = circuit.voltage_sources, circuit.vcvs, circuit.op_amps
    first = np.concatenate([v.plus, e.plus, a.out])
    second = np.concatenate([v.minus, e.minus, np.full(len(a), GROUND)])
    shape = (circuit.n_nodes, circuit.n_nodes)
    return np.asarray(
        connected_components(coo_matrix((np.ones(len(first)), (first, second)), shape=shape), directed=False)[1]
    )


def _scatter(out: Array, nodes: Array, amps: Array) -> None:
    if len(nodes):
        spread = coo_matrix((np.ones(len(nodes)), (nodes, np.arange(len(nodes)))), shape=(len(out), len(nodes)))
        out += spread.tocsr() @ amps
