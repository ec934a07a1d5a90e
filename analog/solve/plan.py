"""A circuit's plan: what is linear is solved once, what is not is left as ports, level by level.

Every unknown w is written over a small basis: 1, the inputs x and the voltages inside the blocks that hold ports
(*exports*). With the blocks of :mod:`analog.solve.topology` in order,

    linear blocks    w = A^-1 (S - B K) basis                       folded into K, no work per sample
    port blocks      t = t_open(basis) - H y,  y = law(t)           one scalar loop where a block has one diode,
                     w = E basis - D y                              coupled Newton where it has more

so a feed-forward cascade costs what the network costs plus one closed-form loop a diode, whatever the netlist
that describes it.

Axes: ``ports``, ``exports``, ``batch`` (last: one port's samples are contiguous), ``unknowns``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, diags
from scipy.sparse.linalg import splu

from analog.check import check_circuit
from analog.circuit import Circuit
from analog.conditions import Conditions
from analog.solution import Solution
from analog.solve.evidence import collect_evidence
from analog.solve.loop import Junctions, solve_loops
from analog.solve.ports import PortLaws, amplifier_laws, solve_ports
from analog.solve.topology import Equations, assemble_equations, find_levels
from deploy.arrays import Array
from deploy.errors import InputError

__all__ = ["NativePlan", "plan_circuit"]

_CHUNK = 512
"""Samples solved together: the working set of a layer stays in cache."""

_DENSE = 0.1
"""Matrices with a larger share of entries are kept dense."""


@dataclass(frozen=True, eq=False)
class _Affine:
    """constant + over_x x + over_e e, (rows, batch)."""

    constant: Array
    over_x: Any
    over_e: Any

    @classmethod
    def of(cls, rows: csr_matrix, n_in: int) -> _Affine:
        return cls(
            np.asarray(rows[:, :1].toarray()).ravel(),
            _compact(rows[:, 1 : 1 + n_in]),
            _compact(rows[:, 1 + n_in :]),
        )

    def __call__(self, x: Array, e: Array) -> Array:
        """`x` is (n_in, batch), `e` (exports, batch) as far as they are known."""
        value = np.empty((len(self.constant), x.shape[1]))
        value[:] = self.constant[:, None]
        if self.over_x is not None:
            value += self.over_x @ x
        if self.over_e is not None:
            value += self.over_e @ e
        return value


def _compact(part: csr_matrix) -> Any:
    if part.nnz == 0:
        return None
    if part.nnz > _DENSE * part.shape[0] * part.shape[1]:
        return np.ascontiguousarray(part.toarray())
    return part.tocsr()


@dataclass(frozen=True, eq=False)
class _Stage:
    """The ports of one level.

    Parameters
    ----------
    ports : indices of the ports, blocks of one diode first (`singles` of them).
    blocks : (start, stop) of each coupled block within `ports`.
    open_circuit : t_open.
    H : per coupled block; `loop_ohm` the same number for singles.
    exports : indices of the exports written here: base + along t + D y.
    """

    ports: Array
    singles: int
    blocks: tuple[tuple[int, int], ...]
    open_circuit: _Affine
    loop_ohm: Array
    H: tuple[Array, ...]
    exports: slice
    base: _Affine
    by_t: Any
    by_y: Any
    laws: tuple[PortLaws, ...]

    def with_junctions(self, junctions: Junctions) -> _Stage:
        """The same stage with other numbers of the diodes (all of the circuit's)."""
        bounds = ((0, self.singles), *self.blocks)
        diodes = [self.ports[start:stop] for start, stop in bounds]
        laws = tuple(
            PortLaws(junctions.take(ports[ports < len(junctions.slope)]), law.amplifiers)
            for ports, law in zip(diodes, self.laws, strict=True)
        )
        return replace(self, laws=laws)


@dataclass(frozen=True, eq=False)
class NativePlan:
    """A circuit ready to be solved for rows x; see :func:`plan_circuit`."""

    circuit: Circuit
    conditions: Conditions
    junctions: Junctions
    stages: tuple[_Stage, ...]
    unknowns: _Affine
    read: _Affine
    n_exports: int

    def at(self, conditions: Conditions) -> NativePlan:
        """The same circuit at other conditions: diodes move, the linear analysis stays."""
        circuit = self.circuit
        base = Junctions.of(circuit.models, circuit.diodes.model, self.conditions)
        moved = Junctions.of(circuit.models, circuit.diodes.model, conditions)
        moved = moved.scale_saturation(self.junctions.saturation / base.saturation)
        stages = tuple(stage.with_junctions(moved) for stage in self.stages)
        return replace(self, conditions=conditions, junctions=moved, stages=stages)

    def outputs(self, x: Array) -> Array:
        """Outputs in the model's units for rows x (batch, n_in): (batch, n_out); rows that fail are NaN."""
        found = np.empty((len(x), len(self.circuit.outputs)))
        for rows, block in _chunks(x):
            exports, _, good = self._run(block)
            found[rows] = np.where(good, self.read(block, exports), np.nan).T
        return found

    def volts(self, x: Array) -> Array:
        """Node voltages of rows x (batch, n_in): (batch, nodes); rows that fail are NaN."""
        return self._operating_points(x)[0]

    def _operating_points(self, x: Array, amps: Array | None = None) -> tuple[Array, Array, Array, Array]:
        """Voltages, iterations, success, finiteness; fills `amps` (ports, batch) where it is given."""
        batch, nodes = len(x), self.circuit.n_nodes
        volts = np.zeros((batch, nodes))
        iterations = np.zeros(batch, dtype=np.int64)
        good = np.ones(batch, dtype=bool)
        for rows, block in _chunks(x):
            kept = None if amps is None else amps[:, rows]
            exports, iterations[rows], good[rows] = self._run(block, kept)
            volts[rows, 1:] = self.unknowns(block, exports)[: nodes - 1].T
        finite = np.asarray(np.isfinite(volts).all(axis=1))
        volts[~good | ~finite] = np.nan
        return volts, iterations, good, finite

    def solve(self, x: Array) -> Solution:
        """Operating points of rows x (batch, n_in), every node, with evidence."""
        start = time.perf_counter()
        amps = np.zeros((len(self.circuit.diodes) + len(self.circuit.op_amps), len(x)))
        volts, iterations, good, finite = self._operating_points(x, amps)
        evidence = collect_evidence(
            self.circuit,
            volts,
            x,
            self.conditions,
            junctions=self.junctions,
            ideal_amps=amps[: len(self.circuit.diodes)],
        )
        outcome = np.where(good, "converged", "iteration limit").astype(object)
        outcome[~finite] = "not finite"
        return Solution(
            volts=volts,
            residual=evidence.residual,
            complementarity=evidence.complementarity,
            iterations=iterations,
            outcome=outcome,
            diode_amps=evidence.diode_amps,
            engine="native",
            seconds=time.perf_counter() - start,
        )

    def _run(self, x: Array, amps: Array | None = None) -> tuple[Array, Array, Array]:
        """Exports (exports, batch), most iterations of a block (batch,), success (batch,) for x (n_in, batch).

        Fills `amps` (ports, batch) with the port values y where it is given.
        """
        batch = x.shape[1]
        exports = np.zeros((self.n_exports, batch))
        iterations = np.zeros(batch, dtype=np.int64)
        good = np.ones(batch, dtype=bool)
        for stage in self.stages:
            t = stage.open_circuit(x, exports)
            y = np.empty_like(t)
            n = stage.singles
            if n:
                y[:n], _ = solve_loops(t[:n], stage.loop_ohm, stage.laws[0].junctions)
                t[:n] -= stage.loop_ohm[:, None] * y[:n]
            for (start, stop), H, laws in zip(stage.blocks, stage.H, stage.laws[1:], strict=True):
                y[start:stop], count, converged = solve_ports(t[start:stop], H, laws)
                t[start:stop] -= H @ y[start:stop]
                np.maximum(iterations, count, out=iterations)
                good &= converged
            written = stage.base(x, exports)
            if stage.by_t is not None:
                written += stage.by_t @ t
            if stage.by_y is not None:
                written -= stage.by_y @ y
            exports[stage.exports] = written
            if amps is not None:
                amps[stage.ports] = y
        return exports, iterations, good


def _chunks(x: Array) -> Iterator[tuple[slice, Array]]:
    for start in range(0, len(x), _CHUNK):
        yield slice(start, start + _CHUNK), x[start : start + _CHUNK].T


def plan_circuit(
    circuit: Circuit, conditions: Conditions | None = None, *, saturation_factors: Array | None = None
) -> NativePlan:
    """Analyse a circuit once, for many rows.

    Parameters
    ----------
    saturation_factors : (diodes,) multiplies each diode's saturation current (mismatch).

    Raises
    ------
    InputError : a floating node, a loop of voltage sources, or equations without a unique solution.

    Examples
    --------
    >>> import numpy as np
    >>> from analog.build import CircuitBuilder
    >>> from analog.devices import IDEAL
    >>> wires = CircuitBuilder()
    >>> top, out = wires.nodes(["top", "out"])
    >>> wires.voltage_source(top, 0, 0.0, input=0, per_unit=1.0)
    >>> wires.diode(top, out, IDEAL); wires.resistor(out, 0, 1e3)
    >>> plan_circuit(wires.build(outputs=[out], n_in=1)).outputs(np.array([[2.0], [-2.0]])).tolist()
    [[2.0], [0.0]]
    """
    check_circuit(circuit)
    conditions = conditions or Conditions()
    junctions = Junctions.of(circuit.models, circuit.diodes.model, conditions)
    if saturation_factors is not None:
        junctions = junctions.scale_saturation(saturation_factors)
    planner = _Planner(circuit, assemble_equations(circuit), junctions)
    stages = tuple(planner.stages())
    K, n_in = planner.K, circuit.n_in
    rows = np.where(circuit.outputs > 0, circuit.outputs - 1, 0)
    read = K[rows]
    read = diags((circuit.outputs > 0) / circuit.output_volts_per_unit) @ read
    affine = _Affine.of(read.tocsr(), n_in)
    affine = replace(affine, constant=affine.constant - circuit.output_volts_offset / circuit.output_volts_per_unit)
    return NativePlan(circuit, conditions, junctions, stages, _Affine.of(K, n_in), affine, planner.n_exports)


class _Planner:
    """Walks the levels; holds K, the unknowns written over the basis so far."""

    def __init__(self, circuit: Circuit, equations: Equations, junctions: Junctions) -> None:
        self._circuit, self._eq, self._junctions = circuit, equations, junctions
        self._amplifiers = amplifier_laws(circuit.op_amps)
        self._block, level, self._port_level = find_levels(equations)
        self._level = level[self._block]
        self._depth = int(level.max(initial=-1)) + 1
        touched = np.zeros(len(level), dtype=bool)
        touched[self._block[equations.inject.tocoo().row]] = True
        self._nonlinear = touched[self._block]
        self.n_exports = int(self._nonlinear.sum())
        self._export_of = np.cumsum(self._nonlinear) - 1
        order = np.lexsort((np.arange(len(self._level)), self._level))
        nonlinear = order[self._nonlinear[order]]
        self._export_of[nonlinear] = np.arange(len(nonlinear))
        self._first_export = 1 + circuit.n_in
        self.K = csr_matrix((len(self._level), self._first_export + self.n_exports))

    def stages(self) -> Iterator[_Stage]:
        for level in range(self._depth):
            here = self._level == level
            linear = np.flatnonzero(here & ~self._nonlinear)
            if linear.size:
                self._place(linear, self._solve(linear, self._known(linear)))
            held = np.flatnonzero(here & self._nonlinear)
            if held.size:
                yield self._stage(held, level)

    def _known(self, rows: Array) -> csr_matrix:
        """S - B K of some equations, over the basis."""
        source = self._eq.source[rows]
        source.resize((len(rows), self.K.shape[1]))
        return (source - self._eq.matrix[rows] @ self.K).tocsr()

    def _place(self, rows: Array, values: csr_matrix) -> None:
        put = csr_matrix((np.ones(len(rows)), (rows, np.arange(len(rows)))), shape=(self.K.shape[0], len(rows)))
        self.K = (self.K + put @ values).tocsr()

    def _solve(self, rows: Array, right: csr_matrix) -> csr_matrix:
        """A^-1 right for the unknowns of some blocks of one level."""
        A = self._eq.matrix[rows][:, rows].tocsc()
        diagonal = A.diagonal()
        if A.nnz == np.count_nonzero(diagonal):
            if (diagonal == 0).any():
                self._refuse(rows[diagonal == 0])
            return (diags(1 / diagonal) @ right).tocsr()
        try:
            factors = splu(A)
        except RuntimeError:
            self._refuse(rows)
        columns = np.unique(right.indices)
        found = csr_matrix(factors.solve(right[:, columns].toarray()))
        if not np.isfinite(found.data).all():
            self._refuse(rows)
        spread = csr_matrix(
            (np.ones(len(columns)), (np.arange(len(columns)), columns)), shape=(len(columns), right.shape[1])
        )
        return (found @ spread).tocsr()

    def _refuse(self, rows: Array) -> None:
        names = [self._circuit.node_names[row + 1] for row in rows if row + 1 < self._circuit.n_nodes]
        raise InputError(
            f"no unique operating point at nodes {', '.join(names[:5])}{', …' if len(names) > 5 else ''}",
            remedy="with its diodes open the network there must be determined: add a resistor to ground",
        )

    def _stage(self, held: Array, level: int) -> _Stage:
        eq = self._eq
        inject = eq.inject[held].tocsc()
        ports = np.flatnonzero((np.diff(inject.indptr) > 0) & (self._port_level == level))
        inject = inject[:, ports].tocoo()
        block = np.zeros(len(ports), dtype=np.int64)
        block[inject.col] = self._block[held[inject.row]]
        _, block, count = np.unique(block, return_inverse=True, return_counts=True)
        diodes = len(self._circuit.diodes)
        single = (count[block] == 1) & (ports < diodes)
        order = np.lexsort((ports, block, ~single))
        ports, block, single = ports[order], block[order], single[order]
        n = int(single.sum())
        edges = np.flatnonzero(np.diff(block[n:], prepend=-1)) + n
        bounds = (
            tuple(zip(edges.tolist(), [*edges[1:].tolist(), len(ports)], strict=True)) if n < len(ports) else ()
        )
        E = self._solve(held, self._known(held))
        D = self._solve(held, eq.inject[held][:, ports].tocsr())
        sense = eq.sense[ports]
        T = sense[:, held]
        offset = csr_matrix(
            (eq.offset[ports], (np.arange(len(ports)), np.zeros(len(ports), int))),
            shape=(len(ports), self.K.shape[1]),
        )
        open_circuit = (T @ E + sense @ self.K + offset).tocsr()
        H = (T @ D).tocsr()
        base, by_t, by_y = self._exports(held, ports, E, D)
        exports = self._export_of[held]
        self._place(
            held,
            csr_matrix((np.ones(len(held)), (np.arange(len(held)), self._first_export + exports)), shape=E.shape),
        )
        return _Stage(
            ports=ports,
            singles=n,
            blocks=bounds,
            open_circuit=_Affine.of(open_circuit, self._circuit.n_in),
            loop_ohm=H.diagonal()[:n],
            H=tuple(H[start:stop, start:stop].toarray() for start, stop in bounds),
            exports=slice(int(exports[0]), int(exports[-1]) + 1),
            base=_Affine.of(base, self._circuit.n_in),
            by_t=_compact(by_t),
            by_y=_compact(by_y),
            laws=(self._laws(ports[:n]), *(self._laws(ports[start:stop]) for start, stop in bounds)),
        )

    def _laws(self, ports: Array) -> PortLaws:
        diodes = len(self._circuit.diodes)
        return PortLaws(
            self._junctions.take(ports[ports < diodes]), self._amplifiers[ports[ports >= diodes] - diodes]
        )

    def _exports(
        self, held: Array, ports: Array, E: csr_matrix, D: csr_matrix
    ) -> tuple[csr_matrix, csr_matrix, csr_matrix]:
        """Write each unknown of a port block over the basis, t and y.

        It is E basis - D y, or, where that is shorter, the far end of one of its diodes plus that diode's
        voltage: a clamped node then keeps its digits and costs no product.
        """
        sense = self._eq.sense[ports]
        outside = np.ones(len(self._level))
        outside[held] = 0
        near, far = sense[:, held].tocsr(), sense @ diags(outside)
        far_rows = (-far @ self.K).tocsr()
        lengths = np.diff(E.indptr)
        chosen: dict[int, int] = {}
        for port in range(int((ports < len(self._circuit.diodes)).sum())):
            mine = near[port].indices[near[port].data != 0]
            if len(mine) == 1 and far_rows[port].nnz < lengths[mine[0]]:
                chosen[int(mine[0])] = port
                lengths[mine[0]] = far_rows[port].nnz
        rows, by = np.array(list(chosen), dtype=int), np.array(list(chosen.values()), dtype=int)
        kept = np.ones(len(held))
        kept[rows] = 0
        sign = near[by, rows].A1 if len(rows) else np.zeros(0)
        by_t = csr_matrix((sign, (rows, by)), shape=(len(held), len(ports)))
        base = (diags(kept) @ E + by_t @ far_rows).tocsr()
        by_y = (diags(kept) @ D).tocsr()
        for matrix in (base, by_y):
            matrix.eliminate_zeros()
        return base, by_t, by_y
