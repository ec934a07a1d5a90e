"""SEAL's generator of uniform polynomials from a seed, over vector units: BLAKE2Xb in blocks of 4096 bytes.

Block c of the generator is ``BLAKE2Xb(key = seed, message = c as 8 bytes, 4096 bytes)``: a keyed BLAKE2b root hash
(RFC 7693), then 64 nodes that each hash the root with their number (BLAKE2X, Aumasson, Neves, Wilcox-O'Hearn,
Winnerlein, 2016). The nodes of a block differ in one word of their start, so they run side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from deploy.arrays import Array
from deploy.compiled import compiled

__all__ = ["BLOCK_WORDS", "fill_blocks"]

BLOCK_WORDS = 512
"""Words of one block: 64 nodes of 8."""

_NODES = 64
_IV = np.array(
    [
        0x6A09E667F3BCC908,
        0xBB67AE8584CAA73B,
        0x3C6EF372FE94F82B,
        0xA54FF53A5F1D36F1,
        0x510E527FADE682D1,
        0x9B05688C2B3E6C1F,
        0x1F83D9ABFB41BD6B,
        0x5BE0CD19137E2179,
    ],
    dtype=np.uint64,
)
_SIGMA = np.array(
    [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
        [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
        [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
        [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
        [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
        [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
        [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
        [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
        [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
    ],
    dtype=np.int64,
)
_LANES = np.array(
    [
        [0, 4, 8, 12],
        [1, 5, 9, 13],
        [2, 6, 10, 14],
        [3, 7, 11, 15],
        [0, 5, 10, 15],
        [1, 6, 11, 12],
        [2, 7, 8, 13],
        [3, 4, 9, 14],
    ],
    dtype=np.int64,
)
_R1, _R2, _R3, _R4 = np.uint64(32), np.uint64(24), np.uint64(16), np.uint64(63)
_L1, _L2, _L3, _L4 = np.uint64(32), np.uint64(40), np.uint64(48), np.uint64(1)

# parameter blocks as words: digest length 64 | key length << 8 | fanout << 16 | depth << 24 (root), leaf length << 32
# (nodes); node offset | length of the whole output << 32; inner length << 8 (nodes)
_XOF = np.uint64(4096 << 32)
_ROOT_0 = np.uint64(64 | 64 << 8 | 1 << 16 | 1 << 24)
_NODE_0 = np.uint64(64 | 64 << 32)
_NODE_2 = np.uint64(64 << 8)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ROW, _TABLE = numba.uint64[::1], numba.uint64[:, ::1]


def _kernel(*signature: Any) -> Callable[[Callable[..., Any]], Any]:
    return compiled(numba.void(*signature))


@_kernel(_TABLE, _ROW)
def _rounds(v: Array, message: Array) -> None:
    """BLAKE2b's twelve rounds on the columns of v (16, lanes), which share one message (16,)."""
    for step in range(12):
        for g in range(8):
            a, b, c, d = v[_LANES[g, 0]], v[_LANES[g, 1]], v[_LANES[g, 2]], v[_LANES[g, 3]]
            first, second = message[_SIGMA[step, 2 * g]], message[_SIGMA[step, 2 * g + 1]]
            for lane in range(v.shape[1]):
                va, vb, vc, vd = a[lane], b[lane], c[lane], d[lane]
                va += vb + first
                vd ^= va
                vd = (vd >> _R1) | (vd << _L1)
                vc += vd
                vb ^= vc
                vb = (vb >> _R2) | (vb << _L2)
                va += vb + second
                vd ^= va
                vd = (vd >> _R3) | (vd << _L3)
                vc += vd
                vb ^= vc
                vb = (vb >> _R4) | (vb << _L4)
                a[lane], b[lane], c[lane], d[lane] = va, vb, vc, vd


@_kernel(_ROW, _TABLE, _ROW, numba.uint64, numba.boolean)
def _compress(h: Array, v: Array, message: Array, count: int, last: bool) -> None:
    """One compression of one lane: h (8,) in place, with scratch v (16, 1), after `count` bytes."""
    for i in range(8):
        v[i, 0], v[8 + i, 0] = h[i], _IV[i]
    v[12, 0] ^= count
    if last:
        v[14, 0] ^= _ALL
    _rounds(v, message)
    for i in range(8):
        h[i] ^= v[i, 0] ^ v[8 + i, 0]


@_kernel(_ROW, numba.uint64, _ROW)
def fill_blocks(seed: Array, first: int, out: Array) -> None:
    """Blocks first, first + 1, … of the generator with this seed (8,) into out (blocks * 512,)."""
    zero = np.uint64(0)
    message, root = np.zeros(16, dtype=np.uint64), np.empty(8, dtype=np.uint64)
    one, nodes = np.empty((16, 1), dtype=np.uint64), np.empty((16, _NODES), dtype=np.uint64)
    for block in range(len(out) // BLOCK_WORDS):
        root[:] = _IV
        root[0] ^= _ROOT_0
        root[1] ^= _XOF
        message[:8], message[8:] = seed, zero
        _compress(root, one, message, np.uint64(128), False)
        message[:] = zero
        message[0] = first + np.uint64(block)
        _compress(root, one, message, np.uint64(136), True)
        message[:8], message[8:] = root, zero
        for i in range(8):
            nodes[i] = _IV[i]
            nodes[8 + i] = _IV[i]
        for node in range(_NODES):
            nodes[0, node] ^= _NODE_0
            nodes[1, node] ^= _XOF | np.uint64(node)
            nodes[2, node] ^= _NODE_2
            nodes[12, node] ^= np.uint64(64)
            nodes[14, node] ^= _ALL
        _rounds(nodes, message)
        to = out[block * BLOCK_WORDS : (block + 1) * BLOCK_WORDS]
        for i in range(8):
            start = _IV[i]
            for node in range(_NODES):
                h = start
                if i == 0:
                    h ^= _NODE_0
                elif i == 1:
                    h ^= _XOF | np.uint64(node)
                elif i == 2:
                    h ^= _NODE_2
                to[8 * node + i] = h ^ nodes[i, node] ^ nodes[8 + i, node]
