"""The network in integers only: a program whose bits are the same wherever it runs.

Activations are integers q of 8 or 16 bits, accumulators ``acc = Σ_j code_ij q_j``, and each layer ends in one
fixed-point rescale

    y_i = clamp((Σ_t m_ti acc_ti + offset_i) >> shift, low, high)

over its terms t (one for each plane and each group of columns that shares a scale). The clamp at `low` is the
ReLU: `low` stands for zero. The half that rounds, the zero points and the bias are all inside `offset`. The last
layer is left unshifted: its logits are ``t * 2^-shift``, exactly.

**Overflow.** ``|acc_ti| <= Q Σ_j |code_ij|`` with Q the largest |q|, and ``|t_i| <= Σ_t |m_ti| Q Σ_j |code_ij| +
|offset_i|``. Both are computed for every row when the program is made; a program whose accumulators leave 31
bits or whose products leave 62 is refused. So int32 accumulators and int64 products hold every intermediate
value of every possible input.

A float input x becomes ``q_j = round((x_j - origin_j) factor_j)``, the only step that is not an integer's; it is
one function here, used in front of every run time.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from deploy.arrays import Array
from deploy.errors import PlanError
from quantization.network import QuantizedLayer, QuantizedMlp

__all__ = [
    "Bits",
    "Grids",
    "IntegerLayer",
    "IntegerMlp",
    "Term",
    "calibrate_grids",
    "compile_integer",
    "requantize",
    "run_int64",
    "run_numpy",
    "split_bytes",
]

Bits = Literal[8, 16]

_MULTIPLIER_BITS = 23
_CLIPS = (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5)
"""Shares of the largest activation seen that are tried as the top of an 8-bit grid."""
_HEADROOM = 4.0
"""How far a 16-bit grid reaches past the largest value seen: two bits of sixteen against saturation."""


@dataclass(frozen=True, eq=False)
class Grids:
    """Where activations are rounded.

    Parameters
    ----------
    bits : 8 or 16.
    origin : (n_in,) input that becomes 0.
    reach : largest column-scaled distance from it that the grid holds.
    steps : grid step behind each hidden layer.
    """

    bits: Bits
    origin: Array
    reach: float
    steps: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Term:
    """Codes over columns begin:end and the multiplier of each row.

    Parameters
    ----------
    codes : (n_out, end - begin) int8.
    levels : codes lie in -levels..levels.
    begin, end : columns.
    multiplier : (n_out,) int64.
    """

    codes: Array
    levels: int
    begin: int
    end: int
    multiplier: Array


@dataclass(frozen=True, eq=False)
class IntegerLayer:
    """One layer of the program.

    Parameters
    ----------
    terms : at least one.
    offset : (n_out,) int64.
    shift : bits that the sum is shifted down by; the last layer keeps them as its fraction.
    accumulator_bits, product_bits : proved magnitudes, sign apart.
    """

    terms: tuple[Term, ...]
    offset: Array
    shift: int
    accumulator_bits: int
    product_bits: int


@dataclass(frozen=True, eq=False)
class IntegerMlp:
    """A program over integers; see the module's text.

    Parameters
    ----------
    origin, factor : (n_in,) of the input rounding.
    bits : 8 or 16, of activations.
    layers : the last one gives fixed-point logits.
    """

    origin: Array
    factor: Array
    bits: Bits
    layers: tuple[IntegerLayer, ...]

    @property
    def low(self) -> int:
        """Least activation; stands for zero behind a ReLU."""
        return _ends(self.bits)[0]

    @property
    def high(self) -> int:
        """Largest activation."""
        return _ends(self.bits)[1]

    @property
    def n_in(self) -> int:
        """Number of inputs."""
        return int(self.origin.shape[0])

    @property
    def n_out(self) -> int:
        """Number of logits."""
        return int(self.layers[-1].offset.shape[0])

    def quantize_input(self, x: Array) -> Array:
        """Round rows (batch, n_in) to activations: int8 or int16; values off the calibrated box saturate."""
        scaled = np.rint((np.asarray(x, dtype=np.float64) - self.origin) * self.factor)
        return np.asarray(np.clip(scaled, self.low, self.high), dtype=np.int8 if self.bits == 8 else np.int16)

    def saturated(self, x: Array) -> Array:
        """Say which rows leave the calibrated box: (batch,) of bool."""
        scaled = np.rint((x - self.origin) * self.factor)
        return np.asarray(((scaled < self.low) | (scaled > self.high)).any(axis=1))

    def logits_of(self, totals: Array) -> Array:
        """Fixed-point totals (batch, n_out) int64 as float64 logits, exactly where they have 53 bits or less."""
        return np.asarray(totals * 2.0 ** -self.layers[-1].shift)

    def logits(self, x: Array) -> Array:
        """Evaluate rows (batch, n_in) -> (batch, n_out), by :func:`run_numpy`."""
        return self.logits_of(run_numpy(self, self.quantize_input(x)))


def requantize(layer: IntegerLayer, totals: Array, low: int, high: int) -> Array:
    """Shift and clamp totals (batch, n_out) int64 into the next layer's activations, int64."""
    return np.asarray(np.clip(totals >> layer.shift, low, high))


def split_bytes(q: Array) -> tuple[Array, Array]:
    """High and low signed bytes of 16-bit activations: ``q = 256 high + low``, both int8."""
    high = (q.astype(np.int32) + 128) >> 8
    return high.astype(np.int8), (q - 256 * high).astype(np.int8)


