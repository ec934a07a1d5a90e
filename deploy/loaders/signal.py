"""Affine functions of the last hidden layer, with a shape: what a tensor of a ReLU chain is at load time.

Between two activations every supported operator is affine, whatever its spelling: a matrix product, a sum with a
constant, a transposition, a convolution. A :class:`Signal` is the value of a tensor for one row, written as

    value.ravel() = matrix @ h + shift,        h the units of hidden layer `level` (level 0: the inputs)

with `matrix` None (the identity), sparse, or dense. Operators build new signals; nothing is evaluated.

Axes: ``size`` (entries of the tensor), ``units`` (of h).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse
from scipy.sparse import csr_array

from deploy.arrays import Array
from deploy.loaders.weights import MAX_PARAMETERS, check_size

__all__ = ["Matrix", "Signal", "stack"]


Matrix: TypeAlias = Any
"""A dense array or a scipy.sparse.csr_array (scipy ships no types)."""


@dataclass(frozen=True, slots=True, eq=False)
class Signal:
    """matrix @ h + shift, read in `shape`; see the module's text.

    Parameters
    ----------
    level : how many activations lie before h.
    units : length of h.
    shape : shape of the tensor for one row, the batch axis (where the file has one) being of length 1.
    matrix : (size, units) dense or sparse, or None for the identity.
    shift : (size,), or None for zero.
    limit : most entries that a matrix may have.
    name : what the layer is called that has this matrix.
    """

    level: int
    units: int
    shape: tuple[int, ...]
    matrix: Matrix | None = None
    shift: Array | None = None
    limit: int = MAX_PARAMETERS
    name: str = ""

    @property
    def size(self) -> int:
        """Number of entries of the tensor."""
        return math.prod(self.shape)

    @property
    def is_layer(self) -> bool:
        """The signal is h itself, untouched."""
        return self.matrix is None and self.shift is None

    def named(self, name: str) -> Signal:
        """The same signal, `name` being what made it; the names of merged layers are joined by a plus."""
        return replace(self, name=f"{self.name}+{name}" if self.name else name)

    def reshaped(self, shape: Sequence[int]) -> Signal:
        """The same entries in the same order under another shape."""
        return replace(self, shape=tuple(int(length) for length in shape))

    def selected(self, rows: Array) -> Signal:
        """Entries `rows` (flat indices into the tensor), in the shape of `rows`."""
        flat = rows.ravel()
        shape = tuple(int(length) for length in rows.shape)
        if flat.size == self.size and np.array_equal(flat, np.arange(self.size)):
            return self.reshaped(shape)
        if self.matrix is None:
            check_size(flat.size, self.limit, "the selection")
            matrix: Matrix = csr_array(
                (np.ones(flat.size), flat, np.arange(flat.size + 1)), shape=(flat.size, self.units)
            )
        else:
            if not scipy.sparse.issparse(self.matrix):
                check_size(flat.size * self.units, self.limit, "the selection")
            matrix = self.matrix[flat]
        shift = None if self.shift is None else self.shift[flat]
        return replace(self, shape=shape, matrix=matrix, shift=shift)

    def indices(self) -> Array:
        """Flat index of each entry, in the tensor's shape: what relayouts are applied to."""
        return np.arange(self.size).reshape(self.shape)

    def broadcast(self, shape: tuple[int, ...]) -> Signal:
        """Repeat entries as numpy broadcasting does."""
        if shape == self.shape:
            return self
        check_size(math.prod(shape), self.limit, "the broadcast tensor")
        return self.selected(np.broadcast_to(self.indices(), shape))

    def shifted(self, constant: Array) -> Signal:
        """Add a constant, with numpy broadcasting."""
        constant = np.asarray(constant, dtype=np.float64)
        wide = self.broadcast(np.broadcast_shapes(self.shape, constant.shape))
        addend = np.broadcast_to(constant, wide.shape).ravel()
        return replace(wide, shift=addend if wide.shift is None else wide.shift + addend)

    def scaled(self, gain: Array) -> Signal:
        """Multiply by a constant entry by entry, with numpy broadcasting."""
        gain = np.asarray(gain, dtype=np.float64)
        wide = self.broadcast(np.broadcast_shapes(self.shape, gain.shape))
        gains = np.broadcast_to(gain, wide.shape).ravel()
        if np.all(gains == 1.0):
            return wide
        if wide.matrix is None:
            matrix: Matrix = csr_array(scipy.sparse.diags_array(gains))
        elif scipy.sparse.issparse(wide.matrix):
            matrix = csr_array(scipy.sparse.diags_array(gains) @ wide.matrix)
        else:
            matrix = wide.matrix * gains[:, None]
        return replace(wide, matrix=matrix, shift=None if wide.shift is None else wide.shift * gains)

    def mapped(self, operator: Matrix, shape: tuple[int, ...]) -> Signal:
        """Apply a linear map (new size, size), dense or sparse, and read the result in `shape`."""
        shift = None if self.shift is None else np.asarray(operator @ self.shift)
        return replace(self, shape=shape, matrix=self._product(operator), shift=shift)

    def _product(self, operator: Matrix) -> Matrix:
        if self.matrix is None:
            return operator
        ours, theirs = scipy.sparse.issparse(self.matrix), scipy.sparse.issparse(operator)
        if ours and theirs:
            return csr_array(operator @ self.matrix)
        check_size(operator.shape[0] * self.units, self.limit, "the merged layer")
        if ours:
            return np.ascontiguousarray((self.matrix.T @ operator.T).T)
        return np.asarray(operator @ self.matrix)

    def dense(self) -> tuple[Array, Array]:
        """The weight (size, units) and bias (size,), float64 and contiguous."""
        check_size(self.size * self.units, self.limit, "the layer")
        if self.matrix is None:
            weight = np.eye(self.size)
        elif scipy.sparse.issparse(self.matrix):
            weight = self.matrix.toarray()
        else:
            weight = self.matrix
        bias = np.zeros(self.size) if self.shift is None else self.shift
        return weight, bias


def stack(signals: Sequence[Signal]) -> Signal:
    """Put signals of one level below one another, as a flat signal."""
    first = signals[0]
    if all(signal.matrix is not None and not scipy.sparse.issparse(signal.matrix) for signal in signals):
        check_size(sum(s.size for s in signals) * first.units, first.limit, "the stacked layer")
        rows: list[Array] = [np.asarray(signal.matrix) for signal in signals]
        matrix: Matrix = np.vstack(rows)
    else:
        matrix = csr_array(
            scipy.sparse.vstack(
                [scipy.sparse.eye_array(s.size) if s.matrix is None else csr_array(s.matrix) for s in signals]
            )
        )
    shift = np.concatenate([np.zeros(s.size) if s.shift is None else s.shift for s in signals])
    return replace(first, shape=(int(shift.size),), matrix=matrix, shift=shift)
