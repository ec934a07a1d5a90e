"""A strict parser of uncompressed SEAL 4 streams: every field is checked here before SEAL sees a byte.

SEAL's own loader accepts scales that are NaN and wrong representation flags and, through TenSEAL's containers, sizes
that lead to reads outside the buffer. What passes here is a stream of the exact length, at the exact level and
scale, in the right form, whose every residue is smaller than its prime.

A stream is ``header (16 bytes) + body``. The header is magic A15E, header size, major, minor version, compression
mode, two reserved bytes and the size of the whole stream, little-endian.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deploy.errors import WireError
from fhe.wire.sizes import HEADER_BYTES, SEED_BYTES, ciphertext_bytes, key_switching_keys_bytes

__all__ = [
    "RESIDUES_AT",
    "ParmsId",
    "StreamKind",
    "check_ciphertext",
    "check_key_switching_keys",
    "ciphertext_stream",
    "header",
    "key_positions",
    "residues",
    "uncompressed",
]

ParmsId = tuple[int, int, int, int]
"""SEAL's hash of ring degree, primes and scheme at one level."""

_MAGIC = 0xA15E
_MAJOR = 4
_MINORS = range(16)
_SCALE_TOLERANCE = 1e-12
_BLAKE2XB = 1

RESIDUES_AT = HEADER_BYTES + 73 + HEADER_BYTES + 8
"""Where the residues of a ciphertext stream start."""


@dataclass(frozen=True, slots=True)
class StreamKind:
    """What a ciphertext must be.

    Parameters
    ----------
    n : ring degree.
    primes : the primes of its level.
    parms_id : of its level.
    scale : exactly where seeded (a request), to a relative 1e-12 where computed (an answer).
    seeded : it holds one polynomial and the seed of the other.
    transformed : residues are values at the roots of unity (SEAL's NTT form), not coefficients.
    """

    n: int
    primes: tuple[int, ...]
    parms_id: ParmsId
    scale: float
    seeded: bool
    transformed: bool = True

    @property
    def size(self) -> int:
        """Exact bytes."""
        return ciphertext_bytes(self.n, len(self.primes), seeded=self.seeded)


def header(size: int, *, minor: int = 3) -> bytes:
    """The header of an uncompressed stream of `size` bytes, itself included."""
    return struct.pack("<HBBBBHQ", _MAGIC, HEADER_BYTES, _MAJOR, minor, 0, 0, size)


def uncompressed(stream: bytes) -> bytes:
    """Decompress what SEAL itself saved in this process (zstd or not) into the form that goes over the wire.

    Never call it on bytes from outside: those are uncompressed already, or refused.
    """
    if stream[5] == 0:
        return stream
    from deploy.requirement import require

    zstandard = require("zstandard", extra="ckks")
    body: bytes = zstandard.ZstdDecompressor().decompressobj().decompress(memoryview(stream)[HEADER_BYTES:])
    return header(HEADER_BYTES + len(body), minor=stream[4]) + body


def _refuse(
    code: str, cause: str, hint: str = "send what this version of the client wrote, unchanged"
) -> WireError:
    return WireError(cause, code=code, hint=hint)


def _check_header(data: memoryview, what: str) -> None:
    if len(data) < HEADER_BYTES:
        raise _refuse("stream_truncated", f"{what}: {len(data)} bytes, a header has {HEADER_BYTES}")
    magic, size, major, minor, mode, reserved, total = struct.unpack_from("<HBBBBHQ", data)
    if magic != _MAGIC or size != HEADER_BYTES:
        raise _refuse("stream_magic", f"{what}: not a SEAL stream")
    if major != _MAJOR or minor not in _MINORS:
        raise _refuse("stream_version", f"{what}: stream version {major}.{minor}", f"use SEAL {_MAJOR}")
    if mode != 0:
        raise _refuse("stream_compressed", f"{what}: compression mode {mode}", "send uncompressed streams")
    if reserved != 0:
        raise _refuse("stream_header", f"{what}: reserved bytes are {reserved}")
    if total != len(data):
        raise _refuse("stream_size", f"{what}: header says {total} bytes, {len(data)} are there")


