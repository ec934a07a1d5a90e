"""A compiled kernel for packed two-bit codes, made at run time: no C compiler, no wheel of its own.

``Σ_j code_ij q_j`` for ternary codes and int8 activations. A byte holds the digits ``code + 1`` of four rows at one
column, so 64 bytes lie over 64 neighbouring activations. Sixteen rows make a group; its bytes lie in the order in
which they are used, block after block of 64 columns.

The digits' excess of 1 costs ``Σ_j q_j`` a row of activations, subtracted at the end. Sums are int32 and exact: a
lane takes at most 192 * 128 * 4 in magnitude a block, so it is full after 21,845 blocks, 1.4 million columns.

Codes that do not fit the second-level cache come from the third at a fixed rate, and everything else waits. So
every other call goes through them backwards: what the last one read in the end is still near.

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
from deploy.errors import PlanError
from deploy.requirement import require
from quantization.integer import IntegerMlp, requantize, split_bytes
from quantization.two_bit_ir import BLOCK, GROUP, Form, build_module

__all__ = ["BLOCK", "Form", "JitRun", "TwoBitKernel", "available_forms", "compile_kernel", "pack_blocks"]

HUGE_PAGE = 2 << 20
"""numpy asks for huge pages where it allocates 4 MiB or more: fewer address translations on the way to the codes."""


def pack_blocks(codes: Array) -> Array:
    """Lay codes (n_out, n_in) out for the kernel: (groups, blocks, 4, 64) uint8; what is past them is code 0."""
    n_out, n_in = codes.shape
    groups, blocks = -(-n_out // GROUP), -(-n_in // BLOCK)
    if blocks > 21_845:
        raise PlanError(f"{n_in} columns overflow an int32 lane", remedy="split the layer")
    padded = np.zeros((groups * GROUP, blocks * BLOCK), dtype=np.int8)
    padded[:n_out, :n_in] = codes
    digits = (padded + 1).astype(np.uint8).reshape(groups, 4, 4, blocks, BLOCK)
    packed = digits[:, :, 0] | digits[:, :, 1] << 2 | digits[:, :, 2] << 4 | digits[:, :, 3] << 6
    return _aligned(packed.transpose(0, 2, 1, 3))


def _aligned(array: Array) -> Array:
    """A copy that begins a cache line or, where it is large, a huge page."""
    boundary = 64 if array.nbytes < HUGE_PAGE else HUGE_PAGE
    raw = np.empty(array.nbytes + boundary, dtype=np.uint8)
    shift = -raw.ctypes.data % boundary
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
    requantize8: Any
    requantize16: Any
    turns: Iterator[int] = field(default_factory=lambda: cycle((0, -1)))

    def accumulate(self, packed: Array, q: Array) -> Array:
        """Accumulators of int8 activations q (batch, n_in) under packed codes: (batch, 16 groups) int32, the rows
        of codes first."""
        groups, blocks = packed.shape[:2]
        batch = len(q)
        q = _spread(q)
        assert q.dtype == np.int8 and q.shape[1] == blocks * BLOCK
        out = np.empty((batch, groups * GROUP), dtype=np.int32)
        self.call(packed.ctypes.data, q.ctypes.data, out.ctypes.data, groups, blocks, batch, next(self.turns))
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
    module = binding.parse_assembly(str(build_module(form, binding.get_default_triple(), str(machine.target_data))))
    module.verify()
    options = binding.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    pointer, length = ctypes.c_void_p, ctypes.c_int64
    accumulate = ctypes.CFUNCTYPE(None, *[pointer] * 3, *[length] * 4)
    rescale = ctypes.CFUNCTYPE(None, *[pointer] * 6, *[length] * 5)
    return TwoBitKernel(
        form,
        engine,
        accumulate(engine.get_function_address("accumulate")),
        rescale(engine.get_function_address("requantize8")),
        rescale(engine.get_function_address("requantize16")),
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
        self._packed = [
            [
                pack_blocks(term.codes) if term.levels == 1 else term.codes.T.astype(np.float64)
                for term in layer.terms
            ]
            for layer in program.layers
        ]
        self._plain = all(len(layer.terms) == 1 and layer.terms[0].levels == 1 for layer in program.layers)
        if self._plain:
            widths = [packed.shape[1] * BLOCK for (packed,) in self._packed[1:]] + [0]
            self._chain = [
                (
                    packed.ctypes.data,
                    *packed.shape[:2],
                    len(layer.offset),
                    layer.terms[0].multiplier.ctypes.data,
                    layer.offset.ctypes.data,
                    layer.shift,
                    width,
                )
                for layer, (packed,), width in zip(program.layers, self._packed, widths, strict=True)
            ]
            self._scratch_bytes = sum(4 * GROUP * step[1] + step[7] for step in self._chain)

    def __call__(self, q: Array) -> Array:
        """(batch, n_in) integers -> (batch, n_out) int64."""
        return self._run_chain(q) if self._plain else self._run_terms(q)

    def _run_chain(self, q: Array) -> Array:
        """All layers between one allocation and one numpy expression: at batch 1 that is most of the time."""
        program, kernel, batch = self._program, self.kernel, len(q)
        parts = 1 if program.bits == 8 else 2
        rescale = kernel.requantize8 if parts == 1 else kernel.requantize16
        scratch = np.empty(batch * parts * self._scratch_bytes, dtype=np.int8)
        at = scratch.ctypes.data
        inputs = [_spread(part) for part in (split_bytes(q) if parts == 2 else (np.asarray(q, dtype=np.int8),))]
        rows = [part.ctypes.data for part in inputs]
        for packed, groups, blocks, n_out, multiplier, offset, shift, width in self._chain:
            stride = groups * GROUP
            sums = [at + part * batch * 4 * stride for part in range(parts)]
            for row, total in zip(rows, sums, strict=True):
                kernel.call(packed, row, total, groups, blocks, batch, next(kernel.turns))
            at += parts * batch * 4 * stride
            if not width:
                break
            rows = [at + part * batch * width for part in range(parts)]
            rescale(sums[0], sums[-1], multiplier, offset, rows[0], rows[-1], shift, n_out, batch, stride, width)
            at += parts * batch * width
        last = program.layers[-1]
        begin = sums[0] - scratch.ctypes.data
        whole = scratch[begin : begin + parts * batch * 4 * stride].view(np.int32).reshape(parts, batch, stride)
        whole = whole[:, :, : program.n_out].astype(np.int64)
        total = whole[0] if parts == 1 else 256 * whole[0] + whole[1]
        return np.asarray(last.terms[0].multiplier * total + last.offset)

    def _run_terms(self, q: Array) -> Array:
        program = self._program
        h = np.asarray(q)
        for index, (layer, packed) in enumerate(zip(program.layers, self._packed, strict=True)):
            totals = layer.offset
            for term, weights in zip(layer.terms, packed, strict=True):
                sums = self._accumulate(weights, h[:, term.begin : term.end], term.levels)
                totals = totals + term.multiplier * sums[:, : len(layer.offset)]
            h = totals if index == len(program.layers) - 1 else requantize(layer, totals, program.low, program.high)
        return h

    def _accumulate(self, weights: Array, h: Array, levels: int) -> Array:
        if levels > 1:
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
