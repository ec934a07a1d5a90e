r"""The equilibrium network: a nodal conductance matrix with clamp diodes.

With D = diag(volts per unit), v = D z, Y = kappa D^-1 (I - W) D^-1 and injected currents kappa D^-1 (U x + b), a
clamp diode from ground to every hidden node gives Y v - j = i_d, i_d >= 0, v >= 0, i_d v = 0, which is
z = ReLU(W z + U x + b) (Winston and Kolter 2020; the derivation is in docs/circuit-physics.md). The congruence by
D keeps symmetric and skew parts apart:

* symmetric, Y_ij < 0: a resistor of -Y_ij between the nodes;
* symmetric, Y_ij > 0: *doubled* networks have a mirror node n_i = -v_i and cross resistors p_i - n_j, n_i - p_j;
  *controlled* ones have a pair of transconductances;
* what is left of the diagonal: a resistor to ground, or a negative (active) one;
* skew: gyrators.

Doubling needs every ground resistor positive, Y_ii >= sum |Y_ij|: some positive diagonal scaling D gives that
exactly where the comparison matrix of sym(I - W) is a nonsingular M-matrix (:func:`dominant_scaling`). Then
resistors and diodes alone carry the symmetric part.

Axes: ``n`` (hidden units), ``n_in``, ``n_out``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from analog.build import CircuitBuilder
from analog.circuit import GROUND, Circuit, origins
from analog.compile.parts import Parts
from analog.compile.rails import add_clamp_rail, add_input_rails, buffer_rails
from analog.compile.summing import add_summing_rows, plan_summing
from deploy.arrays import Array

__all__ = ["EquilibriumDesign", "Realisation", "compile_equilibrium", "dominant_scaling"]

Realisation = Literal["doubled", "controlled"]

_ROUNDING = 1e-14
"""Conductances below this share of the largest are rounding of a zero, not parts."""


@dataclass(frozen=True, eq=False)
class EquilibriumDesign:
    """An equilibrium network and its scales: everything that decides the circuit.

    Parameters
    ----------
    W, U, b : (n, n), (n, n_in), (n,) in the network's units.
    volts_per_unit : (n,) D.
    rail_V : clamp rail.
    readout, readout_bias : logits = readout v + readout_bias, (n_out, n) logits per volt, (n_out,) logits.
    """

    parts: Parts
    input_volts_per_unit: Array
    W: Array
    U: Array
    b: Array
    volts_per_unit: Array
    rail_V: float
    realisation: Realisation
    readout: Array
    readout_bias: Array


def dominant_scaling(W: Array) -> Array | None:
    """Find d > 0 with diag(d) sym(I - W) diag(d) diagonally dominant, (n,), or None where there is none.

    d solves <S> d = 1 with <S> the comparison matrix (diagonal kept, off-diagonal -|S_ij|); a positive solution
    exists exactly where <S> is a nonsingular M-matrix (Berman and Plemmons, condition I27).

    >>> dominant_scaling(np.array([[0.0, 0.5], [0.5, 0.0]])).tolist()
    [2.0, 2.0]
    >>> dominant_scaling(np.array([[0.0, -3.0], [3.0, 0.0]])).tolist()
    [1.0, 1.0]
    >>> dominant_scaling(np.array([[0.0, 2.0], [2.0, 0.0]])) is None
    True
    """
    n = len(W)
    S = np.eye(n) - (W + W.T) / 2
    comparison = np.where(np.eye(n, dtype=bool), S, -np.abs(S))
    try:
        d = np.linalg.solve(comparison, np.ones(n))
    except np.linalg.LinAlgError:
        return None
    return d if (d > 0).all() and (comparison.diagonal() > 0).all() else None


def conductances(design: EquilibriumDesign) -> tuple[Array, float]:
    """Y (n, n) in siemens, and kappa."""
    inverse = 1 / design.volts_per_unit
    Y = inverse[:, None] * (np.eye(len(design.W)) - design.W) * inverse
    kappa = design.parts.max_conductance_S / float(np.abs(Y).max())
    return kappa * Y, kappa


def compile_equilibrium(design: EquilibriumDesign, *, title: str = "ReLU equilibrium") -> Circuit:
    """Build the circuit of a design."""
    wires = CircuitBuilder(title)
    parts = design.parts
    n = len(design.b)
    rails = add_input_rails(wires, design.input_volts_per_unit, parts.bias_rail_V)
    Y, kappa = conductances(design)
    index = np.arange(n)
    hidden = wires.nodes([f"hidden {i}" for i in index], origins("hidden", n, layer=0, unit=index))
    sides = [(hidden, 1)]
    if design.realisation == "doubled":
        mirror = wires.nodes([f"mirror {i}" for i in index], origins("mirror", n, layer=0, unit=index, sign=-1))
        sides.append((mirror, -1))
    weight = design.U / design.input_volts_per_unit
    summing = plan_summing(
        weight, design.b, max_conductance_S=parts.max_conductance_S, bias_rail_V=parts.bias_rail_V
    )
    sums = add_summing_rows(
        wires,
        rails,
        weight,
        design.b,
        summing,
        layer=0,
        bias_rail_V=parts.bias_rail_V,
        names=[f"sum {i}" for i in index],
    )
    siemens = kappa * summing.gain / design.volts_per_unit
    for nodes, sign in sides:
        wires.vccs(
            GROUND, nodes, sums, GROUND, sign * siemens, origins("injection", n, layer=0, unit=index, sign=sign)
        )
        rail = add_clamp_rail(wires, sign * design.rail_V, 0)
        anode, cathode = (rail, nodes) if sign > 0 else (nodes, rail)
        marks = origins("clamp", n, layer=0, unit=index, sign=sign)
        wires.diode(anode, cathode, parts.cell.diode, marks)
        _add_skew(wires, nodes, (Y - Y.T) / 2)
    _add_symmetric(wires, [nodes for nodes, _ in sides], (Y + Y.T) / 2)
    readout = plan_summing(
        design.readout,
        design.readout_bias,
        max_conductance_S=parts.max_conductance_S,
        bias_rail_V=parts.bias_rail_V,
    )
    outputs = add_summing_rows(
        wires,
        buffer_rails(wires, hidden, rails, layer=0),
        design.readout,
        design.readout_bias,
        readout,
        layer=1,
        bias_rail_V=parts.bias_rail_V,
        names=[f"logit {k}" for k in range(len(design.readout_bias))],
    )
    return wires.build(outputs=outputs, n_in=len(design.input_volts_per_unit), volts_per_unit=1 / readout.gain)


def _pairs(values: Array) -> tuple[Array, Array]:
    """Indices i < j of entries that are not rounding."""
    upper = np.triu(np.abs(values), 1)
    i, j = np.nonzero(upper > _ROUNDING * np.abs(values).max(initial=0.0))
    return i, j


def _add_skew(wires: CircuitBuilder, nodes: Array, K: Array) -> None:
    i, j = _pairs(K)
    if i.size:
        wires.gyrator(
            nodes[i], GROUND, nodes[j], GROUND, K[i, j], origins("gyrator", len(i), layer=0, unit=i, source=j)
        )


def _add_symmetric(wires: CircuitBuilder, sides: list[Array], S: Array) -> None:
    i, j = _pairs(S)
    positive = S[i, j] > 0
    leak = S.diagonal().copy()
    doubled = len(sides) == 2
    for side, other in ((0, -1), (1, 0))[: len(sides)]:
        here, across = sides[side], sides[other]
        a, b = i[~positive], j[~positive]
        if a.size:
            wires.resistor(here[a], here[b], -1 / S[a, b], origins("coupling", len(a), layer=0, unit=a, source=b))
        a, b = i[positive], j[positive]
        if not a.size:
            continue
        marks = origins("coupling", len(a), layer=0, unit=a, source=b, sign=-1)
        if doubled:
            wires.resistor(here[a], across[b], 1 / S[a, b], marks)
        else:
            wires.vccs(here[a], GROUND, here[b], GROUND, S[a, b], marks)
            wires.vccs(here[b], GROUND, here[a], GROUND, S[a, b], marks)
    kept = positive | ~positive if doubled else ~positive
    magnitude = np.abs(S[i, j]) * kept
    np.subtract.at(leak, i, magnitude)
    np.subtract.at(leak, j, magnitude)
    for nodes in sides:
        _add_leaks(wires, nodes, leak, float(np.abs(S).max()))


def _add_leaks(wires: CircuitBuilder, nodes: Array, leak: Array, largest: float) -> None:
    """A resistor to ground where the rest of the diagonal is positive, an active negative one where it is not."""
    up = np.flatnonzero(leak > _ROUNDING * largest)
    down = np.flatnonzero(leak < -_ROUNDING * largest)
    if up.size:
        wires.resistor(nodes[up], GROUND, 1 / leak[up], origins("leak", len(up), layer=0, unit=up))
    if down.size:
        marks = origins("leak", len(down), layer=0, unit=down, sign=-1)
        wires.vccs(nodes[down], GROUND, nodes[down], GROUND, leak[down], marks)
