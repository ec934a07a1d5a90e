"""``agreement=A``: the cheapest configuration that reaches A by cross-validation, or what can be reached."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from fhe.network import PolynomialNetwork
from fhe.options import CkksOptions

__all__ = ["search_agreement"]

_CHEAPEST_FIRST: tuple[dict[str, Any], ...] = (
    {"family": "per-unit", "degree": 2, "refine": "none"},
    {"family": "per-unit", "degree": 2, "refine": "distill"},
    {"family": "per-unit", "degree": 4, "refine": "none"},
    {"family": "per-unit", "degree": 6, "refine": "none"},
)
"""By encrypted cost: degree 2 costs the same retrained or not, degrees 4 and 6 cost levels. The shared polynomial is
never cheaper than the per-unit one, and a free head doubles the hidden layer, so neither is tried."""

Fitter = Callable[[CkksOptions, dict[str, Any]], PolynomialNetwork]


def search_agreement(
    options: CkksOptions, fit: Fitter, report: dict[str, Any]
) -> tuple[CkksOptions, PolynomialNetwork]:
    """Fit configurations from cheap to dear until one reaches `options.agreement` on rows that it was not fitted on.

    Where none does, the best is taken and `report` says what was reached.
    """
    wanted = options.agreement or 0.0
    tried: list[dict[str, Any]] = []
    best: tuple[float, CkksOptions, PolynomialNetwork, dict[str, Any]] | None = None
    for choice in _CHEAPEST_FIRST:
        if choice["refine"] == "distill" and importlib.util.find_spec("torch") is None:
            continue
        configured = options.model_copy(update={**choice, "fit": "auto", "agreement": None})
        notes: dict[str, Any] = {**report, "warnings": list(report["warnings"])}
        network = fit(configured, notes)
        reached = _reached(notes)
        tried.append({**choice, "agreement": reached})
        if best is None or reached > best[0]:
            best = (reached, configured, network, notes)
        if reached >= wanted:
            best = (reached, configured, network, notes)
            break
    assert best is not None
    reached, configured, network, notes = best
    report.update(notes)
    report["agreement_search"] = {"wanted": wanted, "reached": reached, "tried": tried}
    if reached < wanted:
        report["warnings"].append(
            f"agreement {wanted:g} was not reached by cross-validation; the best is {reached:.4f}"
        )
    return configured, network


def _reached(notes: dict[str, Any]) -> float:
    if "distill" in notes:
        return float(notes["distill"]["agreement_after"])
    selection = notes.get("selection")
    if selection is None:
        return 1.0
    if selection["finished"]:
        return float(selection["finished_agreement"])
    return float(next(row["agreement"] for row in selection["candidates"] if row["fit"] == selection["picked"]))
