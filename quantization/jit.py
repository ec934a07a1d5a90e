"""A compiled kernel for packed two-bit codes, made at run time: no C compiler, no wheel of its own.

``Σ_j code_ij q_j`` for ternary codes and int8 activations. A byte holds the digits ``code + 1`` of four rows at one
column, so 64 bytes lie over 64 neighbouring activations. Sixteen rows make a group; its bytes lie in the order in
which they are used, block after block of 64 columns.

The digits' excess of 1 costs ``Σ_j q_j`` a row of activations, subtracted at the end. Sums are int32 and exact: a
lane takes at most 192 * 128 * 4 in magnitude a block, so it is full after 21,845 blocks, 1.4 million columns.

Codes that do not fit the second-level cache come from the third at a fixed rate, and everything else waits. So
every other call goes through them backwards, where what the last one read in the end is still near.

Three forms of the inner step, by what the processor has:

===========  ================================================================================================
avx512vnni   vpdpbusd on 64 bytes: four products a lane in one instruction; digits are masked, never shifted
avx2         vpmaddubsw and vpmaddwd on 32 bytes
portable     plain vector arithmetic of LLVM, on whatever it targets
===========  ================================================================================================

LLVM comes with llvmlite, which numba brings. Compiling takes tens of milliseconds, once a process.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import cycle
from typing import Any

import numpy as np

from deploy.arrays import Array
from deploy.requirement import require
from quantization.integer import IntegerMlp, requantize, split_bytes
from quantization.kernel_codes import PackedCodes, address, pack_codes
from quantization.two_bit_ir import BLOCK, Form, build_module

__all__ = ["Form", "JitRun", "TwoBitKernel", "available_forms", "compile_kernel"]


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
    multiply: Any
    requantize8: Any
    requantize16: Any
    turns: Iterator[int] = field(default_factory=lambda: cycle((0, -1)))

    def sum_into(self, packed: PackedCodes, q: int, out: int, batch: int) -> None:
        """Sums of int8 activations at address `q`, (batch, packed.width), to int32 at `out`, (batch, packed.rows)."""
        self.multiply(packed.at, q, out, packed.groups, packed.blocks, batch, next(self.turns))

    def accumulate(self, packed: PackedCodes, q: Array) -> Array:
        """Accumulators of int8 activations q (batch, n_in) under packed codes: (batch, n_out) int32."""
        q = _spread(q)
        assert q.dtype == np.int8 and q.shape[1] == packed.width
        out = np.empty((len(q), packed.rows), dtype=np.int32)
        self.sum_into(packed, address(q), address(out), len(q))
        return out[:, : packed.n_out]


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
    module = binding.parse_assembly(str(build_module(form, binding.get_default_triple(), str(machine.target_data))))
    module.verify()
    options = binding.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    pointer, length = ctypes.c_void_p, ctypes.c_int64

    def function(name: str, pointers: int, lengths: int) -> Any:
        kind = ctypes.CFUNCTYPE(None, *[pointer] * pointers, *[length] * lengths)
        return kind(engine.get_function_address(name))

    return TwoBitKernel(
        form,
        engine,
        function("accumulate", 3, 4),
        function("requantize8", 6, 5),
        function("requantize16", 6, 5),
    )


class JitRun:
    """An integer program on packed codes: the same bits as :func:`quantization.integer.run_int64`.

    Where every layer is one ternary plane with one scale a row, activations stay in the kernel's own layout from
    layer to layer. Other networks go through numpy between products, and planes of more than three levels through
    exact float64 products.
    """

    def __init__(self, program: IntegerMlp, form: Form | None = None) -> None:
        self._program = program
        self.kernel = compile_kernel(form)
        self._weights: list[list[PackedCodes | Array]] = [
            [
                pack_codes(term.codes) if term.levels == 1 else term.codes.T.astype(np.float64)
                for term in layer.terms
            ]
            for layer in program.layers
        ]
        firsts = [weights[0] for weights in self._weights]
        packed = [first for first in firsts if isinstance(first, PackedCodes)]
        self._plain = len(packed) == len(firsts) and all(len(layer.terms) == 1 for layer in program.layers)
        if self._plain:
            widths = [codes.width for codes in packed[1:]] + [0]
            self._chain = [
                (codes, address(layer.terms[0].multiplier), address(layer.offset), layer.shift, width)
                for layer, codes, width in zip(program.layers, packed, widths, strict=True)
            ]
            self._scratch_bytes = sum(4 * codes.rows + width for codes, *_, width in self._chain)

    def __call__(self, q: Array) -> Array:
        """(batch, n_in) integers -> (batch, n_out) int64."""
        return self._run_chain(q) if self._plain else self._run_terms(q)

    def _run_chain(self, q: Array) -> Array:
        """All layers between one allocation and one numpy expression: at batch 1 that is most of the time."""
        program, kernel, batch = self._program, self.kernel, len(q)
        parts = 1 if program.bits == 8 else 2
        rescale = kernel.requantize8 if parts == 1 else kernel.requantize16
        scratch = np.empty(batch * parts * self._scratch_bytes, dtype=np.int8)
        at = address(scratch)
        inputs = [_spread(part) for part in (split_bytes(q) if parts == 2 else (np.asarray(q, dtype=np.int8),))]
        rows = [address(part) for part in inputs]
        for codes, multiplier, offset, shift, width in self._chain:
            stride = codes.rows
            sums = [at + part * batch * 4 * stride for part in range(parts)]
            for row, total in zip(rows, sums, strict=True):
                kernel.sum_into(codes, row, total, batch)
            at += parts * batch * 4 * stride
            if not width:
                break
            rows = [at + part * batch * width for part in range(parts)]
            shape = (codes.n_out, batch, stride, width)
            rescale(sums[0], sums[-1], multiplier, offset, rows[0], rows[-1], shift, *shape)
            at += parts * batch * width
        last = program.layers[-1]
        begin = sums[0] - address(scratch)
        whole = scratch[begin : begin + parts * batch * 4 * stride].view(np.int32).reshape(parts, batch, stride)
        whole = whole[:, :, : program.n_out].astype(np.int64)
        total = whole[0] if parts == 1 else 256 * whole[0] + whole[1]
        return np.asarray(last.terms[0].multiplier * total + last.offset)

    def _run_terms(self, q: Array) -> Array:
        program = self._program
        h = np.asarray(q)
        for index, (layer, pieces) in enumerate(zip(program.layers, self._weights, strict=True)):
            totals = layer.offset
            for term, weights in zip(layer.terms, pieces, strict=True):
                totals = totals + term.multiplier * self._accumulate(weights, h[:, term.begin : term.end])
            h = totals if index == len(program.layers) - 1 else requantize(layer, totals, program.low, program.high)
        return h

    def _accumulate(self, weights: PackedCodes | Array, h: Array) -> Array:
        if not isinstance(weights, PackedCodes):
            return np.asarray(h.astype(np.float64) @ weights).astype(np.int64)
        if self._program.bits == 8:
            return self.kernel.accumulate(weights, h.astype(np.int8)).astype(np.int64)
        high, low = (self.kernel.accumulate(weights, part).astype(np.int64) for part in split_bytes(h))
        return 256 * high + low


def _spread(q: Array) -> Array:
    """Rows (batch, n_in) int8 in whole blocks; what lies past n_in meets code 0 and is of no account."""
    width = -(-q.shape[1] // BLOCK) * BLOCK
    if width == q.shape[1] and q.flags.c_contiguous:
        return q
    wide = np.empty((len(q), width), dtype=np.int8)
    wide[:, : q.shape[1]] = q
    return wide
