"""A client's keys on disk: the secret key, owner-only and under a passphrase if wanted, and what is uploaded.

::

    KEYS/secret.key        header, then the secret key, sealed with AES-256-GCM where there is a passphrase
    KEYS/evaluation.key    exactly the bytes that are uploaded; their sha256 is the key id
    KEYS/client.zip        the client archive that they were made from, where it was kept

The header of the secret key names key id and scope, and is authenticated with the secret. The passphrase goes through
scrypt (N = 2^17, r = 8, p = 1). Salt and nonce are the operating system's randomness.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from deploy.envelope import scope_hash
from deploy.errors import DataError, InputError, OutputExists, UsageError
from deploy.reading import read_bounded
from deploy.requirement import require
from deploy.target import KeyPair
from deploy.writing import check_absent, write_tree

__all__ = ["ARCHIVE_FILE", "EVALUATION_FILE", "SECRET_FILE", "KeyFiles", "read_key_files", "write_key_files"]

SECRET_FILE = "secret.key"
EVALUATION_FILE = "evaluation.key"
ARCHIVE_FILE = "client.zip"
_HEAD = struct.Struct("<4sBBH32s32s16s12s")
_MAGIC = b"RDSK"
_VERSION = 1
_SCRYPT_N = 1 << 17
_MAX_SECRET = 1 << 30
_MAX_EVALUATION = 1 << 34


@dataclass(frozen=True, slots=True, repr=False)
class KeyFiles:
    """Keys as a client works with them.

    Parameters
    ----------
    secret : stays here.
    evaluation : is uploaded; the server's name for it is :attr:`key_id`.
    scope : hash of the parameters that they were made for.
    """

    secret: bytes
    evaluation: bytes
    scope: bytes

    @classmethod
    def of(cls, pair: KeyPair) -> KeyFiles:
        """From fresh keys."""
        return cls(pair.secret, pair.evaluation, scope_hash(pair.scope))

    @property
    def key_id(self) -> str:
        """SHA-256 of the evaluation keys, in hexadecimal."""
        return hashlib.sha256(self.evaluation).hexdigest()


def write_key_files(
    folder: Path, keys: KeyFiles, *, passphrase: str | None = None, archive: bytes | None = None
) -> None:
    """Write the files into a new folder, whole or not at all; keys that exist are never overwritten.

    Raises
    ------
    OutputExists : the folder is there already; there is no way to force this.
    StorageError : the disk is full or the place cannot be written.
    """
    try:
        check_absent(folder, force=False)
    except OutputExists as error:
        raise OutputExists(
            error.cause, place=str(folder), remedy="choose another name: keys are never overwritten"
        ) from None
    salt, nonce = os.urandom(16), os.urandom(12)
    head = _HEAD.pack(
        _MAGIC, _VERSION, passphrase is not None, 0, keys.scope, bytes.fromhex(keys.key_id), salt, nonce
    )
    if passphrase is None:
        body = keys.secret
    else:
        body = _cipher(passphrase, salt).encrypt(nonce, keys.secret, head)
    files = {SECRET_FILE: head + body, EVALUATION_FILE: keys.evaluation}
    if archive is not None:
        files[ARCHIVE_FILE] = archive
    write_tree(folder, files, private=SECRET_FILE)


def read_key_files(folder: Path, *, passphrase: str | None = None) -> KeyFiles:
    """Read what :func:`write_key_files` wrote.

    Raises
    ------
    InputError : missing, damaged, readable by others, a wrong passphrase, halves that do not belong together.
    UsageError : a passphrase is needed.
    """
    place = folder / SECRET_FILE
    try:
        data = read_bounded(place, limit=_MAX_SECRET)
        evaluation = read_bounded(folder / EVALUATION_FILE, limit=_MAX_EVALUATION)
    except InputError as error:
        raise InputError(error.cause, place=error.place, remedy="make keys with keygen") from None
    if place.stat().st_mode & 0o077:
        raise InputError("can be read by others", place=str(place), remedy=f"run: chmod 600 {place}")
    if not _HEAD.size < len(data):
        raise InputError(f"{len(data)} bytes, this is no secret key", place=str(place))
    head, body = data[: _HEAD.size], data[_HEAD.size :]
    magic, version, is_sealed, _, scope, key_id, salt, nonce = _HEAD.unpack(head)
    if magic != _MAGIC or version != _VERSION or is_sealed not in (0, 1):
        raise InputError("is no secret key that this release reads", place=str(place))
    if hashlib.sha256(evaluation).digest() != key_id:
        raise InputError(
            "belongs to other evaluation keys than those beside it, or they were changed",
            place=str(place),
            remedy="restore both files, or make new keys",
        )
    if is_sealed:
        if passphrase is None:
            raise UsageError("this secret key is under a passphrase", place=str(place), remedy="give it")
        body = _unseal(place, passphrase, salt, nonce, body, head)
    return KeyFiles(body, evaluation, scope)


def _unseal(place: Path, passphrase: str, salt: bytes, nonce: bytes, body: bytes, head: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag

    try:
        return _cipher(passphrase, salt).decrypt(nonce, body, head)
    except InvalidTag:
        raise DataError("the passphrase is wrong, or the file was changed", place=str(place)) from None


class _Cipher:
    def __init__(self, key: bytes) -> None:
        aead = require("cryptography.hazmat.primitives.ciphers.aead", extra="client")
        self._cipher = aead.AESGCM(key)

    def encrypt(self, nonce: bytes, data: bytes, head: bytes) -> bytes:
        return bytes(self._cipher.encrypt(nonce, data, head))

    def decrypt(self, nonce: bytes, data: bytes, head: bytes) -> bytes:
        return bytes(self._cipher.decrypt(nonce, data, head))


def _cipher(passphrase: str, salt: bytes) -> _Cipher:
    if not passphrase:
        raise UsageError("an empty passphrase", remedy="give one, or none at all")
    memory = 256 * _SCRYPT_N * 8
    return _Cipher(hashlib.scrypt(passphrase.encode(), salt=salt, n=_SCRYPT_N, r=8, p=1, maxmem=memory, dklen=32))
