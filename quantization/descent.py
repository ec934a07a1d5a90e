"""Coordinate descent over codes at a fixed scale, with a refit between sweeps.

Moving code j of a row to q' changes the error by ``s δ (2 g_j + s δ H_jj)``, g = H (s q - w*), δ = q' - q: the best
q' is the rounded coordinate minimum ``q - g_j / (s H_jj)``. Every accepted move lowers the error, so the sweeps
end.

Axes: ``rows``, ``n_in``.
"""

from __future__ import annotations

import numpy as np

from quantization.nearest_plane import RowCodes, better_rows, refit
from quantization.problem import LayerProblem

__all__ = ["descend"]


def descend(problem: LayerProblem, start: RowCodes, levels: int, *, sweeps: int = 4) -> RowCodes:
    """Improve codes by single-code moves; never worse than `start`, row by row."""
    best = start
    diagonal = np.diag(problem.hessian)
    order = problem.factor.order
    live = order[~problem.dead[order]]
    for _ in range(sweeps):
        codes = best.codes.T.copy()
        scale = best.scale
        inverse = np.where(scale > 0, 1 / np.where(scale > 0, scale, 1.0), 0.0)
        gradient = problem.hessian @ (scale * codes) - problem.pull
        moved = False
        for j in live:
            wanted = np.clip(np.rint(codes[j] - gradient[j] * inverse / diagonal[j]), -levels, levels)
            change = wanted - codes[j]
            rows = np.flatnonzero(change)
            if rows.size:
                moved = True
                codes[j] = wanted
                gradient[:, rows] += problem.hessian[:, j, None] * (scale[rows] * change[rows])
        if not moved:
            break
        best = better_rows(best, refit(problem, codes.T))
    return best
