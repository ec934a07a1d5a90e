"""Trees of files as bytes, from a folder or a zip file; nothing is extracted.

Refused before a byte is read: ``..``, absolute and odd names, links, devices, encrypted entries, names given twice,
and totals over a limit, whatever a zip's directory claims.
"""

from __future__ import annotations

import io
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from deploy.errors import BundleError
from deploy.reading import read_bounded

__all__ = ["MAX_BYTES", "check_name", "read_folder", "read_zip", "write_zip"]

MAX_BYTES = 4 << 30
"""Largest total size of a tree."""
MAX_FILES = 10_000

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+\-]*(/[A-Za-z0-9_][A-Za-z0-9_.+\-]*)*")


def check_name(name: str) -> str:
    """Give a relative path back, or raise :class:`BundleError` where it could leave its folder."""
    if not _NAME.fullmatch(name) or len(name) > 300:
        raise BundleError(
            f"the name {name[:80]!r} is refused",
            remedy="names are relative, without .. and with letters, digits, . _ + - only",
        )
    return name


def _check_total(count: int, total: int, limit: int) -> None:
    if count > MAX_FILES:
        raise BundleError(f"more than {MAX_FILES} files")
    if total > limit:
        raise BundleError(f"{total} bytes in all, the limit is {limit}")


def read_folder(root: Path, *, limit: int = MAX_BYTES, passing: str = "") -> dict[str, bytes]:
    """Read every file below a folder.

    Parameters
    ----------
    passing : names that start with it are left out where it is not empty: temporary files of a writer at work.
    """
    found: list[tuple[str, Path, int]] = []
    total = 0
    pending = [root]
    while pending:
        for entry in sorted(os.scandir(pending.pop()), key=lambda entry: entry.name):
            status = entry.stat(follow_symlinks=False)
            name = Path(entry.path).relative_to(root).as_posix()
            if passing and name.startswith(passing):
                continue
            if stat.S_ISDIR(status.st_mode):
                pending.append(Path(entry.path))
                continue
            if not stat.S_ISREG(status.st_mode):
                raise BundleError("is a link or no regular file", place=name, remedy="put the file itself there")
            total += status.st_size
            found.append((check_name(name), Path(entry.path), status.st_size))
            _check_total(len(found), total, limit)
    return {name: _read_file(name, path, size) for name, path, size in found}


def _read_file(name: str, path: Path, size: int) -> bytes:
    """Read a file that had `size` bytes a moment ago, and was no link."""
    data = read_bounded(path, limit=size + 1, error=BundleError, follow=False)
    if len(data) != size:
        raise BundleError("was changed while it was read", place=name, remedy="try again")
    return data


def read_zip(data: bytes | Path, *, limit: int = MAX_BYTES) -> dict[str, bytes]:
    """Read every entry of a zip file, given as bytes or by path."""
    source = io.BytesIO(data) if isinstance(data, bytes) else data
    try:
        with zipfile.ZipFile(source) as archive:
            return _read_entries(archive, limit)
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        ValueError,
        OverflowError,
        NotImplementedError,
        RuntimeError,
        OSError,
    ) as error:
        raise BundleError(f"cannot be read as a zip file: {error}") from None


def _read_entries(archive: zipfile.ZipFile, limit: int) -> dict[str, bytes]:
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    _check_total(len(entries), sum(entry.file_size for entry in entries), limit)
    found: dict[str, bytes] = {}
    left = limit
    for entry in entries:
        name = check_name(entry.filename)
        mode = entry.external_attr >> 16
        if mode and not stat.S_ISREG(mode) and stat.S_IFMT(mode):
            raise BundleError("is a link or no regular file", place=name)
        if entry.flag_bits & 0x1:
            raise BundleError("is encrypted", place=name)
        if name in found:
            raise BundleError("is there twice", place=name)
        with archive.open(entry) as file:
            data = file.read(min(entry.file_size, left) + 1)
        if len(data) != entry.file_size:
            raise BundleError(f"{len(data)} bytes, its directory says {entry.file_size}", place=name)
        left -= len(data)
        found[name] = data
    return found


def write_zip(files: Mapping[str, bytes]) -> bytes:
    """Zip files so that the same files give the same bytes: sorted, no times, no owner."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(check_name(name), date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = (stat.S_IFREG | (0o600 if name.startswith("owner/") else 0o644)) << 16
            archive.writestr(entry, files[name], compresslevel=6)
    return buffer.getvalue()
