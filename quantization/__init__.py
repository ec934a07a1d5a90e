"""Ternary weights: post-training quantisers, integer-only and packed run times.

Importing this package loads no numerics; a name is looked up when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quantization.baselines import quantize_absmean, quantize_exact, quantize_sign, quantize_twn
    from quantization.evidence import Evidence
    from quantization.integer import calibrate_grids, compile_integer
    from quantization.layerwise import quantize_network
    from quantization.network import Plane, QuantizedLayer, QuantizedMlp
    from quantization.recipe import Recipe
    from quantization.recognition import recognize_ternary
    from quantization.selection import select
    from quantization.sensitivity import measure_sensitivity
    from quantization.ternary import TernaryTarget

    target: TernaryTarget

__all__ = [
    "Evidence",
    "Plane",
    "QuantizedLayer",
    "QuantizedMlp",
    "Recipe",
    "calibrate_grids",
    "compile_integer",
    "measure_sensitivity",
    "quantize_absmean",
    "quantize_exact",
    "quantize_network",
    "quantize_sign",
    "quantize_twn",
    "recognize_ternary",
    "select",
    "target",
]

_HOMES = {
    "Evidence": "evidence",
    "Plane": "network",
    "QuantizedLayer": "network",
    "QuantizedMlp": "network",
    "Recipe": "recipe",
    "calibrate_grids": "integer",
    "compile_integer": "integer",
    "measure_sensitivity": "sensitivity",
    "quantize_absmean": "baselines",
    "quantize_exact": "baselines",
    "quantize_network": "layerwise",
    "quantize_sign": "baselines",
    "quantize_twn": "baselines",
    "recognize_ternary": "recognition",
    "select": "selection",
}


def __getattr__(name: str) -> Any:
    if name == "target":
        return import_module("quantization.ternary").TernaryTarget()
    if name in _HOMES:
        return getattr(import_module(f"quantization.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
