"""The table from ATen operator to lowering, and how lowerings read their arguments, by PyTorch's own names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders.chain import Chain
from deploy.loaders.signal import Signal
from deploy.loaders.tails import Tailed
from deploy.loaders.values import refuse_constant, refuse_moving
from deploy.loaders.weights import check_finite

__all__ = [
    "OPERATORS",
    "TAIL_OPERATORS",
    "Arguments",
    "Context",
    "Lower",
    "Value",
    "constant_at",
    "numbers",
    "operator",
    "signal_at",
    "weight_at",
]

Value = Any
"""A constant array, a signal, a tail, a number, or a list of these."""

Arguments = Mapping[str, Any]


@dataclass(slots=True)
class Context:
    """State of one lowering.

    Parameters
    ----------
    chain : the layers so far.
    batch : rows of one call as the file fixes them, 0 where it fixes none.
    label : the call that is being lowered, for errors.
    op : its operator, without the underscore of the in-place form.
    """

    chain: Chain
    batch: int
    label: str = ""
    op: str = ""

    @property
    def name(self) -> str:
        """How a layer is named after the call."""
        return self.label.split(" ")[1] if " " in self.label else self.label


Lower = Callable[[Context, Arguments], Value]
OPERATORS: dict[str, Lower] = {}
TAIL_OPERATORS: set[str] = set()


def operator(*names: str, takes_tail: bool = False) -> Callable[[Lower], Lower]:
    """Enter a lowering into the table, under each name and its in-place form."""

    def enter(lower: Lower) -> Lower:
        for name in names:
            for spelling in (name, f"{name}_"):
                OPERATORS[spelling] = lower
                if takes_tail:
                    TAIL_OPERATORS.add(spelling)
        return lower

    return enter


def signal_at(arguments: Arguments, *names: str) -> Signal:
    for name in names:
        if isinstance(arguments.get(name), Signal):
            signal: Signal = arguments[name]
            return signal
    raise refuse_constant(names[0])


def constant_at(arguments: Arguments, name: str) -> Array | None:
    value = arguments.get(name)
    if value is None:
        return None
    if isinstance(value, Signal | Tailed):
        raise refuse_moving(name)
    return check_finite(np.asarray(value), name)


def weight_at(arguments: Arguments, name: str) -> Array:
    value = constant_at(arguments, name)
    if value is None:
        raise LoadError(f"{name} is missing")
    return value


def numbers(value: object, axes: int, default: int) -> list[int]:
    if value is None or (isinstance(value, list | tuple) and not value):
        return [default] * axes
    items = [int(item) for item in value] if isinstance(value, list | tuple) else [int(str(value))]
    return items * axes if len(items) == 1 else items
