"""Encrypted inference (CKKS): quadratic activations by decision-aware separation, run on ciphertexts.

Importing this package loads no numerics; names are looked up when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fhe.ckks import CkksTarget
    from fhe.deployment import CkksDeployment
    from fhe.network import PolynomialNetwork
    from fhe.options import CkksOptions
    from fhe.separation import separate

    target: CkksTarget

__all__ = ["CkksDeployment", "CkksOptions", "CkksTarget", "PolynomialNetwork", "separate", "target"]

_HOMES = {
    "CkksDeployment": "fhe.deployment",
    "CkksOptions": "fhe.options",
    "CkksTarget": "fhe.ckks",
    "PolynomialNetwork": "fhe.network",
    "separate": "fhe.separation",
}


def __getattr__(name: str) -> Any:
    if name == "target":
        from fhe.ckks import CkksTarget

        return CkksTarget()
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
