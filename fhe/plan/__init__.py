"""Plans: how a polynomial network becomes a program of CKKS primitives, as a value.

Names are looked up when they are first used: options alone must not load numerics, and the search
(:func:`plan_network`) needs the noise model and the program, which need the values here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fhe.plan.layout import Layout
    from fhe.plan.options import PlanOptions
    from fhe.plan.parameters import MAX_MODULUS_BITS, Parameters
    from fhe.plan.plan import Exchange, Expected, Plan, StagePlan
    from fhe.plan.planner import plan_network
    from fhe.plan.stages import InputScaling, Ranges, reduce_network

__all__ = [
    "MAX_MODULUS_BITS",
    "Exchange",
    "Expected",
    "InputScaling",
    "Layout",
    "Parameters",
    "Plan",
    "PlanOptions",
    "Ranges",
    "StagePlan",
    "plan_network",
    "reduce_network",
]

_HOMES = {
    "MAX_MODULUS_BITS": "parameters",
    "Exchange": "plan",
    "Expected": "plan",
    "InputScaling": "stages",
    "Layout": "layout",
    "Parameters": "parameters",
    "Plan": "plan",
    "PlanOptions": "options",
    "Ranges": "stages",
    "StagePlan": "plan",
    "plan_network": "planner",
    "reduce_network": "stages",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
