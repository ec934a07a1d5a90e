"""A polynomial network as the products that a ciphertext goes through.

Every hidden value is scaled by a power of two so that its declared range lies in [-1, 1], and the powers of a
hidden value z travel in pairs: *stream* k is the complex number ``z^(2k) + i z^(2k-1)``, so that one plaintext product
applies the coefficients of both powers,

    Re((A - iB) (z² + i z)) = A z² + B z,

and no product at all is spent on the coefficients themselves. The real part costs one conjugation:
``Re(y) = (y + conj y) / 2``. Inputs travel in pairs in the same way: ``x_c + i x_(c+half)``.

Axes: ``rows`` (values that come out), ``columns`` (entries of a stream), ``units`` (of one hidden layer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from deploy.arrays import Array
from deploy.errors import InputError, PlanError
from deploy.model import Affine
from deploy.ranges import Box
from fhe.network import PolynomialNetwork, evaluate_polynomials

__all__ = [
    "InputScaling",
    "Ranges",
    "Reduced",
    "Stage",
    "exponents_of",
    "input_streams",
    "polynomial_range",
    "reduce_network",
    "stages_of",
]

_EXPONENT_LIMIT = 100
_TYPICAL_ROWS = 32


@dataclass(frozen=True, eq=False)
class Ranges:
    """Where values lie.

    Parameters
    ----------
    inputs, preactivations, logits : the input box, one box per hidden layer, and the box of the logits.
    rows : (rows, n_in) typical inputs, or None; they tell how large errors usually are, and go no further.
    """

    inputs: Box
    preactivations: tuple[Box, ...]
    logits: Box
    rows: Array | None = None

    @property
    def kind(self) -> str:
        """ "proved" where every box is, "estimated" otherwise."""
        boxes = (self.inputs, *self.preactivations, self.logits)
        return "proved" if all(box.kind == "proved" for box in boxes) else "estimated"

    @classmethod
    def seen(cls, network: PolynomialNetwork, x: Array, *, margin: float = 0.1) -> Ranges:
        """Ranges seen on rows x (batch, n_in), each widened on both sides by `margin` times its width."""
        boxes: list[Box] = []
        with np.errstate(over="ignore", invalid="ignore"):
            values = [np.asarray(x, dtype=np.float64), *network.preactivations(x)]
            for array in values:
                low, high = array.min(axis=0), array.max(axis=0)
                widening = margin * (high - low)
                boxes.append(_box(low - widening, high + widening, "estimated", layer=len(boxes)))
        return cls(boxes[0], tuple(boxes[1:-1]), boxes[-1], _typical_rows(values[0]))

    @classmethod
    def proved(cls, network: PolynomialNetwork, box: Box, *, rows: Array | None = None) -> Ranges:
        """Interval arithmetic from an input box, which must itself be declared: the kind is taken over from it.

        `rows` (rows, n_in) are typical inputs; 32 of them are used.

        Raises
        ------
        PlanError : values outgrow what ciphertexts hold.
        """
        boxes = [_box(box.low, box.high, box.kind, layer=0)]
        low, high = box.low, box.high
        for index, layer in enumerate(network.affines):
            positive, negative = np.maximum(layer.weight, 0.0), np.minimum(layer.weight, 0.0)
            with np.errstate(over="ignore", invalid="ignore"):
                below = positive @ low + negative @ high + layer.bias
                above = positive @ high + negative @ low + layer.bias
                slack = 4e-16 * (layer.n_in + 2) * (np.abs(layer.weight) @ np.maximum(abs(low), abs(high)))
                below, above = below - slack, above + slack
            boxes.append(_box(below, above, box.kind, layer=index + 1))
            if index < len(network.coefficients):
                low, high = polynomial_range(network.coefficients[index], below, above)
        return cls(box, tuple(boxes[1:-1]), boxes[-1], None if rows is None else _typical_rows(rows))


def _box(low: Array, high: Array, kind: Literal["proved", "estimated"], *, layer: int) -> Box:
    """A box of inputs (layer 0) or of a layer's pre-activations, refused where no exponent holds it."""
    reach = float(np.maximum(np.abs(low), np.abs(high)).max(initial=0.0))
    if not reach <= 2.0**_EXPONENT_LIMIT:
        raise PlanError(
            f"{f'layer {layer}' if layer else 'the inputs'} may reach {reach:.3g}, ciphertexts hold values up to "
            f"2**{_EXPONENT_LIMIT}",
            remedy="scale the inputs, or state a narrower domain",
        )
    return Box(low, high, kind)


