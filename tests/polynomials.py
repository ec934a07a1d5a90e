"""Random polynomial networks, their ranges and interfaces, for tests of the encrypted target."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from deploy.arrays import Array
from deploy.interface import Feature, InputGuard, Interface
from deploy.model import Affine, Decision
from fhe.network import PolynomialNetwork
from fhe.plan import Plan, PlanOptions, Ranges, plan_network
from fhe.roles import CkksClientRole, CkksServerRole


def random_polynomial_network(
    rng: np.random.Generator, widths: tuple[int, ...], *, degree: int = 2, dead: float = 0.1, linear: float = 0.1
) -> PolynomialNetwork:
    """Weights that keep values near 1; some units dead, some passing their pre-activation on."""
    affines, tables = [], []
    for n_in, n_out in pairwise(widths):
        affines.append(Affine(rng.normal(size=(n_out, n_in)) / np.sqrt(n_in), rng.normal(size=n_out) * 0.1))
    for units in widths[1:-1]:
        table = np.zeros((units, degree + 1))
        table[:, 1:] = rng.normal(size=(units, degree)) / 2.0 ** np.arange(degree)
        table[rng.random(units) < dead] = 0.0
        identity = rng.random(units) < linear
        table[identity] = 0.0
        table[identity, 1] = 1.0
        tables.append(table)
    return PolynomialNetwork(tuple(affines), tuple(tables), Decision("argmax" if widths[-1] > 1 else "sign"))


def interface_for(network: PolynomialNetwork, low: float = 0.0, high: float = 1.0) -> Interface:
    """What a client of this network is told."""
    features = tuple(Feature(f"x{index}", low, high) for index in range(network.n_in))
    guard = InputGuard(features, "stated")
    return Interface(network.decision, None, network.n_out, (network.n_in,), "none", guard)


class Session:
    """A client with keys and a server that holds them."""

    def __init__(
        self, plan: Plan, network: PolynomialNetwork, folder: Path, *, kernels: bool | None = None
    ) -> None:
        self.client = CkksClientRole(plan.exchange, interface_for(network))
        self.server = CkksServerRole(plan, network, kernels=kernels)
        self.keys = self.client.generate_keys()
        path = folder / "evaluation.keys"
        path.write_bytes(self.keys.evaluation)
        self.server.check_key(path)
        self.key = self.server.load_key(path)

    def logits(self, x: Array) -> Array:
        """Encrypt, evaluate and decrypt rows (batch, n_in)."""
        rows = self.client.exchange.rows
        found = []
        for at in range(0, len(x), rows):
            part = x[at : at + rows]
            answer = self.server.infer(self.client.encrypt(part, self.keys.secret), self.key)
            found.append(self.client.decrypt(answer, self.keys.secret)[: len(part)])
        return np.concatenate(found)


def planned_session(
    rng: np.random.Generator,
    widths: tuple[int, ...],
    rows: int,
    folder: Path,
    options: PlanOptions | None = None,
) -> tuple[PolynomialNetwork, Array, Plan, Session]:
    """A random network, rows (rows, n_in) in [0, 1], a plan over what they span, and both roles with keys."""
    network = random_polynomial_network(rng, widths)
    x = rng.random((rows, widths[0]))
    plan = plan_network(network, Ranges.seen(network, x), options)
    return network, x, plan, Session(plan, network, folder)
