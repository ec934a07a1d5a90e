"""Which unknown depends on which: the equations of a circuit, cut into blocks that can be solved one after another.

Every node but ground has one unknown and one equation: a node that a grounded source, VCVS or op-amp drives has
that source's equation, every other node Kirchhoff's current law. A voltage source or VCVS between two nodes adds
its current as an unknown and its constraint as an equation. Op-amp outputs and diode currents are *ports*.

An unknown depends on another where the equation that determines it holds it: through a resistor both ways between
free nodes, one way from a driven node. The strongly connected components of that graph are the blocks; a block's
level is the longest chain of blocks before it.

Axes: ``unknowns`` (nodes without ground, then branch currents), ``blocks``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import connected_components

from analog.circuit import GROUND, Circuit, Sources, Vcvs
from deploy.arrays import Array
from deploy.errors import InputError

__all__ = ["Equations", "assemble_equations", "find_levels"]


@dataclass(frozen=True, eq=False)
class Equations:
    """A w + Q y = S [1; x], t = T w + offset, y = law(t) port by port.

    w holds the unknowns, y the current of each diode (then the output voltage of each op-amp), t the voltage of
    each diode (then the input voltage of each op-amp).

    Parameters
    ----------
    matrix : A, (unknowns, unknowns) sparse.
    source : S, (unknowns, 1 + n_in) sparse.
    inject : Q, (unknowns, ports) sparse.
    sense : T, (ports, unknowns) sparse.
    offset : (ports,) volts.
    driven : (unknowns,) of bool: nodes that a source holds.
    """

    matrix: csr_matrix
    source: csr_matrix
    inject: csr_matrix
    sense: csr_matrix
    offset: Array
    driven: Array


class _Triplets:
    """Entries of a sparse matrix, collected by columns of equal length; ground rows and columns drop out."""

    def __init__(self) -> None:
        self._rows: list[Array] = []
        self._columns: list[Array] = []
        self._values: list[Array] = []

    def add(self, rows: Array, columns: Array, values: Array | float, keep: Array | None = None) -> None:
        rows, columns = np.asarray(rows), np.asarray(columns)
        values = np.broadcast_to(np.asarray(values, dtype=np.float64), rows.shape)
        kept = (rows >= 0) & (columns >= 0)
        if keep is not None:
            kept &= keep
        self._rows.append(rows[kept])
        self._columns.append(columns[kept])
        self._values.append(values[kept])

    def matrix(self, shape: tuple[int, int]) -> csr_matrix:
        if not self._rows:
            return csr_matrix(shape)
        rows, columns = np.concatenate(self._rows), np.concatenate(self._columns)
        return coo_matrix((np.concatenate(self._values), (rows, columns)), shape=shape).tocsr()


def _grounded(table: Sources | Vcvs) -> tuple[Array, Array, Array]:
    """Which voltage elements have a grounded end; the other end; +1 where that is the plus end, else -1."""
    grounded = (table.plus == GROUND) | (table.minus == GROUND)
    plus_up = table.minus == GROUND
    return grounded, np.where(plus_up, table.plus, table.minus), np.where(plus_up, 1.0, -1.0)


def assemble_equations(circuit: Circuit) -> Equations:
    """Write a circuit's equations; raises :class:`deploy.errors.InputError` where two sources hold one node."""
    v, e, oa = circuit.voltage_sources, circuit.vcvs, circuit.op_amps
    v_held, v_node, v_sign = _grounded(v)
    e_held, e_node, e_sign = _grounded(e)
    n = circuit.n_nodes - 1
    branches = int((~v_held).sum() + (~e_held).sum())
    unknowns = n + branches
    holders = np.concatenate([v_node[v_held], e_node[e_held], oa.out]) - 1
    counts = np.bincount(holders[holders >= 0], minlength=unknowns) if holders.size else np.zeros(unknowns, int)
    if counts.max(initial=0) > 1:
        name = circuit.node_names[int(np.argmax(counts)) + 1]
        raise InputError(f"more than one voltage source holds node {name}", remedy="put a resistor in series")
    driven = counts > 0
    free = np.zeros(unknowns + 1, dtype=bool)
    free[:n] = ~driven[:n]
    A, S, Q, T = _Triplets(), _Triplets(), _Triplets(), _Triplets()
    _add_conductances(circuit, A, free)
    _add_transconductances(circuit, A, free)
    _add_current_sources(circuit.current_sources, S, free)
    held = np.flatnonzero(driven)
    A.add(held, held, 1.0)
    _add_level(v, v_held, v_node - 1, v_sign, S)
    rows = e_node[e_held] - 1
    gain = e_sign[e_held] * e.gain[e_held]
    A.add(rows, e.control_plus[e_held] - 1, -gain)
    A.add(rows, e.control_minus[e_held] - 1, gain)
    _add_branches(v, ~v_held, n, A, free)
    _add_level(v, ~v_held, _spread(~v_held, n), np.ones(len(v)), S)
    first = n + int((~v_held).sum())
    _add_branches(e, ~e_held, first, A, free)
    rows = _spread(~e_held, first)[~e_held]
    A.add(rows, e.control_plus[~e_held] - 1, -e.gain[~e_held])
    A.add(rows, e.control_minus[~e_held] - 1, e.gain[~e_held])
    diodes, d = len(circuit.diodes), circuit.diodes
    port = np.arange(diodes)
    Q.add(d.anode - 1, port, 1.0, free[d.anode - 1])
    Q.add(d.cathode - 1, port, -1.0, free[d.cathode - 1])
    T.add(port, d.anode - 1, 1.0)
    T.add(port, d.cathode - 1, -1.0)
    amp = diodes + np.arange(len(oa))
    Q.add(oa.out - 1, amp, -1.0)
    T.add(amp, oa.plus - 1, 1.0)
    T.add(amp, oa.minus - 1, -1.0)
    ports = diodes + len(oa)
    return Equations(
        matrix=A.matrix((unknowns, unknowns)),
        source=S.matrix((unknowns, 1 + circuit.n_in)),
        inject=Q.matrix((unknowns, ports)),
        sense=T.matrix((ports, unknowns)),
        offset=np.concatenate([np.zeros(diodes), oa.offset]),
        driven=driven,
    )


