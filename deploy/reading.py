"""Files that a user names, read with a limit on bytes and on waiting.

A name may lead to anything: a folder, a device that never ends, a socket, a pipe that nobody writes to, a file of
holes that claims terabytes. Each ends in one error; nothing is read past its limit.
"""

from __future__ import annotations

import os
import select
import stat
import time
from pathlib import Path

from deploy.errors import DeployError, InputError

__all__ = ["MAX_TEXT", "describe_kind", "read_bounded", "read_text"]

MAX_TEXT = 1 << 20
"""Largest file of settings or of a passphrase, in bytes."""
PIPE_WAIT_S = 20.0
"""How long a pipe is waited for. ``--options <(command)`` is one, so pipes are read."""
_CHUNK = 1 << 20


def describe_kind(mode: int) -> str:
    """What a path leads to, in words; "" for a regular file.

    >>> describe_kind(stat.S_IFIFO | 0o644), describe_kind(stat.S_IFREG)
    ('a pipe', '')
    """
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "")


def read_bounded(
    path: Path, *, limit: int, error: type[DeployError] = InputError, pipes: bool = False, follow: bool = True
) -> bytes:
    """Read a file of at most `limit` bytes.

    Parameters
    ----------
    error : class of what is raised, with the path as its place.
    pipes : pipes are read too, where all comes within :data:`PIPE_WAIT_S` seconds.
    follow : a link is followed.

    Raises
    ------
    DeployError : of class `error`: missing, not readable, no regular file, larger than `limit`, or a pipe that does not end.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    try:
        handle = os.open(path, flags)
        try:
            status = os.fstat(handle)
            kind = describe_kind(status.st_mode)
            if kind and not (pipes and kind == "a pipe"):
                raise error(f"is {kind}, not a file", place=str(path), remedy="give a file")
            if status.st_size > limit:
                raise _too_large(status.st_size, limit, error, path)
            return _read(handle, limit, error, path)
        finally:
            os.close(handle)
    except OSError as failure:
        raise error(f"cannot be read: {os.strerror(failure.errno or 0)}", place=str(path)) from None
    except ValueError:  # a null character in the name
        raise error("is no name of a file", place=repr(str(path))) from None


def _read(handle: int, limit: int, error: type[DeployError], path: Path) -> bytes:
    parts: list[bytes] = []
    total = 0
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    deadline = time.monotonic() + PIPE_WAIT_S
    while True:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise error(f"this pipe did not end within {PIPE_WAIT_S:.0f} s", place=str(path), remedy="give a file")
        part = os.read(handle, min(_CHUNK, limit + 1 - total))
        if not part:
            return b"".join(parts)
        parts.append(part)
        total += len(part)
        if total > limit:
            raise _too_large(None, limit, error, path)


def _too_large(size: int | None, limit: int, error: type[DeployError], path: Path) -> DeployError:
    found = "more" if size is None else f"{size:,} bytes"
    return error(f"{found}, where at most {limit:,} bytes are read", place=str(path))


def read_text(path: Path, *, limit: int = MAX_TEXT, error: type[DeployError] = InputError) -> str:
    """Read a small file of UTF-8, with or without a byte order mark, or a pipe; errors as :func:`read_bounded`."""
    data = read_bounded(path, limit=limit, error=error, pipes=True)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as damage:
        raise error(
            f"byte 0x{damage.object[damage.start]:02x} at {damage.start} is no UTF-8",
            place=str(path),
            remedy="save the file as UTF-8",
        ) from None
