"""What one layer's quantisation has to minimise.

The layer sees rows h when everything before it is exact and ĥ when everything before it is quantised. Its codes Q
and scales s should make ``sQ ĥ + b'`` follow ``W h + b``. With row weights d (Σ d = 1) and the bias free, b' takes
up the means and what is left is a quadratic form for each row,

    E_d |w·(h - μ) - sq·(ĥ - μ̂)|²  =  (sq - w*)' H (sq - w*) + constant,
    H = Σ_d (ĥ - μ̂)(ĥ - μ̂)',   w* = H⁻¹ (Σ_d (ĥ - μ̂)(h - μ)') w

so the target w* already repairs what the layers before did wrong. H is damped by λ times its mean live diagonal,
which pulls both H and w* towards the plain weights; columns that never vary carry nothing and get code 0.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.linalg

from deploy.arrays import Array

__all__ = ["Factor", "LayerProblem", "pose_problem", "repair_bias"]

DEAD_VARIANCE = 1e-9
"""A column whose variance is below this share of the mean, or below what rounding makes of a constant, is dead."""


@dataclass(frozen=True, eq=False)
class Factor:
    """H = L'L in the order of processing: `order` (n,) columns, `lower` (n, n) lower triangular.

    ``d'Hd = |L d|²``, and entry j of L d holds d_0 … d_j only: choosing codes in this order makes entry j final at
    step j, which is Babai's nearest plane and, seen backwards, GPTQ (Chen et al., arXiv 2507.18553).
    """

    order: Array
    lower: Array


@dataclass(frozen=True, eq=False)
class LayerProblem:
    """Minimise (v - target)' hessian (v - target) over the rows v = scale * codes.

    Parameters
    ----------
    weight : (n_out, n_in) of the float layer.
    target : (n_out, n_in) minimiser without the grid.
    hessian : (n_in, n_in) symmetric positive definite.
    dead : (n_in,) columns that never vary; their codes are 0.
    """

    weight: Array
    target: Array
    hessian: Array
    dead: Array

    @cached_property
    def factor(self) -> Factor:
        """Triangular factor, columns of large variance first."""
        return factorise(self.hessian, np.argsort(-np.diag(self.hessian), kind="stable"))

    @cached_property
    def pull(self) -> Array:
        """hessian times target: (n_in, n_out)."""
        return np.asarray(self.hessian @ self.target.T)

    @cached_property
    def energy(self) -> Array:
        """target' hessian target of each row: (n_out,)."""
        return np.asarray(np.einsum("ij,ji->i", self.target, self.pull))

    def error(self, dense: Array) -> Array:
        """Quadratic error of rows (n_out, n_in): (n_out,)."""
        difference = dense - self.target
        return np.asarray(np.einsum("ij,ij->i", difference @ self.hessian, difference))

    def rows(self, index: Array | slice) -> LayerProblem:
        """The same problem for some rows only; the factor is shared."""
        part = replace(self, weight=self.weight[index], target=self.target[index])
        part.__dict__["factor"] = self.factor
        return part


def factorise(hessian: Array, order: Array) -> Factor:
    """Factor hessian[order][:, order] = L'L with L lower triangular."""
    turned = order[::-1]
    cholesky = scipy.linalg.cholesky(hessian[np.ix_(turned, turned)], lower=True)
    return Factor(order, np.ascontiguousarray(cholesky[::-1, ::-1].T))


def pose_problem(
    weight: Array,
    exact: Array,
    quantized: Array,
    *,
    row_weights: Array | None = None,
    damping: float = 0.003,
    centred: bool = True,
) -> LayerProblem:
    """Pose the problem of one layer.

    Parameters
    ----------
    weight : (n_out, n_in).
    exact : (batch, n_in) what the layer sees in the float network.
    quantized : (batch, n_in) what it sees after quantised layers; the same array for the first layer.
    row_weights : (batch,) >= 0, not all 0; None counts every row alike.
    damping : λ, relative to the mean diagonal of live columns.
    centred : let the bias absorb the means.
    """
    share = np.full(len(exact), 1 / len(exact)) if row_weights is None else row_weights / row_weights.sum()
    root = np.sqrt(share)[:, None]
    mean = share @ quantized
    ours = (quantized - mean if centred else quantized) * root
    gram = ours.T @ ours
    diagonal = np.diag(gram).copy()
    rounding = 1e-20 * (diagonal + mean**2)
    dead = diagonal <= np.maximum(DEAD_VARIANCE * diagonal.mean(), rounding)
    ridge = damping * diagonal[~dead].mean() if not dead.all() else 1.0
    gram[dead] = 0.0
    gram[:, dead] = 0.0
    hessian = gram + ridge * np.eye(len(gram))
    if exact is quantized:
        return LayerProblem(weight, weight, hessian, dead)
    theirs = exact @ weight.T
    cross = ((theirs - share @ theirs if centred else theirs) * root).T @ ours + ridge * weight
    cross[:, dead] = ridge * weight[:, dead]
    target = scipy.linalg.solve(hessian, cross.T, assume_a="pos").T
    return LayerProblem(weight, np.asarray(target), hessian, dead)


def repair_bias(
    weight: Array, bias: Array, dense: Array, exact: Array, quantized: Array, row_weights: Array | None = None
) -> Array:
    """Bias (n_out,) under which the quantised layer has the float layer's mean pre-activation."""
    share = np.full(len(exact), 1 / len(exact)) if row_weights is None else row_weights / row_weights.sum()
    return np.asarray(bias + (share @ exact) @ weight.T - (share @ quantized) @ dense.T)
