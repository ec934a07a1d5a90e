"""The cheapest packing of every layer, by dynamic programming over the period at which each layer's values repeat.

A product costs diagonals and baby and giant steps (few where the period that comes in is long) and folds (few where
it is short); the period that goes out is the next layer's. Costs come from the fixed table of
:mod:`fhe.plan.prices`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fhe.plan.layout import Layout, power_of_two
from fhe.plan.plan import power_depth
from fhe.plan.prices import price
from fhe.plan.stages import Stage

__all__ = ["Arrangement", "arrange"]

_KEY_SECONDS_PER_BYTE = {"latency": 5e-10, "error": 5e-10, "keys": 1e-8, "server": 5e-10}
"""What a byte of keys weighs against seconds of server time."""

_TRAFFIC_SECONDS_PER_BYTE = {"latency": 1.25e-9, "error": 1.25e-9, "keys": 1.25e-9, "server": 0.0}
"""What a byte of each request and answer weighs: a network of 6.4 Gbit/s."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How one stage sits in the slots, as far as noise and cost are concerned.

    `presented`: the client has sent the baby rotations, so they add no noise. `unfolded`: the sums over blocks and
    the real part are left to the client, after the last product.
    """

    layout: Layout
    rows_period: int
    babies: int
    chained: bool
    closing: bool
    streams: int
    row_tile: int
    presented: bool = False
    unfolded: bool = False

    @property
    def giants(self) -> int:
        """Giant steps, the zeroth among them."""
        return -(-self.layout.stride // self.babies)

    def blocks(self, positions: int) -> int:
        """Positions that a row's sum goes over; the period counts as all positions where it is no smaller."""
        return max(1, min(self.layout.period, positions) // self.rows_period)

    def folds(self, positions: int) -> tuple[int, ...]:
        """Rotations that sum the blocks."""
        if self.unfolded:
            return ()
        return tuple(self.rows_period << k for k in range(self.blocks(positions).bit_length() - 1))


@dataclass(frozen=True, slots=True)
class _Setting:
    n: int
    positions: int
    early: bool
    client_rotations: bool
    objective: str

    @property
    def byte_seconds(self) -> float:
        """What a byte of each request and answer weighs."""
        return _TRAFFIC_SECONDS_PER_BYTE[self.objective]


def arrange(
    stages: Sequence[Stage],
    n: int,
    positions: int,
    levels: Sequence[int],
    *,
    early: bool,
    client_rotations: bool,
    objective: str,
) -> tuple[tuple[Arrangement, ...], int, float] | None:
    """Choose the period of every layer.

    Parameters
    ----------
    stages : the products.
    n, positions : ring degree, and slots of one row.
    levels : data primes left during each product.
    early : folds come after the rescale of their product, one level lower.
    client_rotations : baby steps of the first product are the client's work.
    objective : "keys" weighs keys more, "server" leaves out the bytes of requests and answers.

    Returns
    -------
    Arrangements, the period of the answer and the modelled seconds; None where a layer does not fit.
    """
    setting = _Setting(n, positions, early, client_rotations, objective)
    periods = [2**k for k in range(positions.bit_length())]
    best: dict[int, tuple[float, tuple[Arrangement, ...]]] = {positions: (0.0, ())}
    for index, stage in enumerate(stages):
        reached: dict[int, tuple[float, tuple[Arrangement, ...]]] = {}
        for period, (cost, before) in best.items():
            for rows_period, row_tile in _row_tiles(stage, periods):
                columns = before[-1].row_tile if before else stage.columns
                layout = Layout.between(period, rows_period, columns)
                if layout is None:
                    continue
                streams = len(stage.matrices)
                if before:
                    streams *= -(-stages[index - 1].rows // columns)
                options = _options(
                    setting, stage, streams, layout, rows_period, row_tile, levels[index], index == 0
                )
                price_s, arrangement = min(options, key=lambda option: option[0])
                total = cost + price_s
                if rows_period not in reached or total < reached[rows_period][0]:
                    reached[rows_period] = (total, (*before, arrangement))
        best = reached
        for period, (cost, before) in best.items():
            tiles = -(-stage.rows // before[-1].row_tile)
            best[period] = (cost + tiles * _activation_seconds(stage, n, levels[index]), before)
    if not best:
        return None
    period, (cost, arrangements) = min(best.items(), key=lambda item: item[1][0])
    return arrangements, period, cost


def _row_tiles(stage: Stage, periods: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Periods that rows may repeat with, and how many rows a ciphertext then carries.

    Hidden values wider than the longest period go into as few ciphertexts as hold them. Outputs may go into more: each
    then needs fewer diagonals.
    """
    widest = periods[-1]
    row_tile = -(-stage.rows // -(-stage.rows // widest))
    least = power_of_two(row_tile)
    if stage.degree:
        yield from ((period, row_tile) for period in periods if period >= least)
    else:
        yield from ((period, min(row_tile, period)) for period in periods if period <= least)


def _activation_seconds(stage: Stage, n: int, level: int) -> float:
    one = price("multiply", level, n) + price("relinearize", level, n) + price("rescale", level, n)
    return one * power_depth(stage.degree)


def _options(
    setting: _Setting,
    stage: Stage,
    streams: int,
    layout: Layout,
    rows_period: int,
    row_tile: int,
    level: int,
    first: bool,
) -> Iterator[tuple[float, Arrangement]]:
    """Splits into baby and giant steps, with their cost."""
    n, last = setting.n, not stage.degree
    tiles = -(-stage.rows // row_tile)
    presented = setting.client_rotations and first
    rotate, multiply = price("rotate", level, n), price("multiply_plain", level, n) + price("add", level, n)
    low = price("rotate", level - 1, n) if setting.early and stage.degree and level > 1 else rotate
    key_s = _KEY_SECONDS_PER_BYTE[setting.objective] * n * 8 * level * (level + 1)
    babies = 1
    while babies <= layout.stride:
        chain_pays = babies > 8 or setting.objective == "keys"
        for chained in (False, True) if babies > 2 and chain_pays and not presented else (False,):
            closing = stage.is_complex and not last
            arrangement = Arrangement(
                layout, rows_period, babies, chained, closing, streams, row_tile, presented, unfolded=last
            )
            giants = arrangement.giants
            folds = len(arrangement.folds(setting.positions))
            shared = 0 if presented else streams * (babies - 1)
            keys = (0 if presented else 1 if chained else babies - 1) + int(giants > 1) + folds
            cost = (shared + tiles * (giants - 1)) * rotate + tiles * (folds + int(closing)) * low
            cost += tiles * streams * layout.stride * multiply + keys * key_s
            if first:
                sent = streams * (babies if presented else 1)
                cost += sent * price("load", level, n)
                cost += sent * n * 8 * level * setting.byte_seconds
            if last:
                cost += tiles * (price("save", 1, n) + 2 * n * 8 * setting.byte_seconds)
            yield cost, arrangement
        babies *= 2
