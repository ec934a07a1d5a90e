"""Whole runs: in the clear, and through both roles on ciphertexts.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Self

import numpy as np

from deploy.arrays import Array
from deploy.errors import WireError
from deploy.interface import Interface
from deploy.requirement import Requirement
from deploy.target import EngineRun, Json
from fhe.network import PolynomialNetwork
from fhe.plan import Plan
from fhe.roles import CkksClientRole, CkksServerRole
from fhe.runtime.bounds import row_bound
from fhe.runtime.cleartext import Cleartext
from fhe.runtime.program import input_slots, program_of, read_answer
from fhe.runtime.throughput import run_batch_in_clear

__all__ = ["TENSEAL", "CkksEngine", "ClearEngine", "run_in_clear"]

TENSEAL = Requirement("tenseal", 'pip install "relu-deploy[ckks]"', module="tenseal")


def run_in_clear(plan: Plan, network: PolynomialNetwork, x: Array) -> Array:
    """Logits (batch, n_out) of rows x (batch, n_in) by the plan's own primitives on double-precision slots."""
    if plan.exchange.packing == "throughput":
        return run_batch_in_clear(plan, network, x)
    program = program_of(plan, network)
    exchange = plan.exchange
    backend = Cleartext(exchange.parameters)
    found = []
    for at in range(0, len(x), exchange.rows):
        rows = x[at : at + exchange.rows]
        inputs = [backend.fresh(slots, exchange.input_scale) for slots in input_slots(exchange, rows)]
        answers = [answer.slots for answer in program.run(backend, inputs)]
        found.append(read_answer(exchange, answers)[: len(rows)])
    return np.concatenate(found)


class ClearEngine:
    """The plan's own steps on plaintext slots: what packing alone does to the numbers."""

    requires: Requirement | None = None

    def __init__(self, plan: Plan, network: PolynomialNetwork) -> None:
        self._plan = plan
        self._network = network

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def run(self, x: Array) -> EngineRun:
        """Run rows (batch, n_in)."""
        start = time.perf_counter()
        logits = run_in_clear(self._plan, self._network, x)
        return EngineRun(logits=logits, seconds={"client": 0.0, "server": time.perf_counter() - start})


class CkksEngine:
    """Keys, encryption, evaluation and decryption through the two roles in this process.

    Entering makes the keys and runs one row, which encodes the plaintexts, so that :meth:`run` times inference alone.

    Parameters
    ----------
    plan, network : of the deployment.
    interface : for the client's side.
    """

    requires: Requirement | None = TENSEAL

    def __init__(self, plan: Plan, network: PolynomialNetwork, interface: Interface) -> None:
        self._plan = plan
        self._network = network
        self._interface = interface
        self._state: tuple[CkksClientRole, CkksServerRole, bytes, Any, dict[str, float]] | None = None

    def __enter__(self) -> Self:
        client = CkksClientRole(self._plan.exchange, self._interface)
        server = CkksServerRole(self._plan, self._network)
        start = time.perf_counter()
        keys = client.generate_keys()
        made = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "keys"
            path.write_bytes(keys.evaluation)
            server.check_key(path)
            key = server.load_key(path)
        loaded = time.perf_counter()
        centre = np.array(self._plan.exchange.offset)[None]
        server.infer(client.encrypt(centre, keys.secret), key)
        seconds = {
            "key_generation_seconds": made - start,
            "key_check_and_load_seconds": loaded - made,
            "first_inference_seconds": time.perf_counter() - loaded,
        }
        self._state = (client, server, keys.secret, key, seconds)
        return self

    def __exit__(self, *exc: object) -> None:
        self._state = None

    def run(self, x: Array) -> EngineRun:
        """Run rows (batch, n_in)."""
        if self._state is None:
            raise RuntimeError("enter the engine first")
        client, server, secret, key, setup = self._state
        rows = self._plan.exchange.rows
        logits = np.full((len(x), self._plan.exchange.n_out), np.nan)
        seconds = {"client": 0.0, "server": 0.0}
        failures: dict[int, str] = {}
        for at in range(0, len(x), rows):
            part = x[at : at + rows]
            start = time.perf_counter()
            request = client.encrypt(part, secret)
            sent = time.perf_counter()
            try:
                answer = server.infer(request, key)
            except WireError as error:
                failures.update({row: str(error) for row in range(at, at + len(part))})
                continue
            answered = time.perf_counter()
            logits[at : at + len(part)] = client.decrypt(answer, secret)[: len(part)]
            seconds["client"] += sent - start + time.perf_counter() - answered
            seconds["server"] += answered - sent
        expected = self._plan.expected
        return EngineRun(
            logits=logits,
            seconds={"client": seconds["client"], "server": seconds["server"]},
            failures=failures,
            diagnostics={
                **setup,
                "request_bytes": expected.request_bytes,
                "answer_bytes": expected.answer_bytes,
                "key_bytes": expected.key_bytes,
                "rows_per_request": rows,
                **self._decisions(x, logits),
            },
        )

    def _decisions(self, x: Array, logits: Array) -> dict[str, Json]:
        """How errors and decisions compare with the bound of each row."""
        network = self._network
        expected = network.logits(x)
        bound = row_bound(self._plan, network, x)
        agree = network.decision.agree(expected, logits)
        above = network.decision.margins(expected) > 2 * bound
        return {
            "logit_bound": float(bound.max()),
            "logit_bound_kind": "estimated",
            "rows_whose_margin_exceeds_the_bound": int(above.sum()),
            "flips_above_the_bound": int((above & ~agree).sum()),
            "flips_below_the_bound": int((~above & ~agree).sum()),
        }
