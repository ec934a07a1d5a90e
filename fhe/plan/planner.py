"""From a network and its ranges to the cheapest plan whose error is small enough.

The search is exhaustive over what matters: ring degree, family of chains (:mod:`fhe.plan.chain`), one or two inputs
a slot, and the period of every layer's layout, the last by dynamic programming. Costs come from a fixed table, so the
same request gives the same plan on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from deploy.arrays import Array
from deploy.errors import PlanError
from fhe.network import PolynomialNetwork
from fhe.noise import CERTAINTY, Sensitivity, largest, logit_sigma, sensitivities_at, sensitivities_over
from fhe.plan.arrangement import Arrangement, arrange
from fhe.plan.chain import (
    FAMILIES,
    Chain,
    Family,
    Shape,
    best_chain,
    chain_is_lazy,
    level_weights,
    levels_at,
    levels_needed,
    stage_noise,
)
from fhe.plan.expected import expect
from fhe.plan.layout import Layout
from fhe.plan.ledger import Ledger
from fhe.plan.options import PlanOptions
from fhe.plan.parameters import MAX_MODULUS_BITS, Parameters
from fhe.plan.plan import Exchange, Plan, StagePlan, power_depth
from fhe.plan.stages import (
    InputScaling,
    Ranges,
    Stage,
    exponents_of,
    input_streams,
    reduce_network,
    stages_of,
)
from fhe.plan.throughput import plan_throughput
from fhe.runtime.program import Program

__all__ = ["plan_network"]

_DEGREES = (8192, 16384, 32768)


@dataclass(frozen=True, eq=False)
class _Request:
    """The network, made ready once."""

    network: PolynomialNetwork
    ranges: Ranges
    scaling: InputScaling
    exponents: tuple[Array, ...]
    shape: Shape
    options: PlanOptions
    logit_range: float
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class _Draft:
    """A ring degree, a family of chains and the cheapest packing for them; its error is not known yet."""

    request: _Request
    stages: tuple[Stage, ...]
    typical: list[Sensitivity]
    worst: list[Sensitivity]
    n: int
    rows: int
    pairs: bool
    tile: int
    rotated: bool
    family: Family
    arrangements: tuple[Arrangement, ...]
    answer_period: int
    seconds: float

    @property
    def positions(self) -> int:
        """Slots of one row."""
        return self.n // 2 // self.rows


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A draft with its best chain, and the largest standard deviation of a logit."""

    draft: _Draft
    chain: Chain
    sigma: float


def plan_network(network: PolynomialNetwork, ranges: Ranges, options: PlanOptions | None = None) -> Plan:
    """Choose parameters, scales, packing and keys for a network.

    Parameters
    ----------
    network : affine layers with one polynomial per hidden unit.
    ranges : where inputs, pre-activations and logits lie; they set exponents, headroom and the error estimate.
    options : what is asked.

    Raises
    ------
    PlanError : no parameters in the 128-bit table do it, with the numbers.
    """
    options = options or PlanOptions()
    if options.packing == "throughput":
        return plan_throughput(network, ranges, options)
    request = _prepare(network, ranges, options)
    target = options.logit_error * max(1.0, request.logit_range / 64)
    found: list[_Candidate] = []
    for draft in sorted(_drafts(request), key=lambda draft: draft.seconds):
        candidate = _with_chain(draft)
        if candidate is not None:
            found.append(candidate)
            if options.objective != "error" and CERTAINTY * candidate.sigma <= target:
                break
    if not found:
        raise _nothing_fits(request)
    choice = min(found, key=lambda candidate: (candidate.sigma, candidate.draft.seconds))
    within = CERTAINTY * choice.sigma <= target
    if options.objective != "error" and CERTAINTY * found[-1].sigma <= target:
        choice = found[-1]
    notes = (
        () if within else (f"no chain in the table reaches a logit error of {target:.2g}; this is the least error",)
    )
    return _finish(choice, network, notes)


def _prepare(network: PolynomialNetwork, ranges: Ranges, options: PlanOptions) -> _Request:
    if len(ranges.preactivations) != len(network.coefficients) or len(ranges.inputs.low) != network.n_in:
        raise PlanError(
            f"ranges of {len(ranges.preactivations)} hidden layers and {len(ranges.inputs.low)} inputs do not go "
            f"with a network of {len(network.coefficients)} and {network.n_in}"
        )
    if options.packing == "interleaved" and options.rows & (options.rows - 1):
        raise PlanError(f"{options.rows} rows are interleaved", remedy="use a power of two")
    reduced = reduce_network(network)
    left = reduced.ranges(ranges)
    exponents = tuple(exponents_of(box) for box in left.preactivations)
    logit_range = float(max(left.logits.radius.max(), 2.0**-20))
    depths = tuple(power_depth(degree) for degree in reduced.network.degrees)
    return _Request(
        reduced.network,
        left,
        InputScaling.for_box(left.inputs),
        exponents,
        Shape(depths, max(0.0, math.log2(logit_range))),
        options,
        logit_range,
        reduced.notes(network),
    )


