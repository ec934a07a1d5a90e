"""The table from ONNX operator to lowering, and how lowerings read their inputs.

A lowering takes the values of its inputs (constants, signals, tails, None for what is left out) and gives values
back. At least one input depends on the network's input, except where an entry says that it folds constants too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders.chain import Chain
from deploy.loaders.onnx.graph import Node
from deploy.loaders.signal import Signal
from deploy.loaders.tails import Tailed
from deploy.loaders.values import refuse_constant, refuse_moving
from deploy.loaders.weights import check_finite

__all__ = [
    "OPERATORS",
    "Context",
    "Inputs",
    "Operator",
    "Value",
    "axes_of",
    "constant_at",
    "integers",
    "moved_at",
    "operator",
    "signal_at",
    "weight_at",
]

Value = Array | Signal | Tailed
Inputs = Sequence[Value | None]


@dataclass(slots=True)
class Context:
    """State of one lowering.

    Parameters
    ----------
    chain : the layers so far.
    batch : rows of one call as the file fixes them, 0 where it fixes none.
    values : the value of every tensor so far.
    input_type : ONNX element type of the network's input.
    has_weights : the graph has a matrix product, convolution or normalisation somewhere.
    """

    chain: Chain
    batch: int
    values: dict[str, Value]
    input_type: int
    has_weights: bool


Lower = Callable[[Context, Node, Inputs], Value | tuple[Value, ...]]


@dataclass(frozen=True, slots=True)
class Operator:
    """A lowering, whether it takes tails, and whether it is called for constants too."""

    lower: Lower
    takes_tail: bool = False
    folds: bool = False


OPERATORS: dict[tuple[str, str], Operator] = {}


def operator(
    *names: str, domain: str = "", takes_tail: bool = False, folds: bool = False
) -> Callable[[Lower], Lower]:
    """Enter a lowering into the table."""

    def enter(lower: Lower) -> Lower:
        for name in names:
            OPERATORS[domain, name] = Operator(lower, takes_tail, folds)
        return lower

    return enter


def signal_at(node: Node, inputs: Inputs, position: int) -> Signal:
    """The input at `position`, which must depend on the network's input."""
    value = inputs[position] if position < len(inputs) else None
    if not isinstance(value, Signal):
        raise refuse_constant(f"input {position}")
    return value


def moved_at(node: Node, inputs: Inputs, position: int) -> Signal | Tailed:
    """The input at `position`, a signal or a tail."""
    value = inputs[position] if position < len(inputs) else None
    if isinstance(value, Signal | Tailed):
        return value
    raise refuse_constant(f"input {position}")


def constant_at(node: Node, inputs: Inputs, position: int) -> Array | None:
    """The constant at `position`, or None where it is left out."""
    value = inputs[position] if position < len(inputs) else None
    if isinstance(value, Signal | Tailed):
        raise refuse_moving(node.inputs[position])
    return value


def weight_at(node: Node, inputs: Inputs, position: int) -> Array:
    """The constant at `position`, checked to be finite numbers."""
    value = constant_at(node, inputs, position)
    if value is None:
        raise LoadError(f"input {position} is missing")
    return check_finite(value, node.inputs[position])


def integers(value: Array | Sequence[int] | int | None) -> list[int] | None:
    """A list of axes or sizes from an attribute or a constant."""
    if value is None:
        return None
    array = np.asarray(value)
    if array.dtype.kind not in "iu" and array.size:
        raise LoadError(f"sizes of type {array.dtype}")
    if array.size > 64:
        raise LoadError(f"{array.size} axes")
    return [int(item) for item in array.ravel()]


def axes_of(node: Node, inputs: Inputs, position: int = 1, name: str = "axes") -> list[int] | None:
    """Axes, as an attribute (older opsets) or an input."""
    if name in node.attributes:
        return integers(node.attributes[name])
    return integers(constant_at(node, inputs, position))
