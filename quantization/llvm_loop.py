"""A loop in LLVM code, and an index that runs either way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["Loop", "turned"]


def turned(builder: Any, index: Any, count: Any, turn: Any) -> Any:
    """index for turn 0, count - 1 - index for turn -1."""
    return builder.add(builder.xor(index, turn), builder.and_(count, turn))


class Loop:
    """``for index in range(begin, end, step)`` around the body of a ``with``.

    `carried` holds the values of a round, and those of the last one behind the loop; the body sets `following`.
    """

    def __init__(self, ir: Any, builder: Any, begin: Any, end: Any, step: int, initial: Sequence[Any] = ()) -> None:
        function, before = builder.function, builder.block
        self._head, self._body = function.append_basic_block("head"), function.append_basic_block("body")
        self._exit = function.append_basic_block("exit")
        self._builder, self._end, self._step = builder, end, ir.Constant(begin.type, step)
        builder.branch(self._head)
        builder.position_at_end(self._head)
        self._index = builder.phi(begin.type)
        self._index.add_incoming(begin, before)
        self.carried = [builder.phi(value.type) for value in initial]
        for phi, value in zip(self.carried, initial, strict=True):
            phi.add_incoming(value, before)
        self.following: list[Any] = []

    def __enter__(self) -> Any:
        more = self._builder.icmp_signed("<", self._index, self._end)
        self._builder.cbranch(more, self._body, self._exit)
        self._builder.position_at_end(self._body)
        return self._index

    def __exit__(self, *exc: object) -> None:
        end = self._builder.block
        self._index.add_incoming(self._builder.add(self._index, self._step), end)
        for phi, value in zip(self.carried, self.following, strict=True):
            phi.add_incoming(value, end)
        self._builder.branch(self._head)
        self._builder.position_at_end(self._exit)