def run_int64(program: IntegerMlp, q: Array) -> Array:
    """The reference: every product and sum in int64, no BLAS; (batch, n_in) integers -> (batch, n_out) int64."""
    h = np.asarray(q, dtype=np.int64)
    for index, layer in enumerate(program.layers):
        totals = np.broadcast_to(layer.offset, (len(h), len(layer.offset))).copy()
        for term in layer.terms:
            accumulators = h[:, term.begin : term.end] @ term.codes.T.astype(np.int64)
            totals += term.multiplier * accumulators
        h = totals if index == len(program.layers) - 1 else requantize(layer, totals, program.low, program.high)
    return h


def run_numpy(program: IntegerMlp, q: Array) -> Array:
    """The same bits through BLAS: float64 products of integers are exact below 2^53."""
    h = np.asarray(q, dtype=np.int64)
    for index, layer in enumerate(program.layers):
        totals = np.broadcast_to(layer.offset, (len(h), len(layer.offset))).copy()
        for term in layer.terms:
            accumulators = h[:, term.begin : term.end].astype(np.float64) @ term.codes.T.astype(np.float64)
            totals += term.multiplier * accumulators.astype(np.int64)
        h = totals if index == len(program.layers) - 1 else requantize(layer, totals, program.low, program.high)
    return h


def calibrate_grids(network: QuantizedMlp, x: Array, *, bits: Bits = 8) -> Grids:
    """Set the grids of a network from calibration rows x (batch, n_in)."""
    low, high = _ends(bits)
    columns = network.layers[0].columns
    origin = np.array([float(f"{value:.3g}") for value in (x.min(axis=0) + x.max(axis=0)) / 2])
    distance = np.abs(x - origin) * (1.0 if columns is None else columns)
    headroom = 1.0 if bits == 8 else _HEADROOM
    reach = float(distance.max()) * headroom or 1.0
    hidden = [np.maximum(z, 0.0) for z in network.preactivations(x)[:-1]]
    return Grids(bits, origin, reach, tuple(_activation_step(h, high - low, headroom) for h in hidden))


def compile_integer(network: QuantizedMlp, grids: Grids) -> IntegerMlp:
    """Make the integer program of a network.

    Raises
    ------
    PlanError : a row whose accumulators or products could overflow.
    """
    low, high = _ends(grids.bits)
    columns = network.layers[0].columns
    factors = np.ones(network.n_in) if columns is None else columns
    steps = [grids.reach / high, *grids.steps]
    layers = []
    for index, layer in enumerate(network.layers):
        step, following = steps[index], steps[index + 1] if index + 1 < len(steps) else None
        zero = grids.origin * factors if index == 0 else np.full(layer.shape[1], -low * step)
        layers.append(_compile_layer(layer, step, zero, following, low, f"layer {index}"))
    return IntegerMlp(grids.origin, factors / steps[0], grids.bits, tuple(layers))


def _ends(bits: Bits) -> tuple[int, int]:
    """Least and largest activation; 16 bits leave room to split a value into two signed bytes."""
    return (-128, 127) if bits == 8 else (-32768, 32639)


def _activation_step(h: Array, span: int, headroom: float) -> float:
    """Grid step from 0 for activations (batch, units): of the least squared error, or with headroom."""
    top = float(h.max())
    if top <= 0:
        return 1.0
    if headroom > 1:
        return top * headroom / span
    values = h.ravel()[:: max(1, h.size // 200_000)]
    steps = [top * clip / span for clip in _CLIPS]
    losses = [float(np.mean((np.minimum(np.rint(values / step), span) * step - values) ** 2)) for step in steps]
    return steps[int(np.argmin(losses))]


def _compile_layer(
    layer: QuantizedLayer, step: float, zero: Array, next_step: float | None, low: int, place: str
) -> IntegerLayer:
    """Fixed-point form of a layer whose inputs are ``step * q + zero``; `next_step` None marks the last layer."""
    unit = 1.0 if next_step is None else next_step
    pieces = [
        (plane.codes[:, begin : begin + plane.group], plane.levels, begin, plane.scales[:, at])
        for plane in layer.planes
        for at, begin in enumerate(range(0, layer.shape[1], plane.group))
    ]
    constant = layer.bias + sum(
        scale * (codes @ zero[begin : begin + codes.shape[1]]) for codes, _, begin, scale in pieces
    )
    real = np.asarray(constant) / unit + (0.0 if next_step is None else low + 0.5)
    largest = max(float(scale.max()) for *_, scale in pieces) * step / unit
    reach = [np.abs(codes.astype(np.int64)).sum(axis=1) * -low for codes, *_ in pieces]
    accumulator_bits = max(int(r.max()) for r in reach).bit_length()
    if accumulator_bits > 31:
        raise PlanError(
            f"accumulators of {accumulator_bits} bits", place=place, remedy="use fewer levels or columns"
        )
    shift = _MULTIPLIER_BITS - 1 - int(np.floor(np.log2(largest))) if largest > 0 else 16
    for candidate in range(min(shift, 60), -1, -1):
        multipliers = [np.rint(scale * step / unit * 2.0**candidate) for *_, scale in pieces]
        offset = np.rint(real * 2.0**candidate)
        bound = np.abs(offset) + sum(np.abs(m) * r for m, r in zip(multipliers, reach, strict=True))
        if float(np.max(bound)) < 2.0**62:
            return IntegerLayer(
                tuple(
                    Term(codes, levels, begin, begin + codes.shape[1], m.astype(np.int64))
                    for (codes, levels, begin, _), m in zip(pieces, multipliers, strict=True)
                ),
                offset.astype(np.int64),
                candidate,
                accumulator_bits,
                int(np.max(bound)).bit_length(),
            )
    raise PlanError("no fixed-point form keeps products within 62 bits", place=place, remedy="rescale the inputs")
