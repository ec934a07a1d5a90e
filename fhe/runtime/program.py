"""The one description of a run: plan and weights as a sequence of primitives, on any backend.

Axes: ``slots``, ``positions`` (slots of one row).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from deploy.arrays import Array
from deploy.errors import PlanError
from fhe.network import PolynomialNetwork
from fhe.plan.plan import Exchange, Plan, StagePlan
from fhe.plan.stages import Stage, input_streams, reduce_network, stages_of
from fhe.runtime.backend import Backend, Operand

__all__ = ["Program", "check_network", "input_slots", "program_of", "read_answer"]

Ct = TypeVar("Ct")


def input_slots(exchange: Exchange, x: Array) -> list[Array]:
    """Slots of each ciphertext of a request, for rows x (rows, n_in): arrays (slots,).

    Rows that are missing from a full request are rows of zeros after scaling.
    """
    scaled = np.zeros((exchange.rows, exchange.n_in))
    scaled[: len(x)] = exchange.scaling(x)
    where = exchange.input_layout.entries(exchange.positions)
    found = []
    for stream in input_streams(scaled, pairs=exchange.pairs, tile=exchange.tile):
        tile = np.zeros((exchange.rows, exchange.input_layout.capacity), dtype=stream.dtype)
        tile[:, : stream.shape[1]] = stream
        spread = tile[:, where]
        found += [np.roll(spread, -step, axis=1).T.ravel() for step in range(exchange.client_rotations)]
    return found


def read_answer(exchange: Exchange, answers: Sequence[Array]) -> Array:
    """Logits (rows, n_out) from the slots (slots,) of each ciphertext of an answer.

    An output is a sum over the positions where it stands. What else the slots hold cancels there.
    """
    found = []
    for start, slots in zip(range(0, exchange.n_out, exchange.answer_tile), answers, strict=True):
        table = slots.real.reshape(exchange.positions, exchange.rows)
        count = min(exchange.answer_tile, exchange.n_out - start)
        outputs = np.arange(exchange.positions) % exchange.answer_period % count
        found += [exchange.answer_blocks * table[outputs == o].mean(axis=0) for o in range(count)]
    return np.stack(found, axis=1)


@dataclass(frozen=True, eq=False)
class Program:
    """Plan and weights of one network.

    Parameters
    ----------
    exchange : what the client sends.
    plans, stages : how each product is done, and its numbers.
    """

    exchange: Exchange
    plans: tuple[StagePlan, ...]
    stages: tuple[Stage, ...]

    def run(self, backend: Backend[Ct], inputs: Sequence[Ct]) -> list[Ct]:
        """From the ciphertexts of a request to those of its answer, before the sums that the client takes."""
        rotated = self.exchange.client_rotations
        given = [list(inputs[at : at + rotated]) for at in range(0, len(inputs), rotated)]
        for index, plan in enumerate(self.plans):
            babies = [self._babies(backend, plan, stream) for stream in given]
            tiles = range(-(-self.stages[index].rows // plan.row_tile))
            values = [self._product(backend, index, tile, babies) for tile in tiles]
            if plan.degree:
                given = [[stream] for z in values for stream in self.powers(backend, index, z)]
        return [backend.lower(z, 1) for z in values]

    def _product(self, backend: Backend[Ct], index: int, tile: int, babies: Sequence[list[Ct]]) -> Ct:
        plan = self.plans[index]
        head = babies[-1][0]
        level, scale = backend.level(head), backend.scale(head) * 2.0**plan.weight_scale_bits
        total: Ct | None = None
        for giant in reversed(range(plan.giants)):
            if total is not None:
                total = self._rotate(backend, total, plan.babies)
            values, operands = [], []
            for stream, rotations in enumerate(babies):
                for baby, rotation in enumerate(rotations):
                    name = (index, tile, stream, giant, baby)
                    operand = self._diagonal(name, scale / backend.scale(rotation), level)
                    if not backend.is_zero(operand):
                        values.append(rotation)
                        operands.append(operand)
            if values:
                term = backend.dot(values, operands)
                total = term if total is None else backend.add(total, term)
        if total is None:
            raise AssertionError("a product without any diagonal")
        if plan.early:
            total = backend.rescale(total)
        for step in plan.folds:
            total = backend.add(total, self._rotate(backend, total, step))
        if plan.closing:
            total = backend.add(total, backend.conjugate(total))
        total = backend.add_plain(total, self._bias(index, tile, backend.scale(total), backend.level(total)))
        return backend.rescale(total) if plan.rescale and not plan.early else total

    def _rotate(self, backend: Backend[Ct], a: Ct, positions: int) -> Ct:
        return backend.rotate(a, positions * self.exchange.rows)

    def _babies(self, backend: Backend[Ct], plan: StagePlan, stream: list[Ct]) -> list[Ct]:
        found = list(stream[: plan.babies])
        for step in range(len(found), min(plan.babies, plan.layout.stride)):
            start, by = (found[-1], 1) if plan.chained else (found[0], step)
            found.append(self._rotate(backend, start, by))
        return found

    def powers(self, backend: Backend[Ct], index: int, z: Ct) -> list[Ct]:
        """Streams of the powers of the values that stage `index` gives."""
        plan = self.plans[index]
        square = backend.multiply(z, z)
        if not plan.lazy:
            square = backend.relinearize(square)
        first = square
        if plan.odd:
            scale = backend.scale(z)
            unit = Operand((index, "i"), lambda: 1j, scale, backend.level(z))
            first = backend.add(square, backend.multiply_plain(z, unit))
        streams = {1: backend.rescale(first)}
        if plan.lazy:
            streams[1] = backend.relinearize(streams[1])
        evens = {1: backend.rescale(square) if plan.odd and plan.streams_out > 1 else streams[1]}
        for stream in range(2, plan.streams_out + 1):
            half = 1 << (stream - 1).bit_length() - 1
            if half not in evens:
                evens[half] = self._multiplied(backend, evens[half // 2], evens[half // 2])
            streams[stream] = self._multiplied(backend, evens[half], streams[stream - half])
        lowest = min(backend.level(stream) for stream in streams.values())
        return [backend.lower(stream, lowest) for stream in streams.values()]

    def _multiplied(self, backend: Backend[Ct], a: Ct, b: Ct) -> Ct:
        """Product of two ciphertexts, relinearised and rescaled; the higher one is lowered first."""
        level = min(backend.level(a), backend.level(b))
        return backend.rescale(
            backend.relinearize(backend.multiply(backend.lower(a, level), backend.lower(b, level)))
        )

    def _rows(self, index: int, tile: int) -> Array:
        """(positions,) row that stands at each position of a tile of them; -1 where none does."""
        plan = self.plans[index]
        start = tile * plan.row_tile
        count = min(plan.row_tile, self.stages[index].rows - start)
        entries = plan.rows_layout.entries(self.exchange.positions)
        if not plan.degree:
            return np.asarray(start + entries % count)
        return np.where(entries < count, start + entries, -1)

    def _matrix(self, index: int, stream: int) -> Array:
        """(rows, columns) that multiplies a stream: hidden streams come tile by tile, each with all its powers."""
        matrices = self.stages[index].matrices
        if index == 0:
            return matrices[stream]
        before = self.plans[index - 1]
        tile, power = divmod(stream, before.streams_out)
        return matrices[power][:, tile * before.row_tile : (tile + 1) * before.row_tile]

    def _diagonal(self, name: tuple[int, int, int, int, int], scale: float, level: int) -> Operand:
        def slots() -> Array | None:
            index, tile, stream, giant, baby = name
            plan, matrix = self.plans[index], self._matrix(index, stream)
            step = giant * plan.babies + baby
            if step >= plan.layout.stride:
                return None
            rows = self._rows(index, tile)
            columns = np.roll(plan.layout.entries(self.exchange.positions), -step)
            used = (rows >= 0) & (columns < matrix.shape[1])
            values = np.where(used, matrix[np.where(used, rows, 0), np.where(used, columns, 0)], 0.0)
            if stream == step == 0 and not self._has_weight(index, rows):
                values = np.full(len(values), 1.0 / scale)
            elif not values.any():
                return None
            if plan.closing:
                values = values / 2
            return np.repeat(np.roll(values, giant * plan.babies), self.exchange.rows)

        return Operand(name, slots, scale, level)

    def _has_weight(self, index: int, rows: Array) -> bool:
        there = np.unique(rows[rows >= 0])
        return any(matrix[there].any() for matrix in self.stages[index].matrices)

    def _bias(self, index: int, tile: int, scale: float, level: int) -> Operand:
        share = 1 if self.plans[index].degree else self.exchange.answer_blocks

        def slots() -> Array:
            rows = self._rows(index, tile)
            values = np.where(rows >= 0, self.stages[index].bias[rows] / share, 0.0)
            return np.repeat(values, self.exchange.rows)

        return Operand((index, tile, "bias"), slots, scale, level)


def check_network(plan: Plan, network: PolynomialNetwork) -> None:
    """Raise :class:`deploy.errors.PlanError` where a plan was made for another network."""
    if network.sha256 != plan.network_sha256:
        raise PlanError("the plan was made for another network", remedy="plan this network, or use its own plan")


def program_of(plan: Plan, network: PolynomialNetwork) -> Program:
    """The program of a plan, with the numbers of its network.

    Raises
    ------
    PlanError : the plan was made for another network.
    """
    check_network(plan, network)
    exchange = plan.exchange
    stages = stages_of(
        reduce_network(network).network, exchange.scaling, plan.exponents, pairs=exchange.pairs, tile=exchange.tile
    )
    return Program(exchange, plan.stages, stages)
