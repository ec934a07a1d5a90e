"""Our envelope: what a run of SEAL streams is, whom it is for, and exactly how long each part is.

::

    bytes   field
    0-7     "rldckks" and the version of the envelope
    8       kind: 1 request, 2 answer, 3 evaluation keys, 4 secret key
    9-11    zero
    12-15   number of streams
    16-47   key scope: SHA-256 over parameters and rotation set
    48-79   SHA-256 over everything after the sizes, so that damage is noticed
    80-     8 bytes of size per stream, then the streams

The digest guards against damage, not against a forger: CKKS ciphertexts carry no authenticity. Use TLS.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from enum import IntEnum

from deploy.errors import WireError
from fhe.wire.sizes import ENVELOPE_BYTES, envelope_bytes

__all__ = ["Kind", "pack", "unpack"]

_MAGIC = b"rldckks\x01"


class Kind(IntEnum):
    """What an envelope holds."""

    REQUEST = 1
    ANSWER = 2
    EVALUATION_KEYS = 3
    SECRET_KEY = 4


def pack(kind: Kind, scope: str, streams: Sequence[bytes]) -> bytes:
    """Write an envelope.

    >>> len(pack(Kind.REQUEST, "00" * 32, [b"abc"]))
    91
    """
    sizes = struct.pack(f"<{len(streams)}Q", *(len(stream) for stream in streams))
    digest = hashlib.sha256()
    for stream in streams:
        digest.update(stream)
    head = _MAGIC + struct.pack("<B3xI", kind, len(streams)) + bytes.fromhex(scope) + digest.digest()
    return b"".join((head, sizes, *streams))


def unpack(data: bytes | memoryview, kind: Kind, scope: str, sizes: Sequence[int]) -> list[memoryview]:
    """Read an envelope that must hold exactly these streams.

    Parameters
    ----------
    kind, scope : what it must be and whom it must be for.
    sizes : exact bytes of each stream.

    Raises
    ------
    WireError : with a code that says which check failed; nothing has been copied or parsed then.
    """
    view = memoryview(data)
    expected = envelope_bytes(len(sizes)) + sum(sizes)
    if len(view) < ENVELOPE_BYTES or bytes(view[:7]) != _MAGIC[:7]:
        raise WireError(
            f"{len(view)} bytes that are no envelope of ours",
            code="envelope_magic",
            hint="send what encrypt or keygen wrote, not a bare SEAL or TenSEAL stream",
        )
    if view[7] != _MAGIC[7]:
        raise WireError(
            f"envelope version {view[7]}", code="envelope_version", hint="use the same version on both sides"
        )
    found_kind, count = struct.unpack_from("<B3xI", view, 8)
    if found_kind == Kind.SECRET_KEY and kind is not Kind.SECRET_KEY:
        raise WireError(
            "this is a secret key",
            code="secret_key",
            hint="keep it; upload the evaluation keys instead",
            http_status=422,
        )
    if found_kind != kind or bytes(view[9:12]) != b"\0\0\0":
        raise WireError(
            f"kind {found_kind}, {kind.value} expected", code="envelope_kind", hint=f"send {kind.name.lower()}"
        )
    if bytes(view[16:48]).hex() != scope:
        raise WireError(
            "made for other parameters or another set of rotations",
            code="key_scope",
            hint="use the client archive that belongs to this server, and keys made with it",
        )
    if count != len(sizes):
        raise WireError(
            f"{count} streams, {len(sizes)} expected", code="stream_count", hint="send one request at a time"
        )
    if len(view) != expected:
        status = 413 if len(view) > expected else 422
        raise WireError(
            f"{len(view)} bytes, {expected} expected",
            code="envelope_size",
            hint="send it whole",
            http_status=status,
        )
    if list(struct.unpack_from(f"<{count}Q", view, ENVELOPE_BYTES)) != list(sizes):
        raise WireError(
            "the sizes of the streams are not the expected ones", code="stream_size", hint="send it unchanged"
        )
    body = view[envelope_bytes(count) :]
    if hashlib.sha256(body).digest() != bytes(view[48:80]):
        raise WireError("the digest does not match: damaged on the way", code="digest", hint="send it again")
    streams, at = [], 0
    for size in sizes:
        streams.append(body[at : at + size])
        at += size
    return streams
