"""A plan as a value: everything about a run on ciphertexts but the weights.

Axes: ``n_in``, ``n_out``.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from deploy.arrays import Array
from deploy.errors import BundleError
from fhe.plan.layout import Layout
from fhe.plan.parameters import Parameters
from fhe.plan.stages import InputScaling

__all__ = ["Exchange", "Expected", "Plan", "StagePlan", "power_depth"]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return self.model_dump_json(indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what :meth:`to_bytes` wrote; raises :class:`deploy.errors.BundleError` otherwise."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise BundleError(
                f"{first['msg']} at {where or 'the top'}",
                place=cls.__name__.lower(),
                remedy="convert again with this release",
            ) from None


def power_depth(degree: int) -> int:
    """Multiplications of ciphertexts in a row that streams up to this degree need.

    >>> [power_depth(degree) for degree in (0, 2, 3, 4, 6, 8)]
    [0, 1, 2, 2, 3, 3]
    """
    streams = (degree + 1) // 2
    return 1 + math.ceil(math.log2(streams)) if streams else 0


class Exchange(_Value):
    """What the two sides must agree on: all that a client needs, and no weight.

    Parameters
    ----------
    packing : latency (one row), interleaved (several rows a ciphertext), throughput (one row a slot).
    rows : rows that one request carries.
    pairs : two inputs travel in each complex slot.
    input_layout : where the entries of an input ciphertext sit.
    tile : entries of one input ciphertext.
    client_rotations : the client sends each input ciphertext rotated by 0, 1, …, client_rotations - 1 positions.
    offset, exponents : inputs are scaled to ``(x - offset) * 2**-exponents``.
    answer_tile : outputs of one answer ciphertext.
    answer_period : output o of a ciphertext stands at every position that is o modulo the period; positions beyond
        the outputs repeat them.
    answer_blocks : an output is the mean over its positions times this: what is left to the client to sum.
    galois_elements, relinearization : evaluation keys that the server needs, no more.
    """

    version: Literal[1] = 1
    parameters: Parameters
    packing: Literal["latency", "interleaved", "throughput"]
    rows: int
    n_in: int
    n_out: int
    pairs: bool
    input_layout: Layout
    tile: int
    client_rotations: int = 1
    input_scale_bits: int
    offset: tuple[float, ...]
    exponents: tuple[int, ...]
    answer_tile: int
    answer_period: int
    answer_blocks: int = 1
    answer_scale: float
    galois_elements: tuple[int, ...]
    relinearization: bool

    @property
    def input_scale(self) -> float:
        """Scale of a fresh ciphertext."""
        return float(2**self.input_scale_bits)

    @property
    def scaling(self) -> InputScaling:
        """What the client does to a row first."""
        return InputScaling(np.array(self.offset), np.array(self.exponents, dtype=np.int64))

    @property
    def columns(self) -> int:
        """Complex or real entries of one row."""
        return -(-self.n_in // 2) if self.pairs else self.n_in

    @property
    def tiles(self) -> int:
        """Input ciphertexts before client rotations."""
        return -(-self.columns // self.tile)

    @property
    def request_ciphertexts(self) -> int:
        """Ciphertexts of one request."""
        return self.n_in if self.packing == "throughput" else self.tiles * self.client_rotations

    @property
    def answer_ciphertexts(self) -> int:
        """Ciphertexts of one answer."""
        return self.n_out if self.packing == "throughput" else -(-self.n_out // self.answer_tile)

    @property
    def positions(self) -> int:
        """Slots of one row."""
        return self.parameters.slots // self.rows

    @property
    def key_scope(self) -> str:
        """What keys bind to: parameters and rotation set, not the model."""
        bound = (
            self.parameters.poly_modulus_degree,
            self.parameters.primes,
            self.galois_elements,
            self.relinearization,
        )
        return hashlib.sha256(repr(("ckks keys", 1, *bound)).encode()).hexdigest()


class StagePlan(_Value):
    """How one product is done.

    Parameters
    ----------
    layout : where the entries of its streams sit.
    rows_layout : where its rows come to stand.
    row_tile : rows of one ciphertext that comes out; more of them go into further ones.
    babies : rotations of the streams that are shared (baby steps), 0 among them; giant steps are multiples of it.
    chained : baby rotations one after the other with a single key, instead of each from the start with its own.
    folds : rotations that sum the blocks; none after the last stage, whose sums the client takes.
    closing : the real part is taken by one conjugation; never after the last stage, where the client takes it.
    weight_scale_bits : scale of the plaintexts of the last stream; those of others are set so that products agree.
    coefficient_bits : scale of the units' coefficients (packing=throughput, where they are multiplied).
    rescale : one prime is dropped after the product (packing=throughput: one more after the activation).
    early : that prime is dropped before the folds instead of after them.
    lazy : the square is relinearised after its rescale, one level lower: cheaper and noisier.
    degree, odd : of the activation that follows (0 for the last stage).
    """

    layout: Layout
    rows_layout: Layout
    row_tile: int
    babies: int
    chained: bool
    folds: tuple[int, ...]
    closing: bool
    weight_scale_bits: float
    coefficient_bits: int = 0
    rescale: bool
    early: bool = False
    lazy: bool = False
    degree: int
    odd: bool

    @property
    def giants(self) -> int:
        """Number of giant steps, the zeroth among them."""
        return -(-self.layout.stride // self.babies)

    @property
    def depth(self) -> int:
        """Primes that the powers after it drop."""
        return power_depth(self.degree)

    @property
    def streams_out(self) -> int:
        """Streams that carry the powers of what comes out."""
        return (self.degree + 1) // 2


class Expected(_Value):
    """What a run is expected to need, from the plan and the fixed cost table; bytes are exact, the rest modelled.

    Parameters
    ----------
    operations : count of each primitive, by name and level ("rotate@2").
    server_seconds, client_seconds : of one request, one core.
    compile_seconds : encoding of the plaintexts, once per worker.
    """

    operations: dict[str, int]
    server_seconds: float
    client_seconds: float
    compile_seconds: float
    plaintext_bytes: int
    peak_memory_bytes: int
    galois_key_bytes: int
    key_bytes: int
    request_bytes: int
    answer_bytes: int


class Plan(_Value):
    """A program of SEAL primitives for one network.

    Parameters
    ----------
    hidden_exponents : per remaining hidden layer, (units,): values are scaled by 2**-exponent.
    sigma : (n_out,) standard deviation of the error of each logit on typical rows (on the worst point of the ranges
        where no rows were given), estimated.
    bound : (n_out,) what the error is held to stay under anywhere in the ranges: ``certainty`` standard deviations
        there. :func:`fhe.runtime.bounds.logit_bound` says it for given rows.
    ranges_kind : "proved" or "estimated": what the ranges rest on.
    logit_range : largest magnitude that the chain leaves room for.
    """

    exchange: Exchange
    network_sha256: str
    widths: tuple[int, ...]
    hidden_exponents: tuple[tuple[int, ...], ...]
    stages: tuple[StagePlan, ...]
    sigma: tuple[float, ...]
    bound: tuple[float, ...]
    certainty: float
    ranges_kind: Literal["proved", "estimated"]
    logit_range: float
    expected: Expected
    notes: tuple[str, ...] = ()

    @property
    def exponents(self) -> tuple[Array, ...]:
        """Exponents as arrays."""
        return tuple(np.array(row, dtype=np.int64) for row in self.hidden_exponents)

    def summary(self) -> dict[str, Any]:
        """The plan's part of ``convert --json``."""
        parameters = self.exchange.parameters
        return {
            "poly_modulus_degree": parameters.poly_modulus_degree,
            "coeff_modulus_bits": list(parameters.coeff_modulus_bits),
            "levels": parameters.levels,
            "galois_key_bytes": self.expected.galois_key_bytes,
            "ciphertext_bytes": self.expected.request_bytes,
            "answer_bytes": self.expected.answer_bytes,
            "rotations": len(self.exchange.galois_elements),
            "server_seconds": self.expected.server_seconds,
            "logit_bound": max(self.bound),
        }

    def text(self) -> str:
        """The plan for people, before any work."""
        parameters = self.exchange.parameters
        expected = self.expected
        lines = [
            f"N={parameters.poly_modulus_degree}, primes {list(parameters.coeff_modulus_bits)} bits "
            f"(sum {sum(parameters.coeff_modulus_bits)}), {parameters.levels} levels, "
            f"packing {self.exchange.packing}, {self.exchange.rows} row{'s' * (self.exchange.rows > 1)} a request",
            *(self._stage_text(index) for index in range(len(self.stages))),
            f"keys: {len(self.exchange.galois_elements)} Galois, {expected.key_bytes / 1e6:.2f} MB; request "
            f"{expected.request_bytes / 1e3:.0f} kB, answer {expected.answer_bytes / 1e3:.0f} kB",
            f"server {expected.server_seconds * 1e3:.1f} ms a request, peak memory "
            f"{expected.peak_memory_bytes / 1e6:.0f} MB (modelled); "
            f"logit error <= {max(self.bound):.2g} (estimated)",
            *self.notes,
        ]
        return "\n".join(lines)

    def _stage_text(self, index: int) -> str:
        stage = self.stages[index]
        after = f", then powers up to {stage.degree}" if stage.degree else ""
        return (
            f"layer {index + 1} {self.widths[index]}->{self.widths[index + 1]}: {stage.layout.stride} diagonals "
            f"({stage.babies} baby x {stage.giants} giant steps), {len(stage.folds)} folds"
            f"{self._tiles_text(index)}"
            f"{', conjugation' if stage.closing else ''}{after}"
        )

    def _tiles_text(self, index: int) -> str:
        tiles = -(-self.widths[index + 1] // self.stages[index].row_tile)
        return f", {tiles} ciphertexts" if tiles > 1 else ""
