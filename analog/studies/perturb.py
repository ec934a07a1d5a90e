"""Circuits that differ from a given one: pure functions, so that a study's case is a few numbers.

Axes: ``resistors``, ``amplifiers``, ``nodes``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analog.circuit import ORIGIN, ROLES, Circuit, Sources
from deploy.arrays import Array

__all__ = [
    "limit_amplifier_gain",
    "offset_amplifiers",
    "scale_conductances",
    "scale_resistors",
    "scale_sources",
    "select_resistors",
]


def select_resistors(circuit: Circuit, roles: Sequence[str]) -> Array:
    """Which resistors have one of the roles: (resistors,) of bool."""
    wanted = [ROLES.index(role) for role in roles]
    return np.asarray(np.isin(circuit.resistors.origin["role"], wanted))


def scale_resistors(circuit: Circuit, factors: Array | float, which: Array | None = None) -> Circuit:
    """Multiply resistances by `factors` (resistors,), where `which` says so."""
    scaled = circuit.resistors.ohm * factors
    ohm = scaled if which is None else np.where(which, scaled, circuit.resistors.ohm)
    return circuit.with_(resistors=circuit.resistors.with_(ohm=ohm))


def scale_conductances(circuit: Circuit, factor: float) -> Circuit:
    """Multiply every conductance (resistors, transconductances, gyrators, current sources) by `factor`.

    With ideal diodes no voltage changes and every power is multiplied by the factor.
    """
    scaled = scale_resistors(circuit, 1 / factor)
    currents = circuit.current_sources
    return scaled.with_(
        vccs=circuit.vccs.with_(siemens=circuit.vccs.siemens * factor),
        gyrators=circuit.gyrators.with_(siemens=circuit.gyrators.siemens * factor),
        current_sources=currents.with_(value=currents.value * factor, per_unit=currents.per_unit * factor),
    )


def scale_sources(circuit: Circuit, role: str, factor: float) -> Circuit:
    """Multiply the voltage sources of one role ("clamp rail", "bias rail", "input")."""
    table = circuit.voltage_sources
    chosen = table.origin["role"] == ROLES.index(role)
    value = np.where(chosen, table.value * factor, table.value)
    per_unit = np.where(chosen, table.per_unit * factor, table.per_unit)
    return circuit.with_(voltage_sources=table.with_(value=value, per_unit=per_unit))


def offset_amplifiers(circuit: Circuit, volts: Array) -> Circuit:
    """Put an input offset (amplifiers,) in volts before every VCVS, then every op-amp, in their order.

    A VCVS then gives gain (v_control + offset): a source is put into its non-inverting input. An op-amp's own
    offset is raised.
    """
    table, amps = circuit.vcvs, circuit.op_amps
    count = len(table)
    first = circuit.n_nodes
    shifted = np.arange(first, first + count)
    names = tuple(f"{circuit.node_names[out]} offset {k}" for k, out in enumerate(table.plus.tolist()))
    sources = Sources(
        origin=table.origin,
        plus=shifted,
        minus=table.control_plus,
        value=volts[:count],
        input=np.full(count, -1),
        per_unit=np.zeros(count),
    )
    node_origins = np.concatenate([circuit.node_origins, np.asarray(table.origin, dtype=ORIGIN)])
    return circuit.with_(
        node_names=circuit.node_names + names,
        node_origins=node_origins,
        voltage_sources=Sources.join([circuit.voltage_sources, sources]),
        vcvs=table.with_(control_plus=shifted),
        op_amps=amps.with_(offset=amps.offset + volts[count:]),
    )


def limit_amplifier_gain(circuit: Circuit, open_loop: float) -> Circuit:
    """Build every VCVS from an op-amp of finite open-loop gain A: gain k becomes k / (1 + n / A).

    n is the noise gain: max(k, 1) of a non-inverting stage, 1 + |k| of an inverting one. Op-amps get A itself.
    """
    gain = circuit.vcvs.gain
    noise_gain = np.where(gain >= 0, np.maximum(gain, 1.0), 1 - gain)
    return circuit.with_(
        vcvs=circuit.vcvs.with_(gain=gain / (1 + noise_gain / open_loop)),
        op_amps=circuit.op_amps.with_(gain=np.full(len(circuit.op_amps), open_loop)),
    )
