"""The usual polynomial replacements, for an honest comparison: none of them looks at decisions.

Axes: ``batch``, ``n_in``, ``units``, ``powers``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from deploy.arrays import Array
from deploy.fidelity import agreement_interval, compare_paired
from deploy.model import Mlp
from fhe.network import PolynomialNetwork, evaluate_polynomials
from fhe.separation.remez import minimax_relu

__all__ = ["BASELINES", "Replacement", "compare_baselines", "fit_baselines", "replace_layerwise"]

Replacement = Callable[[Array], Array]
"""From pre-activations (batch, units) to coefficients (units, powers) in powers of z."""


def replace_layerwise(model: Mlp, x: Array, replacement: Replacement) -> PolynomialNetwork:
    """Replace the ReLUs of each layer in turn, each on what the layers before it give for x (batch, n_in)."""
    return PolynomialNetwork(model.affines, _tables(model, x, replacement), model.decision)


def _tables(model: Mlp, x: Array, replacement: Replacement) -> tuple[Array, ...]:
    tables = []
    h = np.asarray(x, dtype=np.float64)
    for layer, activation in zip(model.affines, model.activations, strict=False):
        z = layer(h)
        table = np.tile([0.0, 0.0, 1.0], (layer.n_out, 1)) if activation == "square" else replacement(z)
        tables.append(table)
        h = np.nan_to_num(evaluate_polynomials(table, z))
    return tuple(tables)


def fit_baselines(model: Mlp, x: Array) -> dict[str, tuple[Array, ...]]:
    """Every baseline of :data:`BASELINES` on rows x (batch, n_in): coefficient tables, constants and all."""
    with np.errstate(all="ignore"):
        return {name: _tables(model, x, replacement) for name, replacement in BASELINES.items()}


def compare_baselines(
    model: Mlp, network: PolynomialNetwork, baselines: Mapping[str, tuple[Array, ...]], x: Array
) -> list[dict[str, Any]]:
    """Agreement of each on rows x (batch, n_in), with its interval, and a network's lead over it on the same rows."""
    original = model.logits(x)
    ours = model.decision.agree(original, network.logits(x))
    found = []
    for name, tables in baselines.items():
        with np.errstate(all="ignore"):
            logits = PolynomialNetwork(model.affines, tables, model.decision).logits(x)
        theirs = np.isfinite(logits).all(axis=1) & model.decision.agree(original, np.nan_to_num(logits))
        paired = compare_paired(ours, theirs)
        low, high = agreement_interval(int(theirs.sum()), len(theirs))
        found.append(
            {
                "replacement": name,
                "agreement": float(theirs.mean()),
                "low": low,
                "high": high,
                "lead": paired.difference,
                "standard_error": paired.standard_error,
                "p_value": paired.p_value,
            }
        )
    return found


def square(z: Array) -> Array:
    """z²."""
    return np.tile([0.0, 0.0, 1.0], (z.shape[1], 1))


def least_squares(degree: int, *, per_unit: bool) -> Replacement:
    """Least squares over the values seen, of each unit or of the whole layer."""

    def replace(z: Array) -> Array:
        columns = [z[:, [unit]] for unit in range(z.shape[1])] if per_unit else [z]
        tables = [_fit_values(column.ravel(), degree) for column in columns]
        return np.array(tables) if per_unit else np.tile(tables[0], (z.shape[1], 1))

    return replace


def minimax(degree: int, *, per_unit: bool) -> Replacement:
    """Least worst error over the range seen, by Remez' exchange."""
    return _over_range(_minimax_unit(degree), per_unit=per_unit)


def chebyshev(degree: int, *, per_unit: bool) -> Replacement:
    """Interpolation at the Chebyshev points of the range seen."""
    return _over_range(_chebyshev_unit(degree), per_unit=per_unit)


def _fit_values(values: Array, degree: int) -> Array:
    """Ascending coefficients; the polynomial is fitted in a scaled, orthogonal basis."""
    low, high = float(values.min()), float(values.max())
    if low == high:
        return np.array([max(low, 0.0), *[0.0] * degree])
    fit = np.polynomial.Chebyshev.fit(values, np.maximum(values, 0.0), min(degree, len(np.unique(values)) - 1))
    return _pad(fit.convert(kind=np.polynomial.Polynomial).coef, degree)


def _pad(coefficients: Array, degree: int) -> Array:
    return np.append(coefficients, np.zeros(degree + 1 - len(coefficients)))


def _over_range(on_range: Callable[[float, float], Array], *, per_unit: bool) -> Replacement:
    def replace(z: Array) -> Array:
        low, high = z.min(axis=0), z.max(axis=0)
        if not per_unit:
            return np.tile(on_range(float(low.min()), float(high.max())), (z.shape[1], 1))
        return np.array([on_range(float(a), float(b)) for a, b in zip(low, high, strict=True)])

    return replace


def _exact_on(low: float, high: float, degree: int) -> Array | None:
    """Coefficients where the ReLU is itself a polynomial: a range on one side of zero."""
    if high <= 0:
        return np.zeros(degree + 1)
    if low >= 0:
        return _pad(np.array([0.0, 1.0]), degree)
    return None


def _minimax_unit(degree: int) -> Callable[[float, float], Array]:
    def on_range(low: float, high: float) -> Array:
        exact = _exact_on(low, high, degree)
        if exact is not None:
            return exact
        return _pad(minimax_relu(low, high, degree).convert(kind=np.polynomial.Polynomial).coef, degree)

    return on_range


def _chebyshev_unit(degree: int) -> Callable[[float, float], Array]:
    def on_range(low: float, high: float) -> Array:
        exact = _exact_on(low, high, degree)
        if exact is not None:
            return exact
        series = np.polynomial.Chebyshev.interpolate(lambda v: np.maximum(v, 0.0), degree, domain=[low, high])
        return _pad(series.convert(kind=np.polynomial.Polynomial).coef, degree)

    return on_range


BASELINES: Mapping[str, Replacement] = {
    "square": square,
    **{
        f"{name} {degree}, {'unit' if per_unit else 'layer'}": maker(degree, per_unit=per_unit)
        for name, maker in (("least squares", least_squares), ("remez", minimax), ("chebyshev", chebyshev))
        for per_unit in (False, True)
        for degree in (2, 3, 5, 7)
    },
}
"""Every baseline by name; "layer" takes one polynomial for a layer, "unit" one for each hidden unit."""
