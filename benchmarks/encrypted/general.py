"""Random networks: bound, bytes, seconds and memory against what their plans foretold."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from encrypted.contenders import chain, cpu_seconds
from encrypted.primitives import calibrated_seconds, calibration

from deploy.interface import Feature, InputGuard, Interface
from deploy.model import Affine, Decision
from fhe.network import PolynomialNetwork
from fhe.plan import Plan, PlanOptions, Ranges, plan_network
from fhe.roles import CkksClientRole, CkksServerRole

__all__ = ["general"]


def random_network(rng: np.random.Generator) -> PolynomialNetwork:
    """Widths 3 to 3,000, one to four hidden layers, 1 to 200 outputs; some units dead, some passing on."""
    hidden = int(rng.integers(1, 5))
    largest = 3000 if hidden == 1 else 400
    widths = [int(np.exp(rng.uniform(np.log(3), np.log(limit)))) for limit in (3000, *[largest] * hidden)]
    widths.append(int(np.exp(rng.uniform(0, np.log(200)))))
    affines, tables = [], []
    for n_in, n_out in pairwise(widths):
        affines.append(Affine(rng.normal(size=(n_out, n_in)) / np.sqrt(n_in), rng.normal(size=n_out) * 0.1))
    for units in widths[1:-1]:
        table = np.zeros((units, 3))
        table[:, 1:] = rng.normal(size=(units, 2)) * [1.0, 0.5]
        table[rng.random(units) < 0.1] = 0.0
        table[rng.random(units) < 0.1] = [0.0, 1.0, 0.0]
        tables.append(table)
    return PolynomialNetwork(tuple(affines), tuple(tables), Decision("argmax" if widths[-1] > 1 else "sign"))


def general(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Random networks: do they run, stay within their bound, and need what was foretold?

    The cost table is calibrated once, here and now; each server runs in a process of its own, so that its peak memory
    is its own.
    """
    measured, found = calibration(arguments.rounds), []
    for seed in range(arguments.networks):
        found.append(one_random_network(seed, measured))
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    return found


def one_random_network(seed: int, measured: dict[tuple[str, int, int], float]) -> dict[str, Any]:
    """Plan, encrypt here, compute in another process, decrypt here."""
    rng = np.random.default_rng(seed)
    network = random_network(rng)
    x = rng.random((64, network.n_in))
    plan = plan_network(network, Ranges.seen(network, x), PlanOptions())
    features = tuple(Feature(f"x{index}", 0.0, 1.0) for index in range(network.n_in))
    guard = InputGuard(features, "stated")
    client = CkksClientRole(
        plan.exchange, Interface(network.decision, None, network.n_out, (network.n_in,), "none", guard)
    )
    keys = client.generate_keys()
    request = client.encrypt(x[:1], keys.secret)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys"
        path.write_bytes(keys.evaluation)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            served = pool.submit(serve, plan.to_bytes(), network.to_bytes(), path, request).result()
    errors = np.abs(client.decrypt(served["answer"], keys.secret) - network.logits(x[:1]))
    expected = plan.expected
    return {
        "widths": list(network.widths),
        "planned": list(plan.widths),
        "chain": chain(plan),
        "error": float(errors.max()),
        "bound": max(plan.bound),
        "within": bool((errors <= plan.bound).all()),
        "key_bytes_ratio": expected.key_bytes / len(keys.evaluation),
        "request_bytes_ratio": expected.request_bytes / len(request),
        "answer_bytes_ratio": expected.answer_bytes / len(served["answer"]),
        "peak_memory_MB": served["peak"] / 1e6,
        "peak_memory_ratio": expected.peak_memory_bytes / served["peak"],
        "seconds": served["seconds"],
        "seconds_ratio": calibrated_seconds(plan, measured) / served["seconds"],
        "seconds_ratio_of_the_table": expected.server_seconds / served["seconds"],
    }


def serve(plan: bytes, network: bytes, keys: Path, request: bytes) -> dict[str, Any]:
    """A server's life: load plan, network and keys, answer; its seconds for one answer and its peak memory."""
    server = CkksServerRole(Plan.from_bytes(plan), PolynomialNetwork.from_bytes(network))
    server.check_key(keys)
    key = server.load_key(keys)
    answer = server.infer(request, key)
    seconds = min(cpu_seconds(lambda: server.infer(request, key)) for _ in range(3))
    # the kernel's figure of this program alone: that of getrusage starts with the parent's
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) * 1024
    return {"answer": answer, "seconds": seconds, "peak": peak}
