"""Degree 2 against degree 7: whole networks, and the activation alone."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from encrypted.contenders import Pair, chain, interleaved, least_squares

from fhe.plan import PlanOptions, Ranges, plan_network
from fhe.rns.backend import RnsEvaluation
from fhe.runtime.program import program_of
from fhe.runtime.seal import SealContext, load_stream, save_stream

__all__ = ["degree"]


def degree(arguments: argparse.Namespace) -> dict[str, Any]:
    """Degree 2 against degree 7, both planned by us to the same error budget at the same ring degree."""
    found: dict[str, Any] = {}
    for name in ("784-128-10", "64-32-10"):
        for n in (8192, 16384):
            pairs, requests = {}, {}
            for d in (2, 7):
                network, calibration, held_out = least_squares(name, d)
                options = PlanOptions(poly_modulus_degree=n, logit_error=arguments.logit_error)
                plan = plan_network(network, Ranges.seen(network, calibration), options)
                pairs[d] = Pair(plan, network)
                requests[d] = pairs[d].encrypt(held_out[:1])
            medians = interleaved(
                {str(d): partial(pairs[d].infer, requests[d]) for d in pairs},
                arguments.rounds * 3,
                {},
            )
            found[f"{name} N={n}"] = {
                "degree_2_ms": medians["2"] * 1e3,
                "degree_7_ms": medians["7"] * 1e3,
                "ratio": medians["7"] / medians["2"],
                **{f"degree_{d}_chain": chain(pair.plan) for d, pair in pairs.items()},
                **{f"degree_{d}_sigma": max(pair.plan.sigma) for d, pair in pairs.items()},
            }
    found["activation module alone, one chain"] = activation_module(arguments)
    found["activation module alone, one chain, TenSEAL polyval"] = activation_polyval(arguments)
    return found


def activation_module(arguments: argparse.Namespace) -> dict[str, Any]:
    """Our activation alone, degree 2 and 7 on the chain that degree 7 asks for: the streams of all powers."""
    work: dict[str, Callable[[], Any]] = {}
    bits: tuple[int, ...] | None = None
    for d in (7, 2):
        network, calibration, _ = least_squares("64-32-10", d)
        options = PlanOptions(poly_modulus_degree=16384, coeff_modulus_bits=bits)
        plan = plan_network(network, Ranges.seen(network, calibration), options)
        bits = plan.exchange.parameters.coeff_modulus_bits
        pair, context = Pair(plan, network), SealContext(plan.exchange.parameters)
        levels = plan.exchange.parameters.levels
        secret = load_stream(context.seal.SecretKey(), context.context, pair.secret_stream)
        plain = context.encode(np.linspace(-1, 1, 8192), levels, 2.0**40)
        stream = save_stream(context.seal.Encryptor(context.context, secret).encrypt_symmetric(plain))
        evaluation = RnsEvaluation(context)
        (z,) = evaluation.load([memoryview(stream)], 2.0**40)
        backend = evaluation.backend(pair.key)
        work[str(d)] = partial(program_of(plan, network).powers, backend, 0, z)
    medians = interleaved(work, arguments.rounds * 5, {})
    return {
        "degree_2_ms": medians["2"] * 1e3,
        "degree_7_ms": medians["7"] * 1e3,
        "ratio": medians["7"] / medians["2"],
        "chain": f"N=16384 {list(bits or ())}",
    }


def activation_polyval(arguments: argparse.Namespace) -> dict[str, Any]:
    """The same in TenSEAL: ``polyval`` of the least-squares fits of the ReLU on [-1, 1]."""
    import tenseal

    context = tenseal.context(
        tenseal.SCHEME_TYPE.CKKS,
        poly_modulus_degree=16384,
        coeff_mod_bit_sizes=[60, 40, 40, 40, 40, 40, 60],
        n_threads=1,
    )
    context.global_scale = 2**40
    context.generate_relin_keys()
    z = tenseal.ckks_vector(context, np.linspace(-1, 1, 128).tolist())
    x = np.linspace(-1, 1, 1001)
    fits = {d: np.polynomial.Polynomial.fit(x, np.maximum(x, 0), d).convert().coef.tolist() for d in (2, 7)}
    medians = interleaved({str(d): partial(z.polyval, fit) for d, fit in fits.items()}, arguments.rounds * 5, {})
    return {
        "degree_2_ms": medians["2"] * 1e3,
        "degree_7_ms": medians["7"] * 1e3,
        "ratio": medians["7"] / medians["2"],
        "chain": "N=16384 [60, 40, 40, 40, 40, 40, 60]",
    }
