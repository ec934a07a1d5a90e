"""What can be wrong with a circuit before anything is solved, by name.

SPICE reports a floating node as "singular matrix" after it has tried; here it is refused first.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from analog.circuit import GROUND, Circuit
from deploy.arrays import Array
from deploy.errors import InputError

__all__ = ["check_circuit", "floating_nodes"]


def floating_nodes(circuit: Circuit) -> Array:
    """Indices of nodes without a path of direct current to ground.

    Resistors, diodes (their gmin), voltage sources, outputs of VCVS and op-amps conduct; current sources,
    transconductances and gyrators do not.
    """
    pairs = [
        (circuit.resistors.a, circuit.resistors.b),
        (circuit.diodes.anode, circuit.diodes.cathode),
        (circuit.voltage_sources.plus, circuit.voltage_sources.minus),
        (circuit.vcvs.plus, circuit.vcvs.minus),
        (circuit.op_amps.out, np.full(len(circuit.op_amps), GROUND)),
    ]
    first = np.concatenate([a for a, _ in pairs])
    second = np.concatenate([b for _, b in pairs])
    shape = (circuit.n_nodes, circuit.n_nodes)
    graph = coo_matrix((np.ones(len(first)), (first, second)), shape=shape)
    _, label = connected_components(graph, directed=False)
    return np.flatnonzero(label != label[GROUND])


def check_circuit(circuit: Circuit) -> None:
    """Refuse a circuit that has no operating point, naming the node.

    Raises
    ------
    InputError : nodes without a path of direct current to ground; voltage sources that form a loop.
    """
    floating = floating_nodes(circuit)
    if floating.size:
        names = ", ".join(circuit.node_names[node] for node in floating[:5])
        raise InputError(
            f"{floating.size} nodes have no path of direct current to ground: {names}"
            f"{', …' if floating.size > 5 else ''}",
            remedy="connect each through a resistor",
        )
    _check_source_loops(circuit)


def _check_source_loops(circuit: Circuit) -> None:
    parent = list(range(circuit.n_nodes))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    ends = (
        *zip(circuit.voltage_sources.plus.tolist(), circuit.voltage_sources.minus.tolist(), strict=True),
        *zip(circuit.vcvs.plus.tolist(), circuit.vcvs.minus.tolist(), strict=True),
        *((out, GROUND) for out in circuit.op_amps.out.tolist()),
    )
    for plus, minus in ends:
        first, second = root(plus), root(minus)
        if first == second:
            names = f"{circuit.node_names[plus]} and {circuit.node_names[minus]}"
            raise InputError(
                f"voltage sources form a loop between nodes {names}", remedy="put a resistor in series with one"
            )
        parent[first] = second
