"""Plans: how a polynomial network becomes a program of CKKS primitives, as a value."""

from fhe.plan.layout import Layout
from fhe.plan.parameters import MAX_MODULUS_BITS, Parameters
from fhe.plan.plan import Exchange, Expected, Plan, StagePlan
from fhe.plan.planner import PlanOptions, plan_network, program_of
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
    "program_of",
    "reduce_network",
]
