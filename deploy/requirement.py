"""Optional dependencies and programs: found, or named with the line that installs them."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from dataclasses import dataclass
from types import ModuleType

from deploy.errors import RequirementMissing

__all__ = ["Requirement", "require"]


@dataclass(frozen=True, slots=True)
class Requirement:
    """Something optional that a piece of work needs.

    Parameters
    ----------
    name : what people call it.
    install : the one line that installs it.
    module : import name that must be found, or "".
    program : executable that must be on PATH, or "".
    """

    name: str
    install: str
    module: str = ""
    program: str = ""

    def is_met(self) -> bool:
        """Say whether it is there, without importing or running it."""
        if self.module and importlib.util.find_spec(self.module.split(".")[0]) is None:
            return False
        return not self.program or shutil.which(self.program) is not None

    def check(self) -> None:
        """Raise :class:`RequirementMissing` (exit 5) where it is missing."""
        if not self.is_met():
            raise RequirementMissing(f"{self.name} is not installed", remedy=f"run: {self.install}")


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional module, or raise :class:`RequirementMissing` with the pip line.

    >>> require("no_such_module", extra="ckks")
    Traceback (most recent call last):
        ...
    deploy.errors.RequirementMissing: no_such_module is not installed; run: pip install "relu-deploy[ckks]"
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and not module.startswith(error.name.split(".")[0]):
            raise
        name = module.split(".")[0]
        raise RequirementMissing(
            f"{name} is not installed", remedy=f'run: pip install "relu-deploy[{extra}]"'
        ) from None
