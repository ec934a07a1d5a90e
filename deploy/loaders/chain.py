"""The chain under construction: signals in, affine layers and activations out.

Every loader ends here, whatever the format. :class:`Chain` keeps the layers in order, refuses what is no chain,
and rewrites piecewise linear activations as ReLU units exactly:

=====================  =================================================
LeakyRelu, PRelu       relu(x) - a relu(-x)
Abs                    relu(x) + relu(-x)
Clip(a, b)             a + relu(x - a) - relu(x - b)
Max(x, a)              a + relu(x - a)
Min(x, b)              b - relu(b - x)
=====================  =================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import scipy.sparse
from scipy.sparse import csr_array

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders.signal import Signal, stack
from deploy.loaders.weights import MAX_PARAMETERS
from deploy.model import Activation, Affine

__all__ = ["Chain", "Piece"]


@dataclass(frozen=True, slots=True)
class Piece:
    """out * relu(gain * x + offset): one ReLU of a piecewise linear function; arrays broadcast over x."""

    gain: float | Array
    offset: float | Array
    out: float | Array


@dataclass(slots=True)
class Chain:
    """Layers found so far, and sentences on what was rewritten.

    Parameters
    ----------
    limit : most entries of one dense matrix.
    """

    limit: int = MAX_PARAMETERS
    affines: list[Affine] = field(default_factory=list)
    activations: list[Activation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    weighted: bool = False

    def input(self, shape: Sequence[int]) -> Signal:
        """The input tensor of one row."""
        shape = tuple(int(length) for length in shape)
        size = int(np.prod(shape, dtype=object))
        if size < 1:
            raise LoadError(f"the input has shape {list(shape)}, that is {size} values")
        if size > self.limit:
            raise LoadError(f"the input has {size:,} values, the limit is {self.limit:,}")
        return Signal(0, size, shape, limit=self.limit)

    def note(self, sentence: str) -> None:
        """Remember a sentence, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def activate(self, signal: Signal, activation: Activation, name: str) -> Signal:
        """Close the current layer with a ReLU or square over all entries of `signal`."""
        if activation == "relu" and signal.is_layer and self._is_nonnegative(signal.level):
            self.note(f"{name}: a ReLU of values that are never negative was dropped")
            return signal
        self._close(signal, name)
        self.activations.append(activation)
        return Signal(len(self.affines), signal.size, signal.shape, limit=self.limit)

    def activate_pieces(
        self, signal: Signal, pieces: Sequence[Piece], constant: float | Array, name: str
    ) -> Signal:
        """Close the current layer with constant + sum of pieces, as len(pieces) * size ReLU units."""
        shape = signal.shape
        parts = [
            signal.scaled(np.asarray(piece.gain)).shifted(np.asarray(piece.offset)).broadcast(shape)
            for piece in pieces
        ]
        units = self.activate(stack(parts), "relu", name)
        gains = [np.broadcast_to(np.asarray(piece.out, dtype=np.float64), shape).ravel() for piece in pieces]
        matrix = csr_array(scipy.sparse.hstack([scipy.sparse.diags_array(gain) for gain in gains]))
        return replace(units, shape=shape, matrix=matrix, shift=None).shifted(np.asarray(constant))

    def finish(self, signal: Signal, name: str) -> None:
        """Close the last layer: the logits are `signal`."""
        if not self.weighted:
            raise LoadError(
                "there is no affine layer (Gemm, MatMul, Conv) between input and output",
                remedy="give the whole network",
            )
        self._close(signal, name)

    def _close(self, signal: Signal, name: str) -> None:
        if signal.level != len(self.affines):
            raise LoadError(
                f"branches off: it takes the values of hidden layer {signal.level}, but hidden layer "
                f"{len(self.affines)} is there already",
                remedy="supported is one chain of layers",
            )
        if "+" in signal.name:
            self.note(f"the affine layers {signal.name.replace('+', ', ')} were merged into one")
        weight, bias = signal.dense()
        self.affines.append(Affine(_owned(weight), _owned(bias), signal.name or name))

    def _is_nonnegative(self, level: int) -> bool:
        return level > 0


def _owned(array: Array) -> Array:
    """A read-only array that owns its memory, so that the layer need not copy it."""
    if array.base is not None or array.dtype != np.float64 or not array.flags.c_contiguous:
        array = np.array(array, dtype=np.float64, order="C")
    array.flags.writeable = False
    return array
