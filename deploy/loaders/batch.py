"""How many rows one call of a traced network takes, and the shape of one row.

A trace says how many rows it takes: a name (any number), 1, or another number. It is lowered for a batch of one.
Where it fixes another number and does not work row by row, the whole tensor is one row: that is what it computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deploy.errors import LoadError

__all__ = ["Plan", "farthest", "plan_rows", "row_shape"]


@dataclass(frozen=True, slots=True)
class Plan:
    """A way to read the input: its shape for one row, and the batch that the file fixes (1: none, 0: any)."""

    shape: tuple[int, ...]
    batch: int


def plan_rows(name: str, dims: Sequence[int | str] | None, width: int | None) -> list[Plan]:
    """Ways to read an input of shape `dims` (a name: not fixed; None: unknown), the likeliest first.

    `width` is how many values the first weight takes, for shapes that do not say.

    >>> plan_rows("x", [25, 5], 5)
    [Plan(shape=(1, 5), batch=25), Plan(shape=(25, 5), batch=1)]
    """
    if dims is None:
        if width is None:
            raise LoadError(
                f"input {name} has no shape",
                remedy="give it: --input-shape N (input_shape=(N,)), or export it with one",
            )
        return [Plan((1, width), 0)]
    if len(dims) > 1 and isinstance(dims[0], str):
        dims, batch = [1, *dims[1:]], 0
    else:
        batch = 1
    unknown = [axis for axis, length in enumerate(dims) if isinstance(length, str)]
    if unknown:
        if len(unknown) > 1 or width is None:
            raise LoadError(
                f"input {name} has the shape {list(dims)}, which fixes no size",
                remedy="give it: --input-shape N (input_shape=(N,)), or export it with every axis but the batch fixed",
            )
        return [
            Plan(tuple(size if axis == unknown[0] else int(length) for axis, length in enumerate(dims)), batch)
            for size in (width, 1)
        ]
    shape = tuple(int(length) for length in dims)
    if batch == 1 and len(shape) > 1 and shape[0] > 1:
        return [Plan((1, *shape[1:]), shape[0]), Plan(shape, 1)]
    return [Plan(shape, batch)]


def farthest(refusals: Sequence[tuple[int, LoadError]]) -> LoadError:
    """Of refusals with how far each reading came, the one that came farthest; the last of equals."""
    return max(reversed(refusals), key=lambda refusal: refusal[0])[1]


def row_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of one row: without a leading batch of one."""
    return tuple(shape[1:]) if len(shape) > 1 and shape[0] == 1 else tuple(shape)