def _spread(mask: Array, first: int) -> Array:
    """Index of the branch unknown of each element of `mask`, counted from `first`."""
    return first + np.cumsum(mask) - 1


def _add_conductances(circuit: Circuit, A: _Triplets, free: Array) -> None:
    a, b = circuit.resistors.a - 1, circuit.resistors.b - 1
    g = 1 / circuit.resistors.ohm
    A.add(a, a, g, free[a])
    A.add(a, b, -g, free[a])
    A.add(b, b, g, free[b])
    A.add(b, a, -g, free[b])


def _add_transconductances(circuit: Circuit, A: _Triplets, free: Array) -> None:
    g, y = circuit.vccs, circuit.gyrators
    for plus, minus, control_plus, control_minus, siemens in (
        (g.plus, g.minus, g.control_plus, g.control_minus, g.siemens),
        (y.a_plus, y.a_minus, y.b_plus, y.b_minus, y.siemens),
        (y.b_plus, y.b_minus, y.a_plus, y.a_minus, -y.siemens),
    ):
        for row, sign in ((plus - 1, 1.0), (minus - 1, -1.0)):
            A.add(row, control_plus - 1, sign * siemens, free[row])
            A.add(row, control_minus - 1, -sign * siemens, free[row])


def _add_current_sources(table: Sources, S: _Triplets, free: Array) -> None:
    for row, sign in ((table.plus - 1, -1.0), (table.minus - 1, 1.0)):
        S.add(row, np.zeros_like(row), sign * table.value, free[row])
        S.add(row, 1 + table.input, sign * table.per_unit, free[row] & (table.input >= 0))


def _add_level(table: Sources, mask: Array, rows: Array, sign: Array, S: _Triplets) -> None:
    rows, sign, value, per_unit = rows[mask], sign[mask], table.value[mask], table.per_unit[mask]
    S.add(rows, np.zeros_like(rows), sign * value)
    S.add(rows, 1 + table.input[mask], sign * per_unit, table.input[mask] >= 0)


def _add_branches(table: Sources | Vcvs, mask: Array, first: int, A: _Triplets, free: Array) -> None:
    plus, minus = table.plus[mask] - 1, table.minus[mask] - 1
    branch = first + np.arange(len(plus))
    A.add(plus, branch, 1.0, free[plus])
    A.add(minus, branch, -1.0, free[minus])
    A.add(branch, plus, 1.0)
    A.add(branch, minus, -1.0)


def find_levels(equations: Equations) -> tuple[Array, Array, Array]:
    """Cut the unknowns into strongly connected blocks and order them.

    Returns
    -------
    block (unknowns,), level of each block (blocks,), and the level of each port (ports,).
    """
    A, Q, T = equations.matrix, equations.inject, equations.sense
    through_ports = (abs(Q) @ abs(T)).astype(bool)
    depends = (A.astype(bool) + through_ports).tocoo()
    count, block = connected_components(depends, directed=True, connection="strong")
    rows, columns = block[depends.row], block[depends.col]
    different = rows != columns
    pairs = np.unique(rows[different].astype(np.int64) * count + columns[different])
    later, earlier = pairs // count, pairs % count
    level = np.zeros(count, dtype=np.int64)
    for _ in range(count + 1):
        raised = level.copy()
        np.maximum.at(raised, later, level[earlier] + 1)
        if np.array_equal(raised, level):
            break
        level = raised
    unknown_level = level[block]
    port_level = np.zeros(Q.shape[1], dtype=np.int64)
    for incidence in (Q.tocoo(), T.T.tocoo()):
        np.maximum.at(port_level, incidence.col, unknown_level[incidence.row])
    return block, level, port_level