def _degrees(request: _Request) -> tuple[int, ...]:
    pinned = request.options.poly_modulus_degree
    if pinned is None:
        if request.options.coeff_modulus_bits is not None:
            total = sum(request.options.coeff_modulus_bits)
            return tuple(n for n in _DEGREES if MAX_MODULUS_BITS[n] >= total)
        return _DEGREES
    Parameters(poly_modulus_degree=pinned, coeff_modulus_bits=request.options.coeff_modulus_bits or (20, 20))
    return (pinned,)


def _drafts(request: _Request) -> Iterator[_Draft]:
    options = request.options
    rows = options.rows if options.packing == "interleaved" else 1
    for pairs in (True, False) if options.pairs is None else (options.pairs,):
        columns = -(-request.network.n_in // 2) if pairs else request.network.n_in
        ready: dict[int, tuple[tuple[Stage, ...], list[Sensitivity], list[Sensitivity]]] = {}
        for n in _degrees(request):
            positions = n // 2 // rows
            if not positions:
                continue
            tile = -(-columns // -(-columns // positions))
            if tile not in ready:
                stages = stages_of(request.network, request.scaling, request.exponents, pairs=pairs, tile=tile)
                worst = sensitivities_over(stages, request.ranges, request.exponents)
                ready[tile] = stages, _typical(request, stages, pairs, tile) or worst, worst
            for family in FAMILIES if request.shape.depths else FAMILIES[:1]:
                levels = levels_needed(request.shape, family=family)
                if options.coeff_modulus_bits is not None:
                    levels = max(levels, len(options.coeff_modulus_bits) - 1)
                for rotated in (False, True) if options.client_rotations is None else (options.client_rotations,):
                    arranged = arrange(
                        ready[tile][0],
                        n,
                        positions,
                        levels_at(request.shape, levels, family=family),
                        early=family == "early",
                        client_rotations=rotated,
                        objective=options.objective,
                    )
                    if arranged is not None:
                        yield _Draft(request, *ready[tile], n, rows, pairs, tile, rotated, family, *arranged)


def _typical(request: _Request, stages: Sequence[Stage], pairs: bool, tile: int) -> list[Sensitivity] | None:
    """Sensitivities at typical rows, where there are any."""
    if request.ranges.rows is None:
        return None
    streams = input_streams(request.scaling(request.ranges.rows), pairs=pairs, tile=tile)
    return largest(
        [sensitivities_at(stages, [stream[row : row + 1] for stream in streams]) for row in range(len(streams[0]))]
    )


def _with_chain(draft: _Draft) -> _Candidate | None:
    best = best_chain(
        draft.n,
        draft.request.shape,
        draft.arrangements,
        draft.positions,
        draft.typical,
        family=draft.family,
        pinned=draft.request.options.coeff_modulus_bits,
    )
    return None if best is None else _Candidate(draft, *best)


def _finish(choice: _Candidate, network: PolynomialNetwork, notes: tuple[str, ...]) -> Plan:
    draft, chain = choice.draft, choice.chain
    request = draft.request
    parameters = Parameters(poly_modulus_degree=draft.n, coeff_modulus_bits=chain.bits)
    plans = _stage_plans(choice)
    exchange = Exchange(
        parameters=parameters,
        packing=request.options.packing,
        rows=draft.rows,
        n_in=request.network.n_in,
        n_out=request.network.n_out,
        pairs=draft.pairs,
        input_layout=plans[0].layout,
        tile=draft.tile,
        client_rotations=min(plans[0].babies, plans[0].layout.stride) if draft.rotated else 1,
        input_scale_bits=chain.input_bits,
        offset=tuple(request.scaling.offset.tolist()),
        exponents=tuple(request.scaling.exponents.tolist()),
        answer_tile=plans[-1].row_tile,
        answer_period=draft.answer_period,
        answer_blocks=draft.arrangements[-1].blocks(draft.positions),
        answer_scale=1.0,
        galois_elements=(),
        relinearization=bool(request.shape.depths),
    )
    program = Program(exchange, plans, draft.stages)
    ledger = Ledger(parameters.data_primes)
    answer, *_ = program.run(ledger, [ledger.fresh(exchange.input_scale)] * exchange.request_ciphertexts)
    exchange = exchange.model_copy(
        update={"answer_scale": answer.scale, "galois_elements": galois_elements(ledger, draft.n)}
    )
    noise = stage_noise(chain, request.shape, draft.arrangements, exchange.positions)
    if noise is None:
        raise AssertionError("the chosen chain does not fit")
    sigma = logit_sigma(draft.n, chain.bits[-1], noise, draft.typical)
    worst = logit_sigma(draft.n, chain.bits[-1], noise, largest([draft.typical, draft.worst]))
    return Plan(
        exchange=exchange,
        network_sha256=network.sha256,
        widths=request.network.widths,
        hidden_exponents=tuple(tuple(row.tolist()) for row in request.exponents),
        stages=plans,
        sigma=tuple(sigma.tolist()),
        bound=tuple((CERTAINTY * worst).tolist()),
        certainty=CERTAINTY,
        ranges_kind="proved" if request.ranges.kind == "proved" else "estimated",
        logit_range=2.0 ** (request.shape.logit_bits + 1),
        expected=expect(exchange, ledger),
        notes=(*request.notes, *notes),
    )


def galois_elements(ledger: Ledger, n: int) -> tuple[int, ...]:
    """Galois elements of the rotations that were used: 3**step modulo 2N, and 2N - 1 for the conjugation."""
    found = {pow(3, step % (n // 2), 2 * n) for step in ledger.rotations}
    if ledger.conjugates:
        found.add(2 * n - 1)
    return tuple(sorted(found))


def _stage_plans(choice: _Candidate) -> tuple[StagePlan, ...]:
    draft = choice.draft
    plans = []
    streams = [stage.streams_out for stage in draft.stages[:-1]]
    weight_bits = level_weights(choice.chain, draft.n, draft.request.shape, streams)
    for index, arrangement in enumerate(draft.arrangements):
        last = index + 1 == len(draft.arrangements)
        stage = draft.stages[index]
        period = draft.answer_period
        rows_layout = (
            Layout(period=period, block=period, stride=period) if last else draft.arrangements[index + 1].layout
        )
        plans.append(
            StagePlan(
                layout=arrangement.layout,
                rows_layout=rows_layout,
                row_tile=arrangement.row_tile,
                babies=arrangement.babies,
                chained=arrangement.chained,
                folds=arrangement.folds(draft.positions),
                closing=arrangement.closing,
                weight_scale_bits=weight_bits[index],
                rescale=choice.chain.family != "merged" and not last,
                early=choice.chain.family == "early" and not last,
                lazy=stage.streams_out == 1 and chain_is_lazy(choice.chain, draft.request.shape, index),
                degree=stage.degree,
                odd=stage.odd,
            )
        )
    return tuple(plans)


def _nothing_fits(request: _Request) -> PlanError:
    options = request.options
    needed = levels_needed(request.shape, family="merged")
    rows = options.rows if options.packing == "interleaved" else 1
    degrees = _degrees(request) or _DEGREES[-1:]
    slots = degrees[-1] // 2 // rows
    if not slots:
        return PlanError(
            f"{rows} rows are interleaved, N={degrees[-1]} has {degrees[-1] // 2} slots",
            remedy="interleave fewer rows, or use packing=throughput",
        )
    if options.coeff_modulus_bits is not None:
        have = len(options.coeff_modulus_bits) - 1
        if have < needed:
            return PlanError(
                f"{len(request.shape.depths)} hidden layers need {needed - 1} levels, the chain "
                f"{list(options.coeff_modulus_bits)} at N={degrees[-1]} has {have - 1}",
                remedy="use a longer chain, or let the planner choose it",
            )
        return PlanError(
            f"no scales fit the chain {list(options.coeff_modulus_bits)} "
            f"with logits up to {request.logit_range:.3g}",
            remedy="use larger primes, or let the planner choose them",
        )
    small = replace(request, shape=replace(request.shape, logit_bits=0.0))
    if any(_with_chain(draft) is not None for draft in _drafts(small)):
        return PlanError(
            f"no chain in the 128-bit table carries logits up to {request.logit_range:.3g}",
            remedy="scale the network's inputs or outputs, or state a narrower domain",
        )
    return PlanError(
        f"{len(request.shape.depths)} hidden layers need {needed - 1} levels, which do not fit in the "
        f"{MAX_MODULUS_BITS[degrees[-1]]} bits that the 128-bit table allows at N={degrees[-1]}",
        remedy="use a larger N" if degrees[-1] < 32768 else "use fewer layers or a lower degree",
    )
