"""LLVM code of the two-bit kernel, written with llvmlite's builder.

``accumulate(packed, q, out, groups, blocks, batch, turn)``: int32 accumulators, see :mod:`quantization.jit` for the
layout; ``turn`` is 0, or -1 to go through the codes backwards. ``requantize8(sums, sums, multiplier, offset, out,
out, shift, n_out, batch, sums_stride, out_stride)`` and ``requantize16``: the rescale of a hidden layer, straight
into the rows that the next layer reads; at 16 bits the two sums and the two outputs are high and low bytes.

Axes: ``batch``, ``n_in``, ``n_out``, ``groups`` of 16 weight rows, ``blocks`` of 64 columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

from deploy.requirement import require
from quantization.llvm_loop import Loop, turned

__all__ = ["BLOCK", "GROUP", "Form", "build_module"]

Form = Literal["avx512vnni", "avx2", "portable"]

BLOCK = 64
"""Columns of a block."""

GROUP = 16
"""Weight rows of a group: four bytes a column."""

_AHEAD = 4096
"""Bytes of weights to ask the memory for in advance."""


def build_module(form: Form, triple: str, layout: str) -> Any:
    """LLVM module with ``accumulate``, ``requantize8`` and ``requantize16``."""
    ir = require("llvmlite.ir", extra="ternary")
    module = ir.Module(name="two_bit")
    module.triple, module.data_layout = triple, layout
    _add_accumulate(ir, module, form)
    for bits in (8, 16):
        _add_requantize(ir, module, bits)
    return module


def _add_accumulate(ir: Any, module: Any, form: Form) -> None:
    """Sums of codes times activations, as many at a time as a vector has lanes.

    So the lanes of that many vectors of partial sums become one vector of sums in the end. In a batch they belong to
    four weight rows and a few rows of activations, otherwise to one row of activations.
    """
    byte, number, word = ir.IntType(8).as_pointer(), ir.IntType(32), ir.IntType(64)
    kind = ir.FunctionType(ir.VoidType(), [byte, byte, number.as_pointer(), word, word, word, word])
    function = ir.Function(module, kind, "accumulate")
    packed, q, out, groups, blocks, batch, turn = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    tile = _Tile(ir, module, builder, form, blocks, turn)
    quarter = tile.lanes // 4

    def constant(value: int) -> Any:
        return ir.Constant(word, value)

    def lines(start: Any, item: Any, items: int, size: Any) -> list[Any]:
        return [builder.gep(start, [builder.mul(builder.add(item, constant(at)), size)]) for at in range(items)]

    q_bytes, rows = builder.mul(blocks, constant(BLOCK)), builder.mul(groups, constant(GROUP))
    group_bytes = builder.mul(blocks, constant(BLOCK * GROUP // 4))
    first = constant(0)
    for items, quads in ((quarter, 1), (1, quarter)):
        past = builder.and_(batch, constant(-items))
        with Loop(ir, builder, first, past, items) as item:
            activations, targets = lines(q, item, items, q_bytes), lines(out, item, items, rows)
            excess = tile.excess(activations, quads)
            with Loop(ir, builder, constant(0), groups, 1) as step:
                group = turned(builder, step, groups, turn)
                weights = builder.gep(packed, [builder.mul(group, group_bytes)])
                for quad in range(0, GROUP // 4, quads):
                    sums = builder.sub(tile.sums(weights, quad, quads, activations), excess)
                    row = builder.add(builder.mul(group, constant(GROUP)), constant(4 * quad))
                    for at, target in enumerate(targets):
                        tile.store(sums, at, 4 * quads, builder.gep(target, [row]))
        first = past
    builder.ret_void()


def _add_requantize(ir: Any, module: Any, bits: int) -> None:
    """``q = clamp((multiplier * sum + offset) >> shift)``, stored as one or two signed bytes."""
    byte, number, word = ir.IntType(8), ir.IntType(32), ir.IntType(64)
    pointers = [number, number, word, word, byte, byte]
    kind = ir.FunctionType(ir.VoidType(), [*(item.as_pointer() for item in pointers), *[word] * 5])
    function = ir.Function(module, kind, f"requantize{bits}")
    high_sums, low_sums, multiplier, offset, high_out, low_out, shift, n_out, batch, *strides = function.args
    for pointer in function.args[:6]:
        pointer.add_attribute("noalias")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    least, most = (-128, 127) if bits == 8 else (-32768, 32639)

    def constant(value: int) -> Any:
        return ir.Constant(word, value)

    with Loop(ir, builder, constant(0), batch, 1) as item:
        sums_at, out_at = (builder.mul(item, stride) for stride in strides)
        with Loop(ir, builder, constant(0), n_out, 1) as row:
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

    def __init__(self, ir: Any, module: Any, builder: Any, form: Form, blocks: Any, turn: Any) -> None:
        self._ir, self._builder, self._blocks, self._turn = ir, builder, blocks, turn
        self._inner = _INNER[form](ir, module, builder)
        self.lanes = self._inner.lanes.count
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), number, number, number])
        self._prefetch = ir.Function(module, kind, "llvm.prefetch.p0")
        ahead = ir.Constant(turn.type, _AHEAD)
        self._ahead = builder.sub(builder.xor(ahead, turn), turn)  # negative where the way is backwards

    def excess(self, activations: list[Any], quads: int) -> Any:
        """What the digits' excess of 1 adds to each sum, in the order of :meth:`sums`."""
        inner, items = self._inner, len(activations)
        ones = [self._ir.Constant(inner.bytes, [1] * inner.bytes.count)] * inner.parts

        def step(block: Any, totals: list[Any]) -> list[Any]:
            found = []
            for at, line in enumerate(activations):
                found += inner.add(totals[4 * at : 4 * at + 4], ones, self._load(line, block, BLOCK))
            return found

        totals = self._over_blocks(4 * items, step)
        each = [inner.finish(totals[4 * at : 4 * at + 4])[0] for at in range(items)]
        return self._across([total for total in each for _ in range(4 * quads)])

    def sums(self, weights: Any, quad: int, quads: int, activations: list[Any]) -> Any:
        """One lane for each row of activations and, within it, each row of a run of quads of weight rows."""
        inner, items = self._inner, len(activations)

        def step(block: Any, totals: list[Any]) -> list[Any]:
            loads = [self._load(line, block, BLOCK) for line in activations]
            found: list[Any] = [None] * len(totals)
            for at in range(quads):
                digits = self._load(weights, block, BLOCK * GROUP // 4, 64 * (quad + at), ahead=True)
                for item, load in enumerate(loads):
                    place = 4 * (item * quads + at)
                    found[place : place + 4] = inner.add(totals[place : place + 4], digits, load)
            return found

        totals = self._over_blocks(4 * items * quads, step)
        return self._across(
            [total for at in range(0, len(totals), 4) for total in inner.finish(totals[at : at + 4])]
        )

    def store(self, sums: Any, item: int, count: int, target: Any) -> None:
        """Store the lanes of one row of activations."""
        ir, builder = self._ir, self._builder
        kind = ir.VectorType(ir.IntType(32), count)
        lanes = ir.Constant(kind, list(range(item * count, (item + 1) * count)))
        part = builder.shuffle_vector(sums, sums, lanes)
        builder.store(part, builder.bitcast(target, kind.as_pointer()), align=4)

    def _over_blocks(self, count: int, step: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        empty = self._ir.Constant(self._inner.lanes, [0] * self.lanes)
        begin = self._ir.Constant(self._blocks.type, 0)
        loop = Loop(self._ir, self._builder, begin, self._blocks, 1, [empty] * count)
        with loop as index:
            loop.following = step(turned(self._builder, index, self._blocks, self._turn), list(loop.carried))
        return loop.carried

    def _across(self, vectors: list[Any]) -> Any:
        """As many vectors as a vector has lanes -> one vector, lane l the sum over the lanes of vector l.

        Each round halves the vectors: of a pair, lanes whose index has the round's bit come from the second.
        """
        builder, lanes = self._builder, self.lanes
        kind = self._ir.VectorType(self._ir.IntType(32), lanes)
        stride = 1
        while len(vectors) > 1:
            near = [lane + (lanes - stride if lane & stride else 0) for lane in range(lanes)]
            far = [lane + (lanes if lane & stride else stride) for lane in range(lanes)]
            masks = [self._ir.Constant(kind, mask) for mask in (near, far)]
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [
                builder.add(*(builder.shuffle_vector(first, second, mask) for mask in masks))
                for first, second in pairs
            ]
            stride *= 2
        return vectors[0]

    def _load(self, line: Any, block: Any, size: int, offset: int = 0, *, ahead: bool = False) -> list[Any]:
        """64 bytes at `offset` of a block of `size` bytes, in vectors of the form's width."""
        ir, builder, kind = self._ir, self._builder, self._inner.bytes
        word = ir.IntType(64)
        at = builder.add(builder.mul(block, ir.Constant(word, size)), ir.Constant(word, offset))
        if ahead:
            read_keep_data = [ir.Constant(ir.IntType(32), flag) for flag in (0, 3, 1)]
            builder.call(self._prefetch, [builder.gep(line, [builder.add(at, self._ahead)]), *read_keep_data])
        return [
            builder.load(
                builder.bitcast(
                    builder.gep(line, [builder.add(at, ir.Constant(word, part * kind.count))]), kind.as_pointer()
                ),
                align=1,
            )
            for part in range(self._inner.parts)
        ]


class _Inner(ABC):
    """Digits times activations (signed bytes), added to int32 lanes; a byte has a digit of each of four rows."""

    width: int

    def __init__(self, ir: Any, module: Any, builder: Any) -> None:
        self._ir, self._builder = ir, builder
        self.bytes = ir.VectorType(ir.IntType(8), self.width)
        self.lanes = ir.VectorType(ir.IntType(32), self.width // 4)
        self.parts = 64 // self.width
        self.declare(module)

    def declare(self, module: Any) -> None:  # noqa: B027 - a form that needs no instruction declares none
        """Declare the instructions that are used."""

    @abstractmethod
    def add(self, totals: list[Any], digits: list[Any], q: list[Any]) -> list[Any]:
        """Four totals and what 64 bytes of digits (in `parts` vectors) and 64 activations give to each."""

    def finish(self, totals: list[Any]) -> list[Any]:
        """Sums of the four rows from their totals."""
        return totals

    def split(self, digits: Any) -> list[Any]:
        """The four digits of each byte, shifted down as 16-bit words and masked."""
        ir, builder = self._ir, self._builder
        words = ir.VectorType(ir.IntType(16), self.width // 2)
        mask = ir.Constant(self.bytes, [3] * self.width)
        found = []
        for digit in range(4):
            shifted = builder.lshr(builder.bitcast(digits, words), ir.Constant(words, [2 * digit] * words.count))
            found.append(builder.and_(builder.bitcast(shifted, self.bytes), mask))
        return found


class _Vnni(_Inner):
    """Digits stay where they are and are told apart at the end: four products and three masks for 256 codes.

    With byte = d_0 + 4 d_1 + 16 d_2 + 64 d_3 the totals are those of the byte, of d_2 and d_3, of d_1 and d_3, and of
    d_3. A total that wraps does no harm: what is left of the differences before they are shifted does not.
    """

    width = 64
    _KEPT = (0xF0, 0xCC, 0xC0)

    def declare(self, module: Any) -> None:
        kind = self._ir.FunctionType(self.lanes, [self.lanes] * 3)
        self._dot = self._ir.Function(module, kind, "llvm.x86.avx512.vpdpbusd.512")

    def add(self, totals: list[Any], digits: list[Any], q: list[Any]) -> list[Any]:
        ir, builder = self._ir, self._builder
        masks = (ir.Constant(self.bytes, [kept - 256] * self.width) for kept in self._KEPT)
        kept = [digits[0], *(builder.and_(digits[0], mask) for mask in masks)]
        load = builder.bitcast(q[0], self.lanes)
        return [
            builder.call(self._dot, [total, builder.bitcast(part, self.lanes), load])
            for total, part in zip(totals, kept, strict=True)
        ]

    def finish(self, totals: list[Any]) -> list[Any]:
        builder = self._builder
        everything, upper, odd, last = totals

        def down(total: Any, bits: int) -> Any:
            return builder.ashr(total, self._ir.Constant(self.lanes, [bits] * self.lanes.count))

        first = builder.add(builder.sub(builder.sub(everything, upper), odd), last)
        return [first, down(builder.sub(odd, last), 2), down(builder.sub(upper, last), 4), down(last, 6)]


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

    def add(self, totals: list[Any], digits: list[Any], q: list[Any]) -> list[Any]:
        builder = self._builder
        ones = self._ir.Constant(self._words, [1] * 16)
        found = []
        for total, *halves in zip(totals, *map(self.split, digits), strict=True):
            words = [builder.call(self._pairs, pair) for pair in zip(halves, q, strict=True)]
            found.append(builder.add(total, builder.call(self._widen, [builder.add(*words), ones])))
        return found


class _Portable(_Inner):
    width = 32

    def add(self, totals: list[Any], digits: list[Any], q: list[Any]) -> list[Any]:
        ir, builder = self._ir, self._builder
        words = ir.VectorType(ir.IntType(16), self.width)
        loads = [builder.sext(load, words) for load in q]
        found = []
        for total, *halves in zip(totals, *map(self.split, digits), strict=True):
            products = [
                builder.mul(builder.zext(half, words), load) for half, load in zip(halves, loads, strict=True)
            ]
            summed = builder.add(*products)
            while summed.type.count > self.lanes.count:
                summed = self._fold(summed)
            found.append(builder.add(total, builder.sext(summed, self.lanes)))
        return found

    def _fold(self, words: Any) -> Any:
        """The upper half of the lanes added to the lower one."""
        ir, count = self._ir, words.type.count // 2
        kind = ir.VectorType(ir.IntType(32), count)
        halves = (
            self._builder.shuffle_vector(words, words, ir.Constant(kind, list(range(start, start + count))))
            for start in (0, count)
        )
        return self._builder.add(*halves)


_INNER: dict[Form, type[_Inner]] = {"avx512vnni": _Vnni, "avx2": _Avx2, "portable": _Portable}
