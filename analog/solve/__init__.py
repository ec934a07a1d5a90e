"""The native solver: operating points of whole batches, with their evidence."""

from analog.solve.draws import solve_draws
from analog.solve.evidence import Evidence, collect_evidence, kcl_residual
from analog.solve.plan import NativePlan, plan_circuit
from analog.solve.refine import RefinedPoint, refine_operating_point

__all__ = [
    "Evidence",
    "NativePlan",
    "RefinedPoint",
    "collect_evidence",
    "kcl_residual",
    "plan_circuit",
    "refine_operating_point",
    "solve_draws",
]
