"""Requests and answers as files, for whoever carries them to the service by other means.

A request file is the contents of the V2 tensor: envelopes, each after its length in four little-endian bytes; for a
keyless model the rows themselves. One envelope holds one row.
"""

from __future__ import annotations

import numpy as np

from deploy.arrays import Array
from deploy.bundle import Archive
from deploy.client.exchange import split_elements
from deploy.client.keyfile import KeyFiles
from deploy.client.session import check_rows, open_role
from deploy.envelope import open_envelope, seal
from deploy.errors import WireError

__all__ = ["decrypt_answer", "encrypt_rows"]


def encrypt_rows(archive: Archive, keys: KeyFiles | None, rows: Array) -> bytes:
    """Contents of a request tensor from rows (batch, n_in)."""
    role, interface = open_role(archive)
    x = check_rows(rows, interface)
    if keys is None:
        return role.encrypt(x, None)
    key_id = bytes.fromhex(keys.key_id)
    elements = [
        seal(role.encrypt(x[i : i + 1], keys.secret), kind="request", scope=keys.scope, key_id=key_id)
        for i in range(len(x))
    ]
    return b"".join(part for element in elements for part in (len(element).to_bytes(4, "little"), element))


def decrypt_answer(
    archive: Archive, keys: KeyFiles | None, answer: bytes, *, request: bytes | None = None
) -> Array:
    """Logits (batch, n_out) from the contents of an answer tensor.

    Parameters
    ----------
    request : what it must answer, element by element.

    Raises
    ------
    WireError : damaged, under other keys, or an answer to something else.
    """
    role, _ = open_role(archive)
    if keys is None:
        return role.decrypt(answer, None)
    answers = split_elements(answer)
    asked = None if request is None else split_elements(request)
    if not answers or (asked is not None and len(asked) != len(answers)):
        raise WireError(f"{len(answers)} answers", code="bad_answer", hint="send the request again")
    parts = []
    for number, element in enumerate(answers):
        envelope = open_envelope(element, kind="answer", scope=keys.scope, key_id=bytes.fromhex(keys.key_id))
        if asked is not None and envelope.subject != open_envelope(asked[number], kind="request").digest:
            raise WireError(f"element {number} answers another request", code="bad_answer", hint="send it again")
        parts.append(role.decrypt(envelope.payload, keys.secret)[:1])
    return np.concatenate(parts)
