"""Two bundles side by side; where both were judged on the same rows, the comparison is paired."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deploy.bundle import Bundle

__all__ = ["compare_bundles"]


def compare_bundles(first: Bundle, second: Bundle) -> dict[str, Any]:
    """The JSON of ``compare A B``: models, and for each target of either its figures and, where paired, a p-value."""
    names = list(dict.fromkeys([*first.targets, *second.targets]))
    reports = first.report()["targets"], second.report()["targets"]
    return {
        "bundles": [_head(first), _head(second)],
        "same_model": first.manifest.model.sha256 == second.manifest.model.sha256,
        "targets": {
            name: {
                "sides": [
                    _side(bundle, report, name) for bundle, report in zip((first, second), reports, strict=True)
                ],
                "paired": _paired(reports[0].get(name), reports[1].get(name)),
            }
            for name in names
        },
    }


def _head(bundle: Bundle) -> dict[str, Any]:
    model = bundle.manifest.model
    return {
        "bundle": bundle.path.name,
        "identity": bundle.identity,
        "model": {
            "kind": model.kind,
            "widths": model.widths,
            "parameters": model.parameters,
            "decision": model.decision,
        },
        "bytes": sum(len(data) for data in bundle.files.values()),
    }


def _side(bundle: Bundle, report: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    record = bundle.manifest.targets.get(name)
    if record is None:
        return None
    found = report.get(name, {})
    keys = ("agreement", "agreement_interval", "kl", "accuracy", "worst_logit_error", "certified")
    return {
        **{key: found.get(key) for key in keys},
        "calibration_agreement": record.calibration.get("agreement"),
        "options": record.options,
        "cost": record.cost,
    }


def _paired(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Exact McNemar over the rows that both were judged on, or None where these differ."""
    if first is None or second is None or "disagreeing_rows" not in first or "disagreeing_rows" not in second:
        return None
    here, there = first.get("evaluation", {}), second.get("evaluation", {})
    if here.get("rows_sha256") is None or here.get("rows_sha256") != there.get("rows_sha256"):
        return None
    total = here.get("rows") or 0
    import numpy as np

    from deploy.fidelity import compare_paired

    rows = sorted({*first["disagreeing_rows"], *second["disagreeing_rows"]})
    if len(rows) > total:
        return None
    agrees = np.ones((2, total), dtype=bool)
    for side, entry in zip(agrees, (first, second), strict=True):
        wrong = set(entry["disagreeing_rows"])
        side[: len(rows)] = [row not in wrong for row in rows]
    found = compare_paired(agrees[0], agrees[1])
    return {
        "rows": total,
        "only_first_agrees": found.better,
        "only_second_agrees": found.worse,
        "difference": found.difference,
        "standard_error": found.standard_error,
        "p_value": found.p_value,
    }
