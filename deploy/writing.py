"""Outputs that appear whole or not at all.

Everything is written beside its destination and moved there in one step; an interruption at any moment, a full disk
included, leaves what was there before.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import stat
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from deploy.errors import OutputExists, StorageError

__all__ = ["check_absent", "storage_errors", "write_file", "write_tree"]

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn the system's errors of writing `path` into :class:`deploy.errors.StorageError`."""
    try:
        yield
    except OSError as error:
        remedies = {
            errno.ENOSPC: "free some space or choose another place",
            errno.EDQUOT: "free some space or choose another place",
            errno.EFBIG: "the process may not write files of this size",
            errno.EACCES: "choose a place that you may write to",
            errno.EROFS: "choose a place that you may write to",
            errno.ENOENT: "make the folder first",
            errno.ENOTDIR: "a part of this path is a file",
        }
        cause = f"cannot be written: {os.strerror(error.errno) if error.errno else error}"
        raise StorageError(cause, place=str(path), remedy=remedies.get(error.errno or 0, "")) from None


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back until the block is done, then deliver them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield
    finally:
        for held, handler in before.items():
            signal.signal(held, handler)
        if arrived:
            signal.raise_signal(arrived[0])


def check_absent(path: Path, *, force: bool, replaces: Collection[str] = ()) -> None:
    """Raise :class:`deploy.errors.OutputExists` where `path` exists and may not be replaced.

    Parameters
    ----------
    force : what exists may be replaced: a plain file, or a folder that holds nothing but `replaces`. A device, a
        link, and a folder with anything else in it are never replaced.
    """
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not force:
        raise OutputExists("exists already", place=str(path), remedy="choose another name, or give --force")
    if stat.S_ISDIR(mode):
        with storage_errors(path):
            foreign = sorted(set(os.listdir(path)) - set(replaces))
        if not foreign and not path.is_mount():
            return
        cause = f"is a folder that holds {foreign[0]!r}, which --force does not replace" if foreign else "is a disk"
    elif stat.S_ISREG(mode):
        return
    else:
        cause = "is a link, a device or a pipe, which --force does not replace"
    raise OutputExists(cause, place=str(path), remedy="choose another name")


def write_file(path: Path, data: bytes, *, force: bool = False, mode: int = 0o644) -> None:
    """Write a file whole or not at all.

    Raises
    ------
    OutputExists : `path` exists and may not be replaced, see :func:`check_absent`; it is not touched, even in a race.
    StorageError : the disk is full or the place cannot be written.
    """
    check_absent(path, force=force)
    with storage_errors(path), _interrupts_wait():
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(mode)
            if force:
                Path(name).replace(path)
            else:
                _link_new(Path(name), path)
        finally:
            Path(name).unlink(missing_ok=True)


def _link_new(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        check_absent(path, force=False)
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        check_absent(path, force=False)
        temporary.replace(path)


def write_tree(
    path: Path,
    files: Mapping[str, bytes],
    *,
    force: bool = False,
    private: str = "owner/",
    replaces: Collection[str] | None = None,
) -> None:
    """Write a folder of files whole or not at all; what was there before is replaced in one step.

    Parameters
    ----------
    files : relative path with ``/`` -> content.
    private : files below this prefix are readable by the owner only.
    replaces : what a folder may hold that `force` replaces; by default the names at the top of `files`.

    Raises
    ------
    OutputExists, StorageError : as :func:`write_file`.
    """
    if replaces is None:
        replaces = {name.partition("/")[0] for name in files}
    check_absent(path, force=force, replaces=replaces)
    with storage_errors(path), _interrupts_wait():
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            for name, data in files.items():
                destination = temporary / name
                destination.parent.mkdir(parents=True, exist_ok=True)
                destination.write_bytes(data)
                destination.chmod(0o600 if name.startswith(private) else 0o644)
            temporary.chmod(0o755)
            _sync_tree(temporary)
            _move_into_place(temporary, path, force=force, replaces=replaces)
        finally:
            _remove(temporary)


def _sync_tree(folder: Path) -> None:
    for place in (folder, *folder.rglob("*")):
        handle = os.open(place, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _move_into_place(temporary: Path, path: Path, *, force: bool, replaces: Collection[str]) -> None:
    if not os.path.lexists(path):
        try:
            temporary.rename(path)
        except OSError as error:  # somebody else was quicker
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR) or not os.path.lexists(path):
                raise
        else:
            return
    check_absent(path, force=force, replaces=replaces)
    if _exchange(temporary, path):
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        path.rename(aside / path.name)
        try:
            temporary.rename(path)
        except BaseException:
            (aside / path.name).rename(path)
            raise
    finally:
        _remove(aside)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two paths in one step where the system can (Linux); say whether it was done."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return bool(
        rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), ctypes.c_uint(_RENAME_EXCHANGE)) == 0
    )


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
