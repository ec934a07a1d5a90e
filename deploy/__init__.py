"""relu-deploy: one trained ReLU network, deployed encrypted (CKKS), ternary, and as a resistor-diode circuit.

Names load on first use, so that ``import deploy`` costs nothing but itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deploy.dataset import Calibration, HeldOut
    from deploy.errors import DeployError
    from deploy.model import Affine, Decision, Equilibrium, Mlp

__all__ = [
    "Affine",
    "Calibration",
    "Decision",
    "DeployError",
    "Equilibrium",
    "HeldOut",
    "Mlp",
]

_HOME = {
    "Affine": "deploy.model",
    "Calibration": "deploy.dataset",
    "Decision": "deploy.model",
    "DeployError": "deploy.errors",
    "Equilibrium": "deploy.model",
    "HeldOut": "deploy.dataset",
    "Mlp": "deploy.model",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
