"""Monotone equilibrium networks: z = ReLU(W z + U x + b), logits = V z + c.

A unique equilibrium exists where I - W is strongly monotone, that is where its symmetric part has a least
eigenvalue m > 0 (Winston and Kolter, "Monotone operator equilibrium networks", NeurIPS 2020). The ReLU is the
resolvent of the normal cone of z >= 0, whatever the step, so operator splitting finds it:

forward-backward    z <- ReLU(z - alpha ((I - W) z - q)),                    0 < alpha < 2 m / ||I - W||²
Peaceman-Rachford   u <- R_F(R_G(u)), R_F the reflected resolvent of z -> (I - W) z - q, any alpha > 0

with q = U x + b. Peaceman-Rachford factorises I + alpha (I - W) once and needs far fewer iterations.

Axes: ``batch``, ``n_in``, ``n_out``, ``n`` (equilibrium units).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import scipy.linalg

from deploy.arrays import Array, frozen
from deploy.errors import DataError, InputError
from deploy.model.decision import Decision
from deploy.model.network import Network, Tail

__all__ = ["Equilibrium", "FixedPoint", "Method"]

Method = Literal["peaceman-rachford", "forward-backward"]


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """What the solver found; a failure is a result with a hint, not an exception.

    Parameters
    ----------
    z : (batch, n) equilibrium.
    residual : (batch,) max |z - ReLU(W z + q)|, recomputed from z itself.
    iterations : how many were done.
    outcome : "converged", "iteration limit" or "not finite".
    """

    z: Array
    residual: Array
    iterations: int
    outcome: Literal["converged", "iteration limit", "not finite"]

    @property
    def hint(self) -> str:
        """What to do about the outcome; empty where it converged."""
        return {
            "converged": "",
            "iteration limit": f"residual {self.residual.max(initial=0.0):.1e} after {self.iterations} iterations; "
            "raise max_iterations or use peaceman-rachford",
            "not finite": "the iteration diverged; use peaceman-rachford, or a smaller alpha",
        }[self.outcome]


@dataclass(frozen=True, eq=False)
class Equilibrium(Network):
    """A monotone equilibrium network over float64, well-posed by check at construction.

    Parameters
    ----------
    W : (n, n) recurrent weight; the least eigenvalue of sym(I - W) must be positive.
    U : (n, n_in) input weight.
    b : (n,) bias.
    V : (n_out, n) readout.
    c : (n_out,) readout bias.

    Raises
    ------
    InputError : shapes that do not fit, entries that are not finite, or a network that is not well-posed.

    Examples
    --------
    >>> import numpy as np
    >>> net = Equilibrium(np.array([[0.5]]), np.array([[1.0]]), np.zeros(1), np.eye(1), np.zeros(1),
    ...                   Decision("value"))
    >>> net.logits(np.array([[3.0], [-1.0]])).round(9).tolist()
    [[6.0], [0.0]]
    """

    W: Array
    U: Array
    b: Array
    V: Array
    c: Array
    decision: Decision
    input_shape: tuple[int, ...] = ()
    tail: Tail = "none"
    classes: tuple[str | int, ...] | None = None
    features: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    kind: Literal["equilibrium"] = field(default="equilibrium", init=False)

    def __post_init__(self) -> None:
        for name, ndim in (("W", 2), ("U", 2), ("b", 1), ("V", 2), ("c", 1)):
            array = frozen(getattr(self, name), ndim=ndim)
            bad = int(array.size - np.count_nonzero(np.isfinite(array)))
            if bad:
                raise InputError(f"{bad} entries that are NaN or infinite", place=name)
            object.__setattr__(self, name, array)
        n = self.W.shape[0]
        expected = {"W": (n, n), "U": (n, self.n_in), "b": (n,), "V": (self.n_out, n), "c": (self.n_out,)}
        for name, shape in expected.items():
            if getattr(self, name).shape != shape or 0 in shape:
                raise InputError(f"shape {getattr(self, name).shape}, expected {shape} with n = {n}", place=name)
        self._check_interface()
        if self.monotonicity <= 0:
            raise InputError(
                f"not well-posed: the least eigenvalue of the symmetric part of I - W is {self.monotonicity:.3g}",
                place="W",
                remedy="it must be positive; parametrise W = (1-m) I - A'A + B - B' with m > 0",
            )

    @property
    def n_in(self) -> int:
        """Number of inputs."""
        return int(self.U.shape[1])

    @property
    def n_out(self) -> int:
        """Number of logits."""
        return int(self.V.shape[0])

    @property
    def widths(self) -> tuple[int, ...]:
        """n_in, n, n_out."""
        return (self.n_in, int(self.W.shape[0]), self.n_out)

    @property
    def parameters(self) -> int:
        """Number of entries of W, U, b, V, c."""
        return sum(int(getattr(self, name).size) for name in ("W", "U", "b", "V", "c"))

    @cached_property
    def monotonicity(self) -> float:
        """m, the least eigenvalue of sym(I - W); the error of z is at most the residual of the equation over m."""
        symmetric = np.eye(len(self.W)) - (self.W + self.W.T) / 2
        return float(scipy.linalg.eigvalsh(symmetric, subset_by_index=[0, 0])[0])

    @cached_property
    def lipschitz(self) -> float:
        """||I - W||_2."""
        return float(np.linalg.norm(np.eye(len(self.W)) - self.W, 2))

    def solve(
        self,
        x: Array,
        *,
        method: Method = "peaceman-rachford",
        tolerance: float = 1e-12,
        max_iterations: int = 20_000,
        alpha: float | None = None,
    ) -> FixedPoint:
        """Solve for the equilibrium of rows (batch, n_in).

        `tolerance` bounds the residual max |z - ReLU(W z + q)|, relative to 1 + max |q|. `alpha` is the step
        of the splitting; its default is m / L² for forward-backward and 1 / L for Peaceman-Rachford.
        """
        q = np.asarray(x, dtype=np.float64) @ self.U.T + self.b
        goal = tolerance * (1 + np.abs(q).max(axis=1, initial=0.0))
        if method == "peaceman-rachford":
            step = self._peaceman_rachford(q, alpha or 1 / self.lipschitz)
        else:
            step = self._forward_backward(q, alpha or self.monotonicity / self.lipschitz**2)
        z = np.zeros_like(q)
        iteration = 0
        residual = self._residual(z, q)
        while not (residual <= goal).all():
            if iteration >= max_iterations:
                return FixedPoint(z, residual, iteration, "iteration limit")
            with np.errstate(over="ignore", invalid="ignore"):
                z = step()
                iteration += 1
                residual = self._residual(z, q)
            if not np.isfinite(residual).all():
                return FixedPoint(z, residual, iteration, "not finite")
        return FixedPoint(z, residual, iteration, "converged")

    def _residual(self, z: Array, q: Array) -> Array:
        return np.asarray(np.abs(z - np.maximum(z @ self.W.T + q, 0.0)).max(axis=1, initial=0.0))

    def _forward_backward(self, q: Array, alpha: float) -> Callable[[], Array]:
        state: Array = np.zeros_like(q)

        def step() -> Array:
            nonlocal state
            state = np.asarray(np.maximum(state - alpha * (state - state @ self.W.T - q), 0.0))
            return state

        return step

    def _peaceman_rachford(self, q: Array, alpha: float) -> Callable[[], Array]:
        eye = np.eye(len(self.W))
        resolvent = np.linalg.inv(eye + alpha * (eye - self.W)).T
        u: Array = np.zeros_like(q)

        def step() -> Array:
            nonlocal u
            reflected = 2 * np.maximum(u, 0.0) - u
            u = 2 * ((reflected + alpha * q) @ resolvent) - reflected
            return np.asarray(np.maximum(u, 0.0))

        return step

    def states(self, x: Array) -> Array:
        """Equilibrium of rows: (batch, n_in) -> (batch, n); raises :class:`DataError` where it is not found."""
        found = self.solve(x)
        if found.outcome != "converged":
            raise DataError(f"no equilibrium found ({found.outcome})", remedy=found.hint)
        return found.z

    def preactivations(self, x: Array) -> list[Array]:
        """W z + U x + b at the equilibrium, and the logits: [(batch, n), (batch, n_out)]."""
        z = self.states(x)
        return [z @ self.W.T + np.asarray(x) @ self.U.T + self.b, z @ self.V.T + self.c]

    def logits(self, x: Array) -> Array:
        """Evaluate: (batch, n_in) -> (batch, n_out)."""
        return np.asarray(self.states(x) @ self.V.T + self.c)

    @cached_property
    def sha256(self) -> str:
        """Hash over everything that decides."""
        digest = hashlib.sha256(repr((self.widths, self.decision, self.tail)).encode())
        for name in ("W", "U", "b", "V", "c"):
            digest.update(getattr(self, name).tobytes())
        return digest.hexdigest()
