"""Who may call: tenants by bearer token."""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deploy.errors import InputError, WireError

__all__ = ["LOCAL_TENANT", "Tenants", "read_tenants"]

LOCAL_TENANT = "local"
"""The one tenant of a server without a token file."""

_LINE = re.compile(r"(?P<tenant>[a-z0-9][a-z0-9_-]{0,63})\s+(?P<token>[!-~]{16,512})")


@dataclass(frozen=True, slots=True)
class Tenants:
    """Tenants by the hash of their token, so that no token stays in memory; empty: everybody is one tenant."""

    by_hash: Mapping[bytes, str] = field(default_factory=dict)

    def identify(self, authorization: str | None) -> str:
        """The tenant of an ``Authorization`` header.

        A token is looked up by its SHA-256, so the time that takes says nothing about it.

        Raises
        ------
        WireError : 401, no token or an unknown one.
        """
        if not self.by_hash:
            return LOCAL_TENANT
        scheme, _, token = (authorization or "").partition(" ")
        tenant = self.by_hash.get(_hash(token.strip())) if scheme.lower() == "bearer" else None
        if tenant is None:
            raise WireError(
                "no bearer token" if not authorization else "an unknown token",
                code="unauthorized",
                http_status=401,
                hint="send the header Authorization: Bearer TOKEN",
            )
        return tenant


def read_tenants(path: Path) -> Tenants:
    """Read a token file: ``TENANT TOKEN`` a line, ``#`` begins a comment; a tenant may have several tokens.

    Raises
    ------
    InputError : unreadable by us, readable by others, empty, a bad line (named by its number), a token given twice.
    """
    try:
        mode = path.stat().st_mode
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {type(error).__name__}", place=str(path)) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError("can be read by others", place=str(path), remedy=f"run: chmod 600 {path}")
    found: dict[bytes, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _LINE.fullmatch(text)
        if match is None:
            raise InputError(
                "no tenant and token",
                place=f"{path}, line {number}",
                remedy="write TENANT TOKEN: lower-case letters, digits, _ and -; a token of 16 characters or more",
            )
        digest = _hash(match["token"])
        if digest in found:
            raise InputError("this token was given before", place=f"{path}, line {number}", remedy="make another")
        found[digest] = match["tenant"]
    if not found:
        raise InputError("has no token", place=str(path), remedy="write TENANT TOKEN, one a line")
    return Tenants(found)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
