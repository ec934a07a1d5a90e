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

_KEY_SECONDS_PER_BYTE = {"latency": 2e-9, "error": 2e-9, "keys": 4e-8}
"""What a byte of keys weighs against seconds of server time."""

_REQUEST_SECONDS_PER_BYTE = 5e-9
"""What a byte of each request weighs."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How one stage sits in the slots, as far as noise and cost are concerned.

    `presented`: the client has sent the baby rotations, so they add no noise.
    """

    layout: Layout
    rows_period: int
    babies: int
    chained: bool
    closing: bool
    streams: int
    presented: bool = False

    @property
    def giants(self) -> int:
        """Giant steps, the zeroth among them."""
        return -(-self.layout.stride // self.babies)

    def folds(self, positions: int) -> tuple[int, ...]:
        """Rotations that sum the blocks; the period counts as all positions where it is no smaller."""
        steps = []
        step = self.rows_period
        while step < min(self.layout.period, positions):
            steps.append(step)
            step *= 2
        return tuple(steps)


@dataclass(frozen=True, slots=True)
class _Setting:
    n: int
    positions: int
    early: bool
    client_rotations: bool
    objective: str


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
    objective : "keys" weighs keys more.

    Returns
    -------
    Arrangements, the period of the answer and the modelled seconds; None where a layer does not fit.
    """
    setting = _Setting(n, positions, early, client_rotations, objective)
    periods = [2**k for k in range(positions.bit_length())]
    best: dict[int, tuple[float, tuple[Arrangement, ...]]] = {positions: (0.0, ())}
    for index, stage in enumerate(stages):
        reached: dict[int, tuple[float, tuple[Arrangement, ...]]] = {}
        least = power_of_two(stage.rows)
        for period, (cost, before) in best.items():
            for rows_period in periods:
                if rows_period < least or (index + 1 == len(stages) and rows_period > least):
                    continue
                layout = Layout.between(period, rows_period, stage.columns)
                if layout is None:
                    continue
                options = _options(setting, stage, layout, rows_period, levels[index], first=index == 0)
                price_s, arrangement = min(options, key=lambda option: option[0])
                total = cost + price_s
                if rows_period not in reached or total < reached[rows_period][0]:
                    reached[rows_period] = (total, (*before, arrangement))
        best = reached
        for period, (cost, before) in best.items():
            best[period] = (cost + _activation_seconds(stage, n, levels[index]), before)
    if not best:
        return None
    period, (cost, arrangements) = min(best.items(), key=lambda item: item[1][0])
    return arrangements, period, cost


def _activation_seconds(stage: Stage, n: int, level: int) -> float:
    one = price("multiply", level, n) + price("relinearize", level, n) + price("rescale", level, n)
    return one * power_depth(stage.degree)


def _options(
    setting: _Setting, stage: Stage, layout: Layout, rows_period: int, level: int, *, first: bool
) -> Iterator[tuple[float, Arrangement]]:
    """Splits into baby and giant steps, with their cost."""
    n, streams = setting.n, len(stage.matrices)
    presented = setting.client_rotations and first
    rotate, multiply = price("rotate", level, n), price("multiply_plain", level, n) + price("add", level, n)
    low = price("rotate", level - 1, n) if setting.early and stage.degree and level > 1 else rotate
    key_s = _KEY_SECONDS_PER_BYTE[setting.objective] * n * 8 * level * (level + 1)
    babies = 1
    while babies <= layout.stride:
        chain_pays = babies > 8 or setting.objective == "keys"
        for chained in (False, True) if babies > 2 and chain_pays and not presented else (False,):
            arrangement = Arrangement(layout, rows_period, babies, chained, stage.is_complex, streams, presented)
            giants = arrangement.giants
            folds = len(arrangement.folds(setting.positions))
            shared = 0 if presented else streams * (babies - 1)
            keys = (0 if presented else 1 if chained else babies - 1) + int(giants > 1) + folds
            cost = (shared + giants - 1) * rotate + (folds + int(stage.is_complex)) * low
            cost += streams * layout.stride * multiply + keys * key_s
            if first:
                sent = streams * (babies if presented else 1)
                cost += sent * price("load", level, n)
                cost += sent * n * 8 * level * _REQUEST_SECONDS_PER_BYTE
            yield cost, arrangement
        babies *= 2
