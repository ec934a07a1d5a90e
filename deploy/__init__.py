"""relu-deploy: one trained ReLU network, deployed encrypted (CKKS), ternary, and as a resistor-diode circuit.

Names load on first use, so that ``import deploy`` costs nothing but itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deploy.bundle import Bundle
    from deploy.client import AsyncEncryptedClient, EncryptedClient
    from deploy.conversion import Conversion, convert, extend
    from deploy.dataset import Calibration, HeldOut
    from deploy.errors import DeployError
    from deploy.evaluation import evaluate
    from deploy.loaders import load
    from deploy.model import Affine, Decision, Equilibrium, Mlp
    from deploy.options import parse_options
    from deploy.registry import targets

_HOME = {
    "Affine": "deploy.model",
    "AsyncEncryptedClient": "deploy.client",
    "Bundle": "deploy.bundle",
    "Calibration": "deploy.dataset",
    "Conversion": "deploy.conversion",
    "Decision": "deploy.model",
    "DeployError": "deploy.errors",
    "EncryptedClient": "deploy.client",
    "Equilibrium": "deploy.model",
    "HeldOut": "deploy.dataset",
    "Mlp": "deploy.model",
    "convert": "deploy.conversion",
    "evaluate": "deploy.evaluation",
    "extend": "deploy.conversion",
    "load": "deploy.loaders",
    "parse_options": "deploy.options",
    "targets": "deploy.registry",
}

__all__ = [
    "Affine",
    "AsyncEncryptedClient",
    "Bundle",
    "Calibration",
    "Conversion",
    "Decision",
    "DeployError",
    "EncryptedClient",
    "Equilibrium",
    "HeldOut",
    "Mlp",
    "convert",
    "evaluate",
    "extend",
    "load",
    "parse_options",
    "targets",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
