"""Codes laid out in memory for the compiled kernel.

Axes: ``n_in``, ``n_out``, ``groups`` of 16 weight rows, ``blocks`` of 64 columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deploy.arrays import Array
from deploy.errors import PlanError
from quantization.two_bit_ir import BLOCK, GROUP

__all__ = ["PackedCodes", "address", "pack_codes"]

HUGE_PAGE = 2 << 20
"""numpy asks for huge pages where it allocates 4 MiB or more: fewer address translations on the way to the codes."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedCodes:
    """Ternary codes (n_out, n_in) as the kernel reads them; what is past them is code 0.

    Large codes drive everything else out of the caches, and each object that a call touches then costs a
    microsecond: so what a call needs stands here as plain numbers.

    Parameters
    ----------
    digits : (groups, blocks, 4, 64) uint8: digits ``code + 1`` of four rows in a byte.
    n_out : rows of the codes themselves.
    at : address of the digits.
    groups, blocks : of the digits.
    rows, width : rows and columns with those that fill the last group and block.
    """

    digits: Array
    n_out: int
    at: int
    groups: int
    blocks: int
    rows: int
    width: int


def pack_codes(codes: Array) -> PackedCodes:
    """Pack codes (n_out, n_in) in -1..1.

    Raises
    ------
    PlanError : more columns than an int32 lane has room for.
    """
    n_out, n_in = codes.shape
    groups, blocks = -(-n_out // GROUP), -(-n_in // BLOCK)
    if blocks > 21_845:
        raise PlanError(f"{n_in} columns overflow an int32 lane", remedy="split the layer")
    padded = np.zeros((groups * GROUP, blocks * BLOCK), dtype=np.int8)
    padded[:n_out, :n_in] = codes
    each = (padded + 1).astype(np.uint8).reshape(groups, 4, 4, blocks, BLOCK)
    digits = _aligned((each[:, :, 0] | each[:, :, 1] << 2 | each[:, :, 2] << 4 | each[:, :, 3] << 6).swapaxes(1, 2))
    return PackedCodes(digits, n_out, address(digits), groups, blocks, *padded.shape)


def address(array: Array) -> int:
    """Address of an array's first byte."""
    return int(array.__array_interface__["data"][0])


def _aligned(array: Array) -> Array:
    """A copy that begins a cache line or, where it is large, a huge page."""
    boundary = 64 if array.nbytes < HUGE_PAGE else HUGE_PAGE
    raw = np.empty(array.nbytes + boundary, dtype=np.uint8)
    shift = -address(raw) % boundary
    out = raw[shift : shift + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out
