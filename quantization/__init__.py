"""Ternary weights: post-training quantisers, integer-only and packed run times.

Importing this package loads no numerics; names are looked up when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quantization.ternary import TernaryTarget

    target: TernaryTarget

__all__ = ["target"]

_HOMES: dict[str, str] = {}


def __getattr__(name: str) -> Any:
    if name == "target":
        from quantization.ternary import TernaryTarget

        return TernaryTarget()
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
