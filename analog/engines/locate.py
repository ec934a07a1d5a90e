"""Where ngspice is: the shared library and the program, or what to install and where we looked.

Nothing here loads or runs anything but :func:`library_path`, which asks the dynamic linker for its cache.
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deploy.errors import RequirementMissing
from deploy.requirement import Requirement

__all__ = ["INSTALL", "LIBRARY", "LIBRARY_VARIABLE", "PROGRAM", "library_path", "searched_paths"]

LIBRARY_VARIABLE = "NGSPICE_LIBRARY_PATH"
"""Environment variable with the path of the shared library; PySpice reads the same one."""

INSTALL = "apt-get install -y ngspice libngspice0"

_NAMES = {
    "darwin": ("libngspice.0.dylib", "libngspice.dylib"),
    "win32": ("ngspice.dll",),
}.get(sys.platform, ("libngspice.so.0", "libngspice.so"))

_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/opt/homebrew/lib",
)


def _candidates() -> Iterator[str]:
    stated = os.environ.get(LIBRARY_VARIABLE)
    if stated:
        yield stated
        return
    if "CONDA_PREFIX" in os.environ:
        for name in _NAMES:
            yield str(Path(os.environ["CONDA_PREFIX"]) / "lib" / name)
    for folder in _FOLDERS:
        for name in _NAMES:
            yield str(Path(folder) / name)


def searched_paths() -> tuple[str, ...]:
    """Name every place that :func:`library_path` looks at, in its order."""
    if os.environ.get(LIBRARY_VARIABLE):
        return tuple(_candidates())
    return (*_candidates(), "the dynamic linker's cache")


def library_path() -> str | None:
    """Give the path (or linker name) of libngspice, or None.

    The variable NGSPICE_LIBRARY_PATH decides alone where it is set: a wrong value is an answer to report, not
    something to work around.
    """
    for path in _candidates():
        if Path(path).is_file():
            return str(Path(path).resolve())
    if os.environ.get(LIBRARY_VARIABLE):
        return None
    return ctypes.util.find_library("ngspice")


@dataclass(frozen=True, slots=True)
class LibraryRequirement(Requirement):
    """The shared library: met where the file is found; the error lists the places that were searched."""

    def is_met(self) -> bool:
        """Say whether the library's file is there, without loading it."""
        return library_path() is not None

    def check(self) -> None:
        """Raise :class:`RequirementMissing` with the line that installs it and the places searched."""
        if not self.is_met():
            stated = os.environ.get(LIBRARY_VARIABLE)
            hint = f" or unset {LIBRARY_VARIABLE}" if stated else f" or set {LIBRARY_VARIABLE} to the file"
            raise RequirementMissing(
                f"{self.name} was not found; searched: {', '.join(searched_paths())}",
                remedy=f"run: {self.install}{hint}",
            )


@dataclass(frozen=True, slots=True)
class ProgramRequirement(Requirement):
    """The program ``ngspice``: met where it is on PATH; the error lists the folders that were searched."""

    def check(self) -> None:
        """Raise :class:`RequirementMissing` with the line that installs it and the folders searched."""
        if not self.is_met():
            folders = os.environ.get("PATH", "").split(os.pathsep)
            raise RequirementMissing(
                f"{self.name} was not found on PATH; searched: {', '.join(folders)}",
                remedy=f"run: {self.install}",
            )

    def path(self) -> str:
        """Give the program's path, or raise."""
        self.check()
        found = shutil.which(self.program)
        assert found is not None
        return found


LIBRARY = LibraryRequirement("libngspice (the shared library of ngspice)", INSTALL)
PROGRAM = ProgramRequirement("ngspice", INSTALL, program="ngspice")
