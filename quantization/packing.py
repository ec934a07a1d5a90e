"""Codes as bytes: base 3 on disk, two bits in memory.

Base 3 puts five trits in a byte, value ``Σ_k (code_k + 1) 3^k`` < 243: 1.6 bits a weight, against log2 3 = 1.585.
Two bits put four in a byte, ``code + 2`` from the least significant pair up (1, 2, 3; 0 stands for no code): the
form that onnxruntime's ``MatMulNBits`` and our kernels read. Wider grids are stored as two 4-bit codes a byte
(up to 15 levels) or one int8.
"""

from __future__ import annotations

import numpy as np

from deploy.arrays import Array
from deploy.errors import BundleError

__all__ = [
    "pack_base3",
    "pack_codes",
    "pack_two_bits",
    "packed_bytes",
    "unpack_base3",
    "unpack_codes",
    "unpack_two_bits",
]

_POWERS = np.array([1, 3, 9, 27, 81], dtype=np.uint8)


def pack_base3(codes: Array) -> bytes:
    """Pack trits (any shape, C order) into ceil(size / 5) bytes.

    >>> pack_base3(np.array([1, 0, -1, -1, 1])).hex()
    'a7'
    """
    digits = (np.asarray(codes).ravel() + 1).astype(np.uint8)
    padded = np.full(-(-digits.size // 5) * 5, 1, dtype=np.uint8)
    padded[: digits.size] = digits
    return np.asarray(padded.reshape(-1, 5) @ _POWERS, dtype=np.uint8).tobytes()


def unpack_base3(data: bytes, size: int) -> Array:
    """Unpack `size` trits as int8; raises :class:`deploy.errors.BundleError` on bytes that no trits make."""
    values = np.frombuffer(data, dtype=np.uint8)
    if values.size != -(-size // 5):
        raise BundleError(f"{values.size} bytes for {size} trits, expected {-(-size // 5)}")
    if values.max(initial=0) > 242:
        raise BundleError(f"byte {values.max()} holds no five trits, the largest is 242")
    digits = (values[:, None] // _POWERS) % 3
    return np.asarray(digits.ravel()[:size].astype(np.int8) - 1)


def pack_two_bits(codes: Array) -> Array:
    """Pack the last axis, first code lowest: (…, n) -> (…, ceil(n / 4)) uint8; padding is code 0.

    >>> pack_two_bits(np.array([[1, 0, -1, 0]])).tolist()
    [[155]]
    """
    codes = np.asarray(codes)
    padding = -codes.shape[-1] % 4
    padded = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, padding)])
    digits = (padded + 2).astype(np.uint8).reshape(*padded.shape[:-1], -1, 4)
    return np.asarray(digits[..., 0] | digits[..., 1] << 2 | digits[..., 2] << 4 | digits[..., 3] << 6)


def unpack_two_bits(packed: Array, n: int) -> Array:
    """Undo :func:`pack_two_bits`: (…, ceil(n / 4)) uint8 -> (…, n) int8."""
    digits = (packed[..., None] >> np.array([0, 2, 4, 6], dtype=np.uint8)) & 3
    return np.asarray(digits.reshape(*packed.shape[:-1], -1)[..., :n].astype(np.int8) - 2)


def packed_bytes(size: int, levels: int) -> int:
    """Bytes of `size` codes on disk."""
    if levels == 1:
        return -(-size // 5)
    return -(-size // 2) if levels <= 7 else size


def pack_codes(codes: Array, levels: int) -> bytes:
    """Pack codes in -levels..levels the shortest way we have."""
    if levels == 1:
        return pack_base3(codes)
    flat = np.asarray(codes).ravel()
    if levels <= 7:
        nibbles = (np.pad(flat, (0, flat.size % 2)) + 8).astype(np.uint8).reshape(-1, 2)
        return np.asarray(nibbles[:, 0] | nibbles[:, 1] << 4).tobytes()
    return np.asarray(flat, dtype=np.int8).tobytes()


def unpack_codes(data: bytes, size: int, levels: int) -> Array:
    """Undo :func:`pack_codes`: (size,) int8; raises :class:`deploy.errors.BundleError` on a wrong length."""
    if levels == 1:
        return unpack_base3(data, size)
    values = np.frombuffer(data, dtype=np.uint8)
    if values.size != packed_bytes(size, levels):
        raise BundleError(f"{values.size} bytes for {size} codes, expected {packed_bytes(size, levels)}")
    if levels <= 7:
        codes = np.stack([values & 15, values >> 4], axis=1).ravel()[:size].astype(np.int8) - 8
    else:
        codes = values.view(np.int8).copy()
    if np.abs(codes.astype(np.int16)).max(initial=0) > levels:
        raise BundleError(f"a code of {np.abs(codes.astype(np.int16)).max()} on a grid that ends at {levels}")
    return np.asarray(codes, dtype=np.int8)
