"""The envelope around everything opaque that travels between a client and the service.

An encrypted stream has no integrity of its own: flipped bits, another key or other parameters decrypt to numbers
that look like numbers. The envelope turns each of these into an error before any arithmetic. It is a checksum over
parameters, key id and payload, not a signature; docs/service-wire.md has the layout and says what it does not do.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Literal

from deploy.errors import WireError

__all__ = ["HEADER_BYTES", "KEYLESS", "Envelope", "open_envelope", "scope_hash", "seal"]

Kind = Literal["request", "answer"]

_HEAD = struct.Struct("<4sBBHQ32s32s32s")
_MAGIC = b"RDEV"
_VERSION = 1
_KINDS: dict[Kind, int] = {"request": 1, "answer": 2}
HEADER_BYTES = _HEAD.size + 32
"""Bytes in front of the payload."""
KEYLESS = bytes(32)
"""The key id of a model without keys, and the subject of a request."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What an envelope says.

    Parameters
    ----------
    key_id : SHA-256 of the evaluation keys as uploaded; :data:`KEYLESS` without keys.
    scope : SHA-256 of the name of parameters and rotation set.
    subject : in an answer, the digest of the request that it answers.
    digest : SHA-256 over all of the above and the payload.
    payload : the target's own bytes.
    """

    kind: Kind
    key_id: bytes
    scope: bytes
    subject: bytes
    digest: bytes
    payload: bytes


def scope_hash(scope: str) -> bytes:
    """The 32 bytes that stand for a key scope on the wire."""
    return hashlib.sha256(scope.encode()).digest()


def seal(payload: bytes, *, kind: Kind, scope: bytes, key_id: bytes = KEYLESS, subject: bytes = KEYLESS) -> bytes:
    """Put a payload into an envelope.

    >>> request = seal(b"payload", kind="request", scope=scope_hash(""))
    >>> len(request) - HEADER_BYTES, open_envelope(request, kind="request").payload
    (7, b'payload')
    """
    head = _HEAD.pack(_MAGIC, _VERSION, _KINDS[kind], 0, len(payload), scope, key_id, subject)
    return b"".join((head, _digest(head, payload), payload))


def open_envelope(
    data: bytes | memoryview, *, kind: Kind, scope: bytes | None = None, key_id: bytes | None = None
) -> Envelope:
    """Check an envelope and take it apart.

    Parameters
    ----------
    data : header and payload, exactly.
    kind : what is expected.
    scope, key_id : what the caller works with; None where anything will do.

    Raises
    ------
    WireError : with the code of docs/service-wire.md; the text has sizes and offsets, no content.
    """
    view = memoryview(data)
    again = "encrypt and send again" if kind == "request" else "send the request again"
    if len(view) < HEADER_BYTES:
        raise WireError(
            f"an envelope has {HEADER_BYTES} bytes or more, this one {len(view)}", code="envelope_size", hint=again
        )
    magic, version, found_kind, reserved, length, found_scope, found_key, subject = _HEAD.unpack_from(view)
    if magic != _MAGIC:
        raise WireError("bytes 0 to 3 are not those of an envelope", code="envelope_magic", hint=again)
    if version != _VERSION or reserved != 0:
        raise WireError(
            f"envelope version {version}.{reserved}, this release reads {_VERSION}.0",
            code="envelope_version",
            hint="use a client of the same major version",
        )
    if found_kind != _KINDS[kind]:
        raise WireError(
            f"kind {found_kind} where a {kind} ({_KINDS[kind]}) is expected", code="envelope_kind", hint=again
        )
    if length != len(view) - HEADER_BYTES:
        raise WireError(
            f"the header says {length} bytes of payload, there are {len(view) - HEADER_BYTES}",
            code="envelope_size",
            hint=again,
        )
    digest = bytes(view[_HEAD.size : HEADER_BYTES])
    payload = bytes(view[HEADER_BYTES:])
    if digest != _digest(bytes(view[: _HEAD.size]), payload):
        raise WireError(
            "the digest does not fit: bytes were changed on the way", code="envelope_digest", hint=again
        )
    if scope is not None and found_scope != scope:
        raise WireError(
            "made for other parameters than this model's",
            code="envelope_scope",
            hint="encrypt with this model's client archive",
        )
    if key_id is not None and found_key != key_id:
        raise WireError(
            f"made under key {found_key.hex()[:12]}…, not {key_id.hex()[:12]}…",
            code="key_id_mismatch",
            http_status=400,
            hint="send the key id of the keys that encrypted it",
        )
    return Envelope(kind, found_key, found_scope, subject, digest, payload)


def _digest(head: bytes, payload: bytes) -> bytes:
    state = hashlib.sha256(head)
    state.update(payload)
    return state.digest()
