"""Plans: how a polynomial network becomes a program of CKKS primitives, as a value.

The search (:func:`plan_network`) is imported when it is first asked for: it needs the noise model and the program,
which need the values here.
"""

from typing import TYPE_CHECKING, Any

from fhe.plan.layout import Layout
from fhe.plan.options import PlanOptions
from fhe.plan.parameters import MAX_MODULUS_BITS, Parameters
from fhe.plan.plan import Exchange, Expected, Plan, StagePlan
from fhe.plan.stages import InputScaling, Ranges, reduce_network

if TYPE_CHECKING:
    from fhe.plan.planner import plan_network

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


def __getattr__(name: str) -> Any:
    if name == "plan_network":
        from fhe.plan.planner import plan_network

        return plan_network
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
