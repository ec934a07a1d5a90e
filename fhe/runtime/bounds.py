"""How far a run's logits may lie from the network's, for given rows.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

import math

import numpy as np

from deploy.arrays import Array
from fhe.network import PolynomialNetwork
from fhe.noise import StageNoise, logit_sigma, sensitivities_at
from fhe.plan.arrangement import Arrangement
from fhe.plan.chain import Chain, Family, Shape, stage_noise
from fhe.plan.plan import Plan
from fhe.plan.stages import input_streams
from fhe.runtime.program import program_of

__all__ = ["logit_bound", "logit_standard_deviation", "row_bound"]


def logit_standard_deviation(plan: Plan, network: PolynomialNetwork, x: Array) -> Array:
    """(batch, n_out) estimated standard deviation of each decrypted logit's error at rows x (batch, n_in)."""
    exchange = plan.exchange
    stages = program_of(plan, network).stages
    noise = _stage_noise(plan)
    special = float(exchange.parameters.coeff_modulus_bits[-1])
    streams = input_streams(exchange.scaling(x), pairs=exchange.pairs, tile=exchange.tile)
    return np.stack(
        [
            logit_sigma(
                exchange.parameters.poly_modulus_degree,
                special,
                noise,
                sensitivities_at(stages, [stream[row : row + 1] for stream in streams]),
            )
            for row in range(len(x))
        ]
    )


def logit_bound(plan: Plan, network: PolynomialNetwork, x: Array) -> Array:
    """(batch, n_out) what each decrypted logit's error is held to stay under: ``plan.certainty`` deviations.

    An estimate (:mod:`fhe.noise`), not a proof: a row whose margin exceeds twice this does not flip as far as the
    model goes.
    """
    return plan.certainty * logit_standard_deviation(plan, network, x)


def row_bound(plan: Plan, network: PolynomialNetwork, x: Array) -> Array:
    """(batch,) the largest bound of a row's logits; for packing=throughput the plan's, whatever the row."""
    if plan.exchange.packing == "throughput":
        return np.full(len(x), max(plan.bound))
    return np.asarray(logit_bound(plan, network, x).max(axis=1))


def _stage_noise(plan: Plan) -> list[StageNoise]:
    exchange = plan.exchange
    hidden = plan.stages[:-1]
    arrangements: list[Arrangement] = []
    streams = exchange.tiles
    for stage, width in zip(plan.stages, plan.widths[1:], strict=True):
        arrangements.append(
            Arrangement(
                stage.layout,
                stage.rows_layout.period,
                stage.babies,
                stage.chained,
                stage.closing,
                streams,
                stage.row_tile,
                unfolded=not stage.degree,
                presented=not arrangements and exchange.client_rotations > 1,
            )
        )
        streams = stage.streams_out * -(-width // stage.row_tile)
    family: Family = "merged"
    if any(stage.rescale for stage in hidden):
        family = "early" if any(stage.early for stage in hidden) else "split"
    chain = Chain(
        exchange.parameters.coeff_modulus_bits,
        family,
        exchange.input_scale_bits,
        tuple(stage.weight_scale_bits for stage in plan.stages),
    )
    shape = Shape(tuple(stage.depth for stage in hidden), math.log2(plan.logit_range) - 1)
    found = stage_noise(chain, shape, arrangements, exchange.positions)
    if found is None:
        raise AssertionError("a plan whose scales do not fit its primes")
    return found
