"""Layers of more than one plane: two planes of trits, and protected columns in int8.

**Two trit planes.** Nine levels -4 … 4 are the sums 3a + b of two trits, so feedback on the nine-level grid is
feedback on two planes; a two-by-two least-squares refit then lets the scales leave the ratio 3. At 3.17 bits a
weight they hold exactly what nine uniform levels hold: planes are for hardware that only adds.

**Protected columns.** With P kept in int8 and T ternary, the best P for given T is ``v_P = w*_P - H_PP^-1 H_PT
(v_T - w*_T)``. Put in, that leaves the Schur complement ``H_TT - H_TP H_PP^-1 H_PT`` for T: P is rounded last
and makes up for T as far as it can.

Axes: ``rows``, ``n_in``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.linalg

from deploy.arrays import Array
from quantization.nearest_plane import RowCodes, search_scales
from quantization.network import Plane
from quantization.problem import LayerProblem

__all__ = ["protect_columns", "split_nine_levels"]

Solver = Callable[[LayerProblem, int], RowCodes]


def split_nine_levels(problem: LayerProblem, found: RowCodes) -> tuple[Plane, Plane]:
    """Two trit planes of codes in -4..4, with jointly refitted scales where that helps."""
    upper = np.rint(found.codes / 3)
    lower = found.codes - 3 * upper
    scales = np.stack([3 * found.scale, found.scale], axis=1)
    H = problem.hessian
    for row in range(len(found.scale)):
        both = np.stack([upper[row], lower[row]])
        gram = both @ H @ both.T
        if np.linalg.matrix_rank(gram) < 2:
            continue
        fitted = np.linalg.solve(gram, both @ problem.pull[:, row])
        if (fitted >= 0).all():
            scales[row] = fitted
    first, second = (
        Plane(np.where((scale == 0)[:, None], 0, codes), scale[:, None])
        for codes, scale in ((upper, scales[:, 0]), (lower, scales[:, 1]))
    )
    return first, second


def protect_columns(problem: LayerProblem, share: float, solve: Solver, levels: int) -> tuple[Plane, ...]:
    """A plane of -levels..levels and an int8 plane over the `share` of columns whose signs matter most.

    Columns are ranked by ``H_jj Σ_i w_ij²``: the energy of flipping the column's signs, a quarter of it.
    """
    leverage = np.diag(problem.hessian) * (problem.weight**2).sum(axis=0)
    leverage = np.where(problem.dead, -1.0, leverage)
    count = min(int(np.ceil(share * len(leverage))), int((~problem.dead).sum()) - 1)
    if count < 1:
        found = solve(problem, levels)
        return (Plane(found.codes, found.scale[:, None], levels),)
    chosen = np.sort(np.argsort(-leverage, kind="stable")[:count])
    rest = np.setdiff1d(np.arange(len(leverage)), chosen)
    H = problem.hessian
    across = H[np.ix_(chosen, rest)]
    inner = scipy.linalg.cho_factor(H[np.ix_(chosen, chosen)])
    reduced = H[np.ix_(rest, rest)] - across.T @ scipy.linalg.cho_solve(inner, across)
    coarse = solve(
        LayerProblem(
            problem.weight[:, rest], problem.target[:, rest], (reduced + reduced.T) / 2, problem.dead[rest]
        ),
        levels,
    )
    moved = coarse.scale[:, None] * coarse.codes - problem.target[:, rest]
    wanted = problem.target[:, chosen] - scipy.linalg.cho_solve(inner, across @ moved.T).T
    fine = search_scales(
        LayerProblem(wanted, wanted, H[np.ix_(chosen, chosen)], problem.dead[chosen]),
        127,
        multipliers=np.array([0.98, 1.0, 1.02]),
        passes=1,
    )
    return (
        Plane(_placed(coarse.codes, rest, len(leverage)), coarse.scale[:, None], levels),
        Plane(_placed(fine.codes, chosen, len(leverage)), fine.scale[:, None], 127),
    )


def _placed(codes: Array, columns: Array, n_in: int) -> Array:
    """Codes (rows, columns) among n_in columns, zero elsewhere."""
    wide = np.zeros((len(codes), n_in))
    wide[:, columns] = codes
    return wide
