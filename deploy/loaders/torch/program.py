"""A traced PyTorch program: ATen calls in order, whichever way it was traced.

Axes of a tensor are PyTorch's: batch first, channels second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.arrays import Array

__all__ = ["Call", "Program", "Reference"]


@dataclass(frozen=True, slots=True)
class Reference:
    """A value that an earlier call, the input or a constant made."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One ATen operator.

    Parameters
    ----------
    op : name without namespace and overload, for instance "linear" or "add".
    arguments : by the operator's own argument names; tensors and sizes are references.
    outputs : names of the results.
    branches : of an "If", the calls and results where its condition holds, and where it does not.
    """

    op: str
    arguments: Mapping[str, Any]
    outputs: tuple[str, ...]
    branches: tuple[tuple[Sequence[Call], tuple[Reference, ...]], ...] = ()

    @property
    def label(self) -> str:
        """How errors name it."""
        return f"node {self.outputs[0]} ({self.op})" if self.outputs else f"node {self.op}"


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Calls from one input to the outputs.

    Parameters
    ----------
    input_dims : sizes of the input, names where they are not fixed, None where nothing is known.
    """

    calls: Sequence[Call]
    constants: Mapping[str, Array]
    input: str
    input_dims: tuple[int | str, ...] | None
    outputs: Sequence[str]
    notes: tuple[str, ...] = ()
