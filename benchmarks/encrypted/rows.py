"""Real rows: errors and decisions, rows a second, and resident memory over many of them."""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import numpy as np
from encrypted.contenders import MODELS, Pair, chain, interleaved, least_squares

from fhe.plan import PlanOptions, Ranges, plan_network
from fhe.runtime.bounds import logit_bound

__all__ = ["memory", "rows", "throughput"]


def throughput(arguments: argparse.Namespace) -> dict[str, Any]:
    """Rows a second of one core with one row in each slot and part."""
    found = {}
    for name in ("64-32-10", "784-128-10"):
        network, calibration, _ = least_squares(name)
        plan = plan_network(network, Ranges.seen(network, calibration), PlanOptions(packing="throughput"))
        pair = Pair(plan, network)
        rows = np.resize(calibration, (plan.exchange.rows, network.n_in))
        request = pair.encrypt(rows)
        answer = pair.infer(request)
        seconds = interleaved({"ours": partial(pair.infer, request)}, arguments.rounds, {})["ours"]
        logits, expected = pair.decrypt(answer), network.logits(rows)
        found[name] = {
            "rows": len(rows),
            "seconds": seconds,
            "rows_per_second": len(rows) / seconds,
            "chain": chain(plan),
            "max_error": float(np.abs(logits - expected).max()),
            "bound": max(plan.bound),
            "agreement": float(network.decision.agree(expected, logits).mean()),
            "request_kB_per_row": len(request) / 1e3 / len(rows),
            "seconds_predicted_over_measured": plan.expected.server_seconds / seconds,
        }
    return found


def rows(arguments: argparse.Namespace) -> dict[str, Any]:
    """Errors and decisions on held-out rows, against the bound of each row."""
    found = {}
    for name in MODELS:
        network, calibration, held_out = least_squares(name)
        count = min(len(held_out), arguments.rows if name in ("784-128-10", "64-32-10") else 100)
        plan = plan_network(network, Ranges.seen(network, calibration), PlanOptions())
        pair = Pair(plan, network)
        x = held_out[:count]
        start = time.process_time()
        answers = [pair.infer(pair.encrypt(row[None])) for row in x]
        seconds = (time.process_time() - start) / count
        logits = np.concatenate([pair.decrypt(answer) for answer in answers])
        expected = network.logits(x)
        bound = logit_bound(plan, network, x)
        errors = np.abs(logits - expected)
        agree = network.decision.agree(expected, logits)
        above = network.decision.margins(expected) > 2 * bound.max(axis=1)
        found[name] = {
            "rows": count,
            "chain": chain(plan),
            "max_error": float(errors.max()),
            "rms_error": float(np.sqrt((errors**2).mean())),
            "largest_error_over_bound": float((errors / bound).max()),
            "bound_median": float(np.median(bound)),
            "flips_above_bound": int((~agree & above).sum()),
            "flips_below_bound": int((~agree & ~above).sum()),
            "rows_below_bound": int((~above).sum()),
            "seconds_per_row": seconds,
            "key_MB": plan.expected.key_bytes / 1e6,
        }
    return found


def memory(arguments: argparse.Namespace) -> dict[str, Any]:
    """Resident memory over many inferences, every answer decrypted."""
    import psutil

    network, calibration, held_out = least_squares("64-32-10")
    plan = plan_network(network, Ranges.seen(network, calibration), PlanOptions())
    pair = Pair(plan, network)
    process = psutil.Process()
    resident = {}
    for index in range(arguments.inferences + 1):
        row = held_out[index % len(held_out)][None]
        pair.decrypt(pair.infer(pair.encrypt(row)))
        if index in (20, arguments.inferences // 2, arguments.inferences):
            resident[index] = process.memory_info().rss
    first, last = resident[20], resident[arguments.inferences]
    return {"resident_MB": {k: v / 1e6 for k, v in resident.items()}, "growth": last / first - 1}
