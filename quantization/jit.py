"""A compiled kernel for packed two-bit codes, made at run time: no C compiler, no wheel of its own.

``Σ_j code_ij q_j`` for ternary codes and int8 activations. A byte holds four digits ``code + 2``; byte b of a
block of 64 holds the digits of columns b, b + 64, b + 128 and b + 192, so that each of the four lies over 64
neighbouring activations.

The digits' excess of 2 costs ``2 Σ_j q_j`` a row of activations, subtracted at the end. A pass serves four
weight rows and one row of activations, or two and four in a batch, so that loads and digits are shared. For one
row of activations the digits stay where they are: ``digit << 2k`` is an unsigned byte, its sum a multiple of
4^k, shifted down once at the end. Sums are int32 and exact: a lane takes at most 64 * 3 * 128 * 4 in magnitude a
block, so it is full after 21,845 blocks, 5.6 million columns.

Three forms of the inner step, by what the processor has:

===========  ================================================================================================
avx512vnni   vpdpbusd on 64 bytes: four products a lane in one instruction
avx2         vpmaddubsw and vpmaddwd on 32 bytes; four digits below 4 keep the 16-bit sums below 2^12
portable     plain vector arithmetic of LLVM, on whatever it targets
===========  ================================================================================================

LLVM comes with llvmlite, which numba brings. Compiling takes tens of milliseconds, once a process.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from deploy.arrays import Array
from deploy.errors import PlanError
from deploy.requirement import require
from quantization.integer import IntegerMlp, requantize, split_bytes

__all__ = ["BLOCK", "Form", "JitRun", "TwoBitKernel", "available_forms", "compile_kernel", "pack_blocks"]

Form = Literal["avx512vnni", "avx2", "portable"]

BLOCK = 256
"""Columns of a block: 64 bytes of four digits."""

_AHEAD = 8192
"""Bytes of weights to ask the memory for in advance."""

_TILES = ((4, 2), (1, 4))
"""Rows of activations and weight rows that one pass serves, the larger batch first."""


def pack_blocks(codes: Array) -> Array:
    """Lay codes (n_out, n_in) out for the kernel: (n_out, blocks, 64) uint8; columns past n_in are code 0."""
    n_out, n_in = codes.shape
    blocks = -(-n_in // BLOCK)
    if blocks > 21_845:
        raise PlanError(f"{n_in} columns overflow an int32 lane", remedy="split the layer")
    padded = np.zeros((n_out, blocks * BLOCK), dtype=np.int8)
    padded[:, :n_in] = codes
    digits = (padded + 2).astype(np.uint8).reshape(n_out, blocks, 4, 64)
    packed = digits[:, :, 0] | digits[:, :, 1] << 2 | digits[:, :, 2] << 4 | digits[:, :, 3] << 6
    return _aligned(packed)


def _aligned(array: Array) -> Array:
    """A copy whose first byte lies on a cache line."""
    raw = np.empty(array.nbytes + 64, dtype=np.uint8)
    shift = -raw.ctypes.data % 64
    out = raw[shift : shift + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


@lru_cache(maxsize=1)
def available_forms() -> tuple[Form, ...]:
    """Forms that this processor runs, fastest first."""
    binding = require("llvmlite.binding", extra="ternary")
    features = binding.get_host_cpu_features()
    found: list[Form] = []
    if features.get("avx512vnni") and features.get("avx512bw"):
        found.append("avx512vnni")
    if features.get("avx2"):
        found.append("avx2")
    return (*found, "portable")


@dataclass(frozen=True, eq=False)
class TwoBitKernel:
    """A compiled kernel; `engine` keeps its machine code alive."""

    form: Form
    engine: Any
    call: Any

    def accumulate(self, packed: Array, q: Array) -> Array:
        """Accumulators of int8 activations q (batch, n_in) under packed codes: (batch, n_out) int32."""
        n_out, blocks = packed.shape[:2]
        batch, n_in = q.shape
        if n_in != blocks * BLOCK or not q.flags.c_contiguous or q.dtype != np.int8:
            padded = np.zeros((batch, blocks * BLOCK), dtype=np.int8)
            padded[:, :n_in] = q
            q = padded
        out = np.empty((batch, n_out), dtype=np.int32)
        self.call(packed.ctypes.data, q.ctypes.data, out.ctypes.data, n_out, blocks, batch)
        return out


@lru_cache(maxsize=4)
def compile_kernel(form: Form | None = None) -> TwoBitKernel:
    """Compile a form, the fastest by default.

    Raises
    ------
    RequirementMissing : llvmlite is not installed.
    """
    binding = require("llvmlite.binding", extra="ternary")
    form = form or available_forms()[0]
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=3, jit=True
    )
    module = binding.parse_assembly(
        str(_build_module(form, binding.get_default_triple(), str(machine.target_data)))
    )
    module.verify()
    options = binding.create_pipeline_tuning_options(speed_level=3)
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    pointer, length = ctypes.c_void_p, ctypes.c_int64
    signature = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, length, length, length)
    return TwoBitKernel(form, engine, signature(engine.get_function_address("accumulate")))


class JitRun:
    """An integer program on packed codes: the same bits as :func:`quantization.integer.run_int64`.

    Planes with more than three levels go through exact float64 products instead of the kernel.
    """

    def __init__(self, program: IntegerMlp, form: Form | None = None) -> None:
        self._program = program
        self.kernel = compile_kernel(form)
        self._packed = [
            [
                pack_blocks(term.codes) if term.levels == 1 else term.codes.T.astype(np.float64)
                for term in layer.terms
            ]
            for layer in program.layers
        ]

    def __call__(self, q: Array) -> Array:
        """(batch, n_in) integers -> (batch, n_out) int64."""
        program = self._program
        h = np.asarray(q)
        for index, (layer, packed) in enumerate(zip(program.layers, self._packed, strict=True)):
            totals = layer.offset
            for term, weights in zip(layer.terms, packed, strict=True):
                totals = totals + term.multiplier * self._accumulate(
                    weights, h[:, term.begin : term.end], term.levels
                )
            h = totals if index == len(program.layers) - 1 else requantize(layer, totals, program.low, program.high)
        return h

    def _accumulate(self, weights: Array, h: Array, levels: int) -> Array:
        if levels > 1:
            return np.asarray(h.astype(np.float64) @ weights).astype(np.int64)
        if self._program.bits == 8:
            return self.kernel.accumulate(weights, h.astype(np.int8))
        high, low = (self.kernel.accumulate(weights, part).astype(np.int64) for part in split_bytes(h))
        return 256 * high + low


def _build_module(form: Form, triple: str, layout: str) -> Any:
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
    return module


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


class _Inner:
    """Digits (unsigned bytes below 4) times activations (signed bytes), added to int32 lanes."""

    width: int
    in_place = False
    """Whether ``digit << 2k``, up to 192, may stand for a digit."""

    def __init__(self, ir: Any, module: Any, builder: Any) -> None:
        self._ir, self._builder = ir, builder
        self.bytes = ir.VectorType(ir.IntType(8), self.width)
        self.lanes = ir.VectorType(ir.IntType(32), self.width // 4)
        self.declare(module)

    def declare(self, module: Any) -> None:
        """Declare the instructions that are used."""

    def add(self, total: Any, digits: list[Any], q: list[Any]) -> Any:
        """total + Σ_k digits[k] q[k]."""
        raise NotImplementedError

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
