"""Starting libngspice without the files that it runs at its start.

``ngSpice_Init`` runs the commands of ``.spiceinit`` in the working directory, or else of the one at home: somebody
else's folder would run commands (``shell`` is one), and the user's own settings would change results in silence.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["without_start_files"]


@contextlib.contextmanager
def without_start_files() -> Iterator[None]:
    """Work in a folder with an empty ``.spiceinit``, which is found first, for the time of a ``with`` block.

    The working directory is the whole process's, so keep the block short.
    """
    before = os.open(".", os.O_RDONLY)
    try:
        with tempfile.TemporaryDirectory(prefix="relu-deploy-") as folder:
            Path(folder, ".spiceinit").touch()
            os.chdir(folder)
            try:
                yield
            finally:
                os.fchdir(before)
    finally:
        os.close(before)
