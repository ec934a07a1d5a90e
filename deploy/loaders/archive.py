"""Members of a zip archive, read within limits and never extracted."""

from __future__ import annotations

import zipfile
from pathlib import Path

from deploy.errors import LoadError

__all__ = ["Archive"]

MAX_BYTES = 4 << 30
"""Largest total after decompression."""

MAX_RATIO = 1000
"""Largest growth by decompression of a member of more than `LARGE` bytes; zeros grow about 1030 times."""

LARGE = 256 << 20
"""Size up to which a member may be all zeros."""


class Archive:
    """A zip file, as a context manager.

    Raises
    ------
    LoadError : too large after decompression, or a member that is not there.
    """

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path)
        total = 0
        for entry in self._zip.infolist():
            total += entry.file_size
            if entry.file_size > LARGE and entry.file_size > MAX_RATIO * max(entry.compress_size, 1):
                raise LoadError(f"member {entry.filename} grows {MAX_RATIO} times by decompression")
        if total > MAX_BYTES:
            raise LoadError(f"{total:,} bytes after decompression, the limit is {MAX_BYTES:,}")
        self.names = tuple(self._zip.namelist())

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def read(self, name: str) -> bytes:
        """The bytes of one member."""
        if name not in self.names:
            raise LoadError(
                f"the archive has no {name}", remedy="save the model again; check that the copy is complete"
            )
        return self._zip.read(name)

    def find(self, suffix: str) -> str | None:
        """The first member whose path is `suffix` or ends in "/" + `suffix`."""
        return next((name for name in self.names if name == suffix or name.endswith("/" + suffix)), None)