def _typical_rows(x: Array) -> Array:
    return np.asarray(x[:: max(1, len(x) // _TYPICAL_ROWS)][:_TYPICAL_ROWS], dtype=np.float64)


def polynomial_range(table: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Range of each unit's polynomial over [low, high]: at the ends and at the real roots of the derivative."""
    smallest, largest = np.empty(len(table)), np.empty(len(table))
    for unit, row in enumerate(table):
        points = [low[unit], high[unit]]
        for root in np.roots(np.polyder(row[::-1])) if row[1:].any() else ():
            if abs(root.imag) < 1e-9 * (1 + abs(root.real)) and low[unit] < root.real < high[unit]:
                points.append(root.real)
        values = np.polyval(row[::-1], points)
        slack = 1e-12 * np.abs(np.polyval(np.abs(row[::-1]), np.abs(points))).max()
        smallest[unit], largest[unit] = values.min() - slack, values.max() + slack
    return smallest, largest


@dataclass(frozen=True, eq=False)
class Reduced:
    """A network without what costs and does nothing, and where its hidden units came from.

    Parameters
    ----------
    network : the same function: linear layers merged, dead, unread and constant units gone.
    origins : per remaining hidden layer, its index in the original and the indices (units,) that were kept.
    """

    network: PolynomialNetwork
    origins: tuple[tuple[int, Array], ...]

    def ranges(self, ranges: Ranges) -> Ranges:
        """The ranges of what is left."""
        boxes = tuple(
            Box(ranges.preactivations[layer].low[kept], ranges.preactivations[layer].high[kept], ranges.logits.kind)
            for layer, kept in self.origins
        )
        return Ranges(ranges.inputs, boxes, ranges.logits, ranges.rows)

    def notes(self, whole: PolynomialNetwork) -> tuple[str, ...]:
        """What became of each hidden layer of `whole` that lost units, for people."""
        left = {index: len(kept) for index, kept in self.origins}
        return tuple(
            f"hidden layer {index + 1}: {left[index]} of {len(table)} units left, the others are dead, constant or unread"
            if index in left
            else f"hidden layer {index + 1} is gone: its {len(table)} units are linear or constant"
            for index, table in enumerate(whole.coefficients)
            if left.get(index) != len(table)
        )


def reduce_network(network: PolynomialNetwork) -> Reduced:
    """Merge linear layers, and remove units that are dead, constant or unread; exact up to rounding.

    A network that does not depend on its input is left with one affine layer of zeros.
    """
    affines = list(network.affines)
    tables = list(network.coefficients)
    origins = [(index, np.arange(len(table))) for index, table in enumerate(tables)]
    for index in range(len(tables)):
        _fold_constants(affines, tables, origins, index)
    for index in reversed(range(len(tables))):
        read = np.asarray(affines[index + 1].weight.any(axis=0) & tables[index].any(axis=1))
        _keep(affines, tables, origins, index, read)
        if not tables[index].size:
            constant = Affine(np.zeros((network.n_out, network.n_in)), _constant_logits(affines, tables, index))
            return Reduced(PolynomialNetwork((constant,), (), network.decision), ())
    for index in reversed(range(len(tables))):
        if not tables[index][:, 2:].any():
            here, after = affines[index], affines[index + 1]
            slope = tables[index][:, 1]
            merged = Affine((after.weight * slope) @ here.weight, after.weight @ (slope * here.bias) + after.bias)
            affines[index : index + 2] = [merged]
            del tables[index], origins[index]
    return Reduced(PolynomialNetwork(tuple(affines), tuple(tables), network.decision), tuple(origins))


def _fold_constants(
    affines: list[Affine], tables: list[Array], origins: list[tuple[int, Array]], index: int
) -> None:
    """A unit that reads nothing is a constant: move it into the next bias."""
    constant = ~affines[index].weight.any(axis=1)
    if not constant.any():
        return
    after = affines[index + 1]
    values = evaluate_polynomials(tables[index][constant], affines[index].bias[constant][None])[0]
    weight = after.weight.copy()
    weight[:, constant] = 0.0
    affines[index + 1] = Affine(weight, after.bias + after.weight[:, constant] @ values, after.name)
    table = tables[index].copy()
    table[constant] = 0.0
    tables[index] = table


def _keep(
    affines: list[Affine], tables: list[Array], origins: list[tuple[int, Array]], index: int, keep: Array
) -> None:
    here, after = affines[index], affines[index + 1]
    tables[index] = tables[index][keep]
    origins[index] = (origins[index][0], origins[index][1][keep])
    if keep.any():
        affines[index] = Affine(here.weight[keep], here.bias[keep], here.name)
        affines[index + 1] = Affine(after.weight[:, keep], after.bias, after.name)


def _constant_logits(affines: list[Affine], tables: list[Array], index: int) -> Array:
    """Logits of a network in which layer `index` gives nothing but zeros."""
    h = np.zeros((1, affines[index + 1].n_in))
    for layer, table in zip(affines[index + 1 : -1], tables[index + 1 :], strict=True):
        h = evaluate_polynomials(table, layer(h)) if len(table) else np.zeros((1, layer.n_out))
    return np.asarray(affines[-1](h)[0])


@dataclass(frozen=True, eq=False)
class InputScaling:
    """What the client does to a row before it encrypts it: ``(x - offset) * 2**-exponents``, (n_in,) each."""

    offset: Array
    exponents: Array

    @classmethod
    def for_box(cls, box: Box) -> InputScaling:
        """Centre the box and bring its half-width to at most 1.

        A box that lies in [-1, 1] already is left alone, so that zeros stay zeros.
        """
        if (box.radius <= 1.0).all() and (box.radius > 0.0).any():
            return cls(np.zeros(len(box.low)), np.zeros(len(box.low), dtype=np.int64))
        half = (box.high - box.low) / 2
        return cls((box.high + box.low) / 2, _exponents(half))

    def __call__(self, x: Array) -> Array:
        """Apply to rows (batch, n_in)."""
        return np.asarray(np.ldexp(x - self.offset, -self.exponents))


def input_streams(scaled: Array, *, pairs: bool, tile: int) -> list[Array]:
    """Streams (batch, at most tile) of scaled rows (batch, n_in): in pairs ``x_c + i x_(c + half)``, cut into tiles.

    >>> [stream.tolist() for stream in input_streams(np.array([[1.0, 2.0, 3.0]]), pairs=True, tile=2)]
    [[[(1+3j), (2+0j)]]]
    """
    entries: Array = scaled
    if pairs:
        half = -(-scaled.shape[1] // 2)
        entries = scaled[:, :half].astype(np.complex128)
        entries[:, : scaled.shape[1] - half] += 1j * scaled[:, half:]
    return [entries[:, at : at + tile] for at in range(0, entries.shape[1], tile)]


def exponents_of(box: Box) -> Array:
    """(units,) least e with |value| <= 2**e over the box."""
    return _exponents(box.radius)


def _exponents(radius: Array) -> Array:
    exponents = np.ceil(np.log2(np.where(radius > 0, radius, 1.0))).astype(np.int64)
    return np.clip(exponents, -_EXPONENT_LIMIT, _EXPONENT_LIMIT)


@dataclass(frozen=True, eq=False)
class Stage:
    """One product: ``z = bias + Re(sum of matrices[k] @ stream k)``, with z scaled into [-1, 1], then its powers.

    Parameters
    ----------
    matrices : one (rows, columns) array per stream, complex where the stream is.
    bias : (rows,).
    degree : of the polynomials that follow; 0 for the last stage, whose z are the logits.
    odd : whether odd powers of z are needed, so that the streams made from z are complex.
    """

    matrices: tuple[Array, ...]
    bias: Array
    degree: int
    odd: bool

    @property
    def rows(self) -> int:
        """Number of values that come out."""
        return len(self.bias)

    @property
    def columns(self) -> int:
        """Entries of the widest stream."""
        return max(int(matrix.shape[1]) for matrix in self.matrices)

    @property
    def streams_out(self) -> int:
        """Number of streams that the powers of z travel in."""
        return (self.degree + 1) // 2

    @property
    def is_complex(self) -> bool:
        """Whether the streams that come in are complex."""
        return any(np.iscomplexobj(matrix) for matrix in self.matrices)

    def values(self, streams: Sequence[Array]) -> Array:
        """Compute z from streams (batch, columns) in the clear: (batch, rows)."""
        total = np.zeros((len(streams[0]), self.rows))
        for matrix, stream in zip(self.matrices, streams, strict=True):
            total = total + (stream @ matrix.T).real
        return total + self.bias

    def streams(self, z: Array) -> list[Array]:
        """Streams of the powers of z (batch, rows), in the clear."""
        square = z * z
        first = square + 1j * z if self.odd else square
        return [first * square**k for k in range(self.streams_out)]


def stages_of(
    network: PolynomialNetwork,
    scaling: InputScaling,
    exponents: Sequence[Array],
    *,
    pairs: bool,
    tile: int,
) -> tuple[Stage, ...]:
    """Products of a reduced network.

    Parameters
    ----------
    network : what :func:`reduce_network` gave.
    scaling : of the inputs.
    exponents : (units,) per hidden layer, from its range.
    pairs : two inputs in each complex slot.
    tile : entries of one input ciphertext; wider inputs travel in several.
    """
    if len(exponents) != len(network.coefficients):
        raise InputError(f"{len(exponents)} sets of exponents for {len(network.coefficients)} hidden layers")
    stages = []
    first = network.affines[0]
    row_scale = _row_scale(exponents, 0, first.n_out)
    weight = np.ldexp(first.weight, scaling.exponents) * row_scale[:, None]
    bias = (first.bias + first.weight @ scaling.offset) * row_scale
    stages.append(Stage(_input_matrices(weight, pairs, tile), bias, *_activation(network, 0)))
    for index, table in enumerate(network.coefficients):
        layer = network.affines[index + 1]
        row_scale = _row_scale(exponents, index + 1, layer.n_out)
        degree, odd = _activation(network, index)
        powers = [
            layer.weight * np.ldexp(table[:, p], p * exponents[index]) * row_scale[:, None]
            if p < table.shape[1]
            else np.zeros_like(layer.weight)
            for p in range(2 * ((degree + 1) // 2) + 1)
        ]
        matrices = tuple(
            (powers[2 * k] - 1j * powers[2 * k - 1]) if odd else powers[2 * k]
            for k in range(1, (degree + 1) // 2 + 1)
        )
        stages.append(Stage(matrices, layer.bias * row_scale, *_activation(network, index + 1)))
    return tuple(stages)


def _activation(network: PolynomialNetwork, index: int) -> tuple[int, bool]:
    if index == len(network.coefficients):
        return 0, False
    table = network.coefficients[index]
    return network.degrees[index], bool(table[:, 1::2].any())


def _row_scale(exponents: Sequence[Array], index: int, rows: int) -> Array:
    return np.ldexp(1.0, -exponents[index]) if index < len(exponents) else np.ones(rows)


def _input_matrices(weight: Array, pairs: bool, tile: int) -> tuple[Array, ...]:
    columns = weight
    if pairs:
        half = -(-weight.shape[1] // 2)
        columns = weight[:, :half].astype(np.complex128)
        columns[:, : weight.shape[1] - half] -= 1j * weight[:, half:]
    return tuple(np.ascontiguousarray(columns[:, at : at + tile]) for at in range(0, columns.shape[1], tile))
