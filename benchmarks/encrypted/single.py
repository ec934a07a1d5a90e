"""One row at a time against correct naive TenSEAL."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
from encrypted.contenders import Pair, chain, interleaved, least_squares

from fhe.plan import PlanOptions, Ranges, plan_network

__all__ = ["single"]


def single(arguments: argparse.Namespace) -> dict[str, Any]:
    """One row at a time, ours against correct naive TenSEAL at the same ring degree."""
    from peers.tenseal_naive import NaiveTenseal

    found = {}
    for name in ("784-128-10", "64-32-10"):
        network, calibration, held_out = least_squares(name)
        options = PlanOptions(poly_modulus_degree=8192)
        plan = plan_network(network, Ranges.seen(network, calibration), options)
        pair, naive = Pair(plan, network), NaiveTenseal(network)
        on_seal = Pair(plan, network, kernels=False)
        request, vector = pair.encrypt(held_out[:1]), naive.encrypt(held_out[0])
        medians = interleaved(
            {
                "ours": partial(pair.infer, request),
                "ours_in_memory": pair.in_memory(request),
                "ours_on_seal": partial(on_seal.infer, on_seal.encrypt(held_out[:1])),
                "naive": partial(naive.infer, vector),
            },
            arguments.rounds,
            {"ours": 20, "ours_in_memory": 20, "ours_on_seal": 20},
        )
        expected = network.logits(held_out[:1])[0]
        found[name] = {
            "ours_ms": medians["ours"] * 1e3,
            "ours_in_memory_ms": medians["ours_in_memory"] * 1e3,
            "ours_on_seal_ms": medians["ours_on_seal"] * 1e3,
            "naive_ms": medians["naive"] * 1e3,
            "ratio": medians["naive"] / medians["ours"],
            "ours_chain": chain(plan),
            "naive_chain": naive.settings,
            "ours_error": float(np.abs(pair.decrypt(pair.infer(request))[0] - expected).max()),
            "naive_error": float(np.abs(naive.decrypt(naive.infer(vector)) - expected).max()),
            "ours_galois_key_MB": plan.expected.galois_key_bytes / 1e6,
            "naive_galois_key_MB": naive.galois_key_bytes / 1e6,
            "evaluation_keys_predicted_over_measured": plan.expected.key_bytes / pair.evaluation_bytes,
            "request_kB": len(request) / 1e3,
        }
    return found