def check_ciphertext(stream: bytes | memoryview, kind: StreamKind, *, what: str = "ciphertext") -> None:
    """Check one ciphertext stream; raises :class:`deploy.errors.WireError` with a code and a hint."""
    data = memoryview(stream)
    if len(data) != kind.size:
        raise _refuse("ciphertext_size", f"{what}: {len(data)} bytes, {kind.size} expected")
    _check_header(data, what)
    *parms_id, form, size, n, primes, scale, correction = struct.unpack_from("<4QB3QdQ", data, HEADER_BYTES)
    if tuple(parms_id) != kind.parms_id:
        raise _refuse(
            "ciphertext_parameters",
            f"{what}: made for other parameters or another level",
            "encrypt with the client archive of this model",
        )
    if form != int(kind.transformed):
        raise _refuse("ciphertext_form", f"{what}: transform flag is {form}, {int(kind.transformed)} expected")
    if size != 2:
        raise _refuse("ciphertext_polynomials", f"{what}: {size} polynomials, 2 expected")
    if n != kind.n or primes != len(kind.primes):
        raise _refuse(
            "ciphertext_shape", f"{what}: N={n} and {primes} primes, {kind.n} and {len(kind.primes)} expected"
        )
    # A client encodes at exactly the plan's scale; SEAL refuses to add numbers whose scales differ in the last bits.
    tolerance = 0.0 if kind.seeded else _SCALE_TOLERANCE * kind.scale
    if not math.isfinite(scale) or abs(scale - kind.scale) > tolerance:
        raise _refuse("ciphertext_scale", f"{what}: scale {scale!r}, {kind.scale!r} expected")
    if correction != 1:
        raise _refuse("ciphertext_correction", f"{what}: correction factor {correction}, 1 expected")
    at = HEADER_BYTES + 73
    polynomials = 1 if kind.seeded else 2
    words = polynomials * kind.n * len(kind.primes)
    _check_header(data[at : at + HEADER_BYTES + 8 + 8 * words], f"{what}, residues")
    (count,) = struct.unpack_from("<Q", data, at + HEADER_BYTES)
    if count != words:
        raise _refuse("ciphertext_residues", f"{what}: {count} residues, {words} expected")
    at += HEADER_BYTES + 8
    _check_residues(data[at : at + 8 * words], kind, polynomials, what)
    if kind.seeded:
        seed = data[at + 8 * words :]
        _check_header(seed, f"{what}, seed")
        if seed[HEADER_BYTES] != _BLAKE2XB or len(seed) != SEED_BYTES:
            raise _refuse("ciphertext_seed", f"{what}: random generator of kind {seed[HEADER_BYTES]}")


def _check_residues(words: memoryview, kind: StreamKind, polynomials: int, what: str) -> None:
    table = np.frombuffer(words, dtype="<u8").reshape(polynomials, len(kind.primes), kind.n)
    largest = table.max(axis=(0, 2))
    for value, prime in zip(largest.tolist(), kind.primes, strict=True):
        if value >= prime:
            raise _refuse("ciphertext_range", f"{what}: a residue is {value}, its prime {prime}")
    if not table[-1].any():
        raise _refuse("ciphertext_transparent", f"{what}: the last polynomial is zero, so it hides nothing")


def residues(stream: bytes, n: int, primes: int) -> np.ndarray:
    """Residues (2, primes, n) of an uncompressed, unseeded ciphertext stream, without copying."""
    return np.frombuffer(stream, dtype="<u8", count=2 * primes * n, offset=RESIDUES_AT).reshape(2, primes, n)


def ciphertext_stream(words: np.ndarray, parms_id: ParmsId, scale: float, *, transformed: bool = True) -> bytes:
    """An uncompressed SEAL stream around residues (2, primes, n), in NTT form or coefficients."""
    _, primes, n = words.shape
    size = ciphertext_bytes(n, primes, seeded=False)
    fields = struct.pack("<4QB3QdQ", *parms_id, transformed, 2, n, primes, scale, 1)
    count = 2 * primes * n
    array = header(HEADER_BYTES + 8 + 8 * count) + struct.pack("<Q", count)
    return b"".join((header(size), fields, array, np.ascontiguousarray(words, dtype="<u8").tobytes()))


def key_positions(galois_elements: Sequence[int]) -> list[int]:
    """Index of each Galois key in SEAL's table: (element - 1) / 2, ascending."""
    return sorted((element - 1) // 2 for element in galois_elements)


def check_key_switching_keys(
    stream: bytes | memoryview,
    *,
    n: int,
    primes: tuple[int, ...],
    parms_id: ParmsId,
    index: int,
    positions: Sequence[int],
    what: str,
) -> None:
    """Check a stream of seeded Galois or relinearisation keys.

    Parameters
    ----------
    primes : all of them, the key-switching prime last.
    parms_id : of the key level.
    index : places in the table: N for Galois keys, 1 for the relinearisation key.
    positions : which places must hold a key; all others must be empty.
    """
    data = memoryview(stream)
    expected = key_switching_keys_bytes(n, len(primes), index=index, keys=len(positions))
    if len(data) != expected:
        raise _refuse("key_size", f"{what}: {len(data)} bytes, {expected} expected")
    _check_header(data, what)
    *found_id, places = struct.unpack_from("<5Q", data, HEADER_BYTES)
    if tuple(found_id) != parms_id:
        raise _refuse("key_parameters", f"{what}: made for other parameters", "make keys from this client archive")
    if places != index:
        raise _refuse("key_structure", f"{what}: a table of {places} places, {index} expected")
    kind = StreamKind(n, primes, parms_id, 1.0, seeded=True)
    wanted = set(positions)
    at = HEADER_BYTES + 40
    for place in range(index):
        if len(data) < at + 8:
            raise _refuse("key_structure", f"{what}: ends within its table")
        (parts,) = struct.unpack_from("<Q", data, at)
        at += 8
        needed = len(primes) - 1 if place in wanted else 0
        if parts != needed:
            raise _refuse("key_structure", f"{what}: place {place} has {parts} parts, {needed} expected")
        for part in range(parts):
            check_ciphertext(data[at : at + kind.size], kind, what=f"{what}, place {place}, part {part}")
            at += kind.size
