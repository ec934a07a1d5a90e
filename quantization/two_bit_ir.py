"""LLVM code of the two-bit kernel, written with llvmlite's builder.

``accumulate(packed, q, out, n_out, blocks, batch)``: int32 accumulators, see :mod:`quantization.jit` for the
layout. ``requantize8(sums, sums, multiplier, offset, out, out, shift, n_out, batch, stride)`` and
``requantize16``: the rescale of a hidden layer, straight into the rows that the next layer reads; at 16 bits the
two sums and the two outputs are high and low bytes.

Axes: ``batch``, ``n_in``, ``n_out``, ``blocks`` of 256 columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

from deploy.requirement import require

__all__ = ["BLOCK", "Form", "build_module"]

Form = Literal["avx512vnni", "avx2", "portable"]

BLOCK = 256
"""Columns of a block: 64 bytes of four digits."""

_AHEAD = 8192
"""Bytes of weights to ask the memory for in advance."""

_TILES = ((4, 2), (1, 4))
"""Rows of activations and weight rows that one pass serves, the larger batch first."""


def build_module(form: Form, triple: str, layout: str) -> Any:
    """LLVM module with ``accumulate(packed, q, out, n_out, blocks, batch)``."""
    ir = require("llvmlite.ir", extra="ternary")
    module = ir.Module(name="two_bit")
    module.triple, module.data_layout = triple, layout
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(64)
    kind = ir.FunctionType(ir.VoidType(), [byte, byte, ir.IntType(32).as_pointer(), word, word, word])
    function = ir.Function(module, kind, "accumulate")
    packed, q, out, n_out, blocks, batch = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    tile = _Tile(ir, module, builder, form, blocks)

    def constant(value: int) -> Any:
        return ir.Constant(word, value)

    def line(start: Any, index: Any, offset: int, size: Any) -> Any:
        return builder.gep(start, [builder.mul(builder.add(index, constant(offset)), size)])

    row_bytes, q_bytes = builder.mul(blocks, constant(64)), builder.mul(blocks, constant(BLOCK))
    first = constant(0)
    for items, rows in _TILES:
        past = builder.and_(batch, constant(-items))
        with _loop(ir, builder, first, past, items) as item:
            activations = [line(q, item, at, q_bytes) for at in range(items)]
            targets = [line(out, item, at, n_out) for at in range(items)]
            excess = tile.excess(activations)
            whole = builder.and_(n_out, constant(-rows))
            for begin, end, height in ((constant(0), whole, rows), (whole, n_out, 1)):
                with _loop(ir, builder, begin, end, height) as row:
                    weights = [line(packed, row, at, row_bytes) for at in range(height)]
                    for at, sums in enumerate(tile.sums(weights, activations)):
                        for target, total, twice in zip(targets, sums, excess, strict=True):
                            place = builder.gep(target, [builder.add(row, constant(at))])
                            builder.store(builder.sub(total, twice), place)
        first = past
    builder.ret_void()
    for bits in (8, 16):
        _add_requantize(ir, module, bits)
    return module


def _add_requantize(ir: Any, module: Any, bits: int) -> None:
    """``q = clamp((multiplier * sum + offset) >> shift)``, stored as one or two signed bytes."""
    byte, number, word = ir.IntType(8), ir.IntType(32), ir.IntType(64)
    pointers = [number, number, word, word, byte, byte]
    kind = ir.FunctionType(ir.VoidType(), [*(item.as_pointer() for item in pointers), word, word, word, word])
    function = ir.Function(module, kind, f"requantize{bits}")
    high_sums, low_sums, multiplier, offset, high_out, low_out, shift, n_out, batch, stride = function.args
    for pointer in function.args[:6]:
        pointer.add_attribute("noalias")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    least, most = (-128, 127) if bits == 8 else (-32768, 32639)

    def constant(value: int) -> Any:
        return ir.Constant(word, value)

    with _loop(ir, builder, constant(0), batch, 1) as item:
        sums_at, out_at = builder.mul(item, n_out), builder.mul(item, stride)
        with _loop(ir, builder, constant(0), n_out, 1) as row:
            source = builder.add(sums_at, row)
            total = builder.sext(builder.load(builder.gep(high_sums, [source])), word)
            if bits == 16:
                low = builder.sext(builder.load(builder.gep(low_sums, [source])), word)
                total = builder.add(builder.shl(total, constant(8)), low)
            total = builder.mul(total, builder.load(builder.gep(multiplier, [row])))
            total = builder.add(total, builder.load(builder.gep(offset, [row])))
            total = builder.ashr(total, shift)
            for relation, end in (("<", least), (">", most)):
                outside = builder.icmp_signed(relation, total, constant(end))
                total = builder.select(outside, constant(end), total)
            target = builder.add(out_at, row)
            if bits == 16:
                upper = builder.ashr(builder.add(total, constant(128)), constant(8))
                lower = builder.sub(total, builder.shl(upper, constant(8)))
                builder.store(builder.trunc(lower, byte), builder.gep(low_out, [target]))
                total = upper
            builder.store(builder.trunc(total, byte), builder.gep(high_out, [target]))
    builder.ret_void()


class _Tile:
    """Sums of a few weight rows over a few rows of activations, block after block."""

    def __init__(self, ir: Any, module: Any, builder: Any, form: Form, blocks: Any) -> None:
        self._ir, self._builder, self._blocks = ir, builder, blocks
        self._inner = _INNER[form](ir, module, builder)
        lanes = self._inner.lanes
        self._empty = ir.Constant(lanes, [0] * lanes.count)
        kind = ir.FunctionType(ir.IntType(32), [lanes])
        self._reduce = ir.Function(module, kind, f"llvm.vector.reduce.add.v{lanes.count}i32")
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), number, number, number])
        self._prefetch = ir.Function(module, kind, "llvm.prefetch.p0")

    def excess(self, activations: list[Any]) -> list[Any]:
        """Twice the sum of each row of activations."""
        inner = self._inner
        twos = self._ir.Constant(inner.bytes, [2] * inner.bytes.count)

        def step(block: Any, sums: list[Any]) -> list[Any]:
            for part in range(64 // inner.bytes.count):
                loads = [self._activations(q, block, part) for q in activations]
                sums = [inner.add(total, [twos] * 4, load) for total, load in zip(sums, loads, strict=True)]
            return sums

        return [self._total(total) for total in self._over_blocks(len(activations), step)]

    def sums(self, weights: list[Any], activations: list[Any]) -> list[list[Any]]:
        """Sum of digits times activations for each weight row and each row of activations."""
        inner, items = self._inner, len(activations)
        in_place = inner.in_place and items == 1
        separate = 4 if items == 1 else 1

        def step(block: Any, sums: list[Any]) -> list[Any]:
            for part in range(64 // inner.bytes.count):
                loads = [self._activations(q, block, part) for q in activations]
                for at, row in enumerate(weights):
                    digits = self._digits(row, block, part, in_place=in_place)
                    for item, load in enumerate(loads):
                        place = (at * items + item) * separate
                        mine = slice(place, place + separate)
                        sums[mine] = (
                            inner.add_apart(sums[mine], digits, load)
                            if separate > 1
                            else [inner.add(sums[place], digits, load)]
                        )
            return sums

        found = self._over_blocks(len(weights) * items * separate, step)
        totals = []
        for start in range(0, len(found), separate):
            total = found[start]
            for digit, extra in enumerate(found[start + 1 : start + separate], start=1):
                if in_place:
                    extra = self._builder.ashr(
                        extra, self._ir.Constant(inner.lanes, [2 * digit] * inner.lanes.count)
                    )
                total = self._builder.add(total, extra)
            totals.append(self._total(total))
        return [totals[start : start + items] for start in range(0, len(totals), items)]

    def _over_blocks(self, count: int, step: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        word = self._ir.IntType(64)
        loop = _loop(self._ir, self._builder, self._ir.Constant(word, 0), self._blocks, 1, [self._empty] * count)
        with loop as block:
            loop.following = step(block, list(loop.carried))
        return loop.carried

    def _total(self, lanes: Any) -> Any:
        return self._builder.call(self._reduce, [lanes])

    def _load(self, line: Any, block: Any, size: int, offset: int) -> Any:
        word, builder = self._ir.IntType(64), self._builder
        at = builder.add(builder.mul(block, self._ir.Constant(word, size)), self._ir.Constant(word, offset))
        pointer = builder.bitcast(builder.gep(line, [at]), self._inner.bytes.as_pointer())
        return builder.load(pointer, align=1)

    def _activations(self, line: Any, block: Any, part: int) -> list[Any]:
        width = self._inner.bytes.count
        return [self._load(line, block, BLOCK, 64 * digit + width * part) for digit in range(4)]

    def _digits(self, line: Any, block: Any, part: int, *, in_place: bool = False) -> list[Any]:
        """The four digits of a run of bytes, shifted down as 16-bit words and masked; in place, only masked."""
        ir, builder, kind = self._ir, self._builder, self._inner.bytes
        loaded = self._load(line, block, 64, kind.count * part)
        if part == 0:
            word = ir.IntType(64)
            ahead = builder.add(builder.mul(block, ir.Constant(word, 64)), ir.Constant(word, _AHEAD))
            read_keep_data = [ir.Constant(ir.IntType(32), flag) for flag in (0, 3, 1)]
            builder.call(self._prefetch, [builder.gep(line, [ahead]), *read_keep_data])
        words = ir.VectorType(ir.IntType(16), kind.count // 2)
        if in_place:
            masks = [(3 << 2 * digit) - (256 if digit == 3 else 0) for digit in range(4)]
            return [builder.and_(loaded, ir.Constant(kind, [mask] * kind.count)) for mask in masks]
        mask = ir.Constant(kind, [3] * kind.count)
        found = []
        for digit in range(4):
            shifted = builder.lshr(builder.bitcast(loaded, words), ir.Constant(words, [2 * digit] * words.count))
            found.append(builder.and_(builder.bitcast(shifted, kind), mask))
        return found


class _loop:
    """``for index in range(begin, end, step)`` around the body of a ``with``, carrying values from round to
    round."""

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


class _Inner(ABC):
    """Digits (unsigned bytes below 4) times activations (signed bytes), added to int32 lanes."""

    width: int
    in_place = False
    """Whether ``digit << 2k``, up to 192, may stand for a digit."""

    def __init__(self, ir: Any, module: Any, builder: Any) -> None:
        self._ir, self._builder = ir, builder
        self.bytes = ir.VectorType(ir.IntType(8), self.width)
        self.lanes = ir.VectorType(ir.IntType(32), self.width // 4)
        self.declare(module)

    def declare(self, module: Any) -> None:  # noqa: B027 - a form that needs no instruction declares none
        """Declare the instructions that are used."""

    @abstractmethod
    def add(self, total: Any, digits: list[Any], q: list[Any]) -> Any:
        """total + Σ_k digits[k] q[k]."""

    def add_apart(self, totals: list[Any], digits: list[Any], q: list[Any]) -> list[Any]:
        """The same into four totals, where waiting for one would cost time."""
        return [self.add(totals[0], digits, q), *totals[1:]]


class _Vnni(_Inner):
    width = 64
    in_place = True

    def declare(self, module: Any) -> None:
        kind = self._ir.FunctionType(self.lanes, [self.lanes] * 3)
        self._dot = self._ir.Function(module, kind, "llvm.x86.avx512.vpdpbusd.512")

    def add(self, total: Any, digits: list[Any], q: list[Any]) -> Any:
        for digit, load in zip(digits, q, strict=True):
            total = self._product(total, digit, load)
        return total

    def add_apart(self, totals: list[Any], digits: list[Any], q: list[Any]) -> list[Any]:
        return [self._product(*three) for three in zip(totals, digits, q, strict=True)]

    def _product(self, total: Any, digits: Any, q: Any) -> Any:
        cast = self._builder.bitcast
        return self._builder.call(self._dot, [total, cast(digits, self.lanes), cast(q, self.lanes)])


class _Avx2(_Inner):
    width = 32

    def declare(self, module: Any) -> None:
        ir = self._ir
        self._words = ir.VectorType(ir.IntType(16), 16)
        self._pairs = ir.Function(
            module, ir.FunctionType(self._words, [self.bytes, self.bytes]), "llvm.x86.avx2.pmadd.ub.sw"
        )
        self._widen = ir.Function(
            module, ir.FunctionType(self.lanes, [self._words, self._words]), "llvm.x86.avx2.pmadd.wd"
        )

    def add(self, total: Any, digits: list[Any], q: list[Any]) -> Any:
        builder = self._builder
        products = [builder.call(self._pairs, pair) for pair in zip(digits, q, strict=True)]
        words = builder.add(builder.add(products[0], products[1]), builder.add(products[2], products[3]))
        ones = self._ir.Constant(self._words, [1] * 16)
        return builder.add(total, builder.call(self._widen, [words, ones]))


class _Portable(_Inner):
    width = 32

    def add(self, total: Any, digits: list[Any], q: list[Any]) -> Any:
        ir, builder = self._ir, self._builder
        words = ir.VectorType(ir.IntType(16), self.width)
        products = [
            builder.mul(builder.zext(digit, words), builder.sext(load, words))
            for digit, load in zip(digits, q, strict=True)
        ]
        summed = builder.add(builder.add(products[0], products[1]), builder.add(products[2], products[3]))
        wide = builder.sext(summed, ir.VectorType(ir.IntType(32), self.width))
        for quarter in range(4):
            mask = ir.Constant(
                self.lanes, list(range(quarter * self.lanes.count, (quarter + 1) * self.lanes.count))
            )
            total = builder.add(total, builder.shuffle_vector(wide, wide, mask))
        return total


_INNER: dict[Form, type[_Inner]] = {"avx512vnni": _Vnni, "avx2": _Avx2, "portable": _Portable}
