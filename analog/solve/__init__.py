"""The native solver: operating points of whole batches, with their evidence."""

from analog.solve.draws import solve_draws
from analog.solve.evidence import Evidence, collect_evidence, kcl_residual
from analog.solve.plan import NativePlan, plan_circuit

__all__ = ["Evidence", "NativePlan", "collect_evidence", "kcl_residual", "plan_circuit", "solve_draws"]
