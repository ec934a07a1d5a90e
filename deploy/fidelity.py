"""How faithfully a deployment decides: agreement, distances and comparisons, each with its uncertainty.

Axes: ``batch``, ``n_out``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import bdtr, betaincinv, log_expit, log_softmax

from deploy.arrays import Array
from deploy.dataset import row_hashes
from deploy.errors import DataError
from deploy.model.decision import Decision
from deploy.row_certificate import certify_rows

__all__ = [
    "Fidelity",
    "PairedComparison",
    "WorstRow",
    "accuracy",
    "agreement_interval",
    "compare_paired",
    "divergence",
    "measure_fidelity",
]


def agreement_interval(successes: int, rows: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper-Pearson interval of a share: exact, never too short.

    Clopper and Pearson, Biometrika 26 (1934) 404-413, by quantiles of the beta distribution.

    >>> low, high = agreement_interval(99, 100)
    >>> round(low, 4), round(high, 4)
    (0.9455, 0.9997)
    """
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(betaincinv(successes, rows - successes + 1, tail))
    high = 1.0 if successes == rows else float(betaincinv(successes + 1, rows - successes, 1 - tail))
    return low, high


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """Two deployments on the same rows, exactly (McNemar).

    Parameters
    ----------
    better, worse : rows where only the first, only the second agrees with the original.
    difference : share of the first minus share of the second.
    standard_error : of that difference, sqrt(better + worse - (better - worse)²/n) / n.
    p_value : two-sided exact probability of a split at least this uneven, were both equally good.
    """

    better: int
    worse: int
    difference: float
    standard_error: float
    p_value: float


def compare_paired(first: Array, second: Array) -> PairedComparison:
    """Compare two arrays (batch,) of bool, right or wrong on the same rows.

    >>> compare_paired(np.array([1, 1, 1, 0], bool), np.array([1, 0, 0, 0], bool)).p_value
    0.5
    """
    better = int(np.count_nonzero(first & ~second))
    worse = int(np.count_nonzero(~first & second))
    total, rows = better + worse, len(first)
    p_value = 1.0 if better == worse else min(1.0, 2 * float(bdtr(min(better, worse), total, 0.5)))
    spread = max(total - (better - worse) ** 2 / rows, 0.0) ** 0.5 / rows
    return PairedComparison(better, worse, (better - worse) / rows, spread, p_value)


def divergence(decision: Decision, original: Array, deployed: Array) -> Array | None:
    """KL(original || deployed) in nats per row, of logits (batch, n_out): (batch,); None for ``value``.

    Softmax of z for argmax, of -z for argmin, a Bernoulli of the logistic function for sign.
    """
    if decision.rule == "value":
        return None
    if decision.rule == "sign":
        p_log, q_log = log_expit(original[:, 0]), log_expit(deployed[:, 0])
        p_not, q_not = log_expit(-original[:, 0]), log_expit(-deployed[:, 0])
        terms = np.exp(p_log) * (p_log - q_log) + np.exp(p_not) * (p_not - q_not)
        return np.asarray(np.maximum(terms, 0.0))
    sign = 1.0 if decision.rule == "argmax" else -1.0
    p_log, q_log = log_softmax(sign * original, axis=1), log_softmax(sign * deployed, axis=1)
    return np.asarray(np.maximum(np.sum(np.exp(p_log) * (p_log - q_log), axis=1), 0.0))


def accuracy(
    decision: Decision, classes: Sequence[str | int] | None, logits: Array, y: Array | None
) -> float | None:
    """Share of rows (batch, n_out) decided as the labels (batch,) say; None without labels or for ``value``.

    Labels are class names where the model has them, otherwise class indices.

    Raises
    ------
    DataError : a label that is no class.
    """
    if y is None or decision.rule == "value":
        return None
    n_classes = 2 if decision.rule == "sign" else logits.shape[1]
    names: list[Any] = list(range(n_classes)) if classes is None else list(classes)
    index = {str(name): position for position, name in enumerate(names)}
    labels = [str(label.item() if isinstance(label, np.generic) else label) for label in y]
    labels = [label.removesuffix(".0") if label not in index else label for label in labels]
    unknown = sorted({label for label in labels if label not in index})
    if unknown:
        known = ", ".join(str(name) for name in names[:12]) + (" …" if len(names) > 12 else "")
        raise DataError(
            f"{len(unknown)} labels are no class of the model, for instance {unknown[0]!r}",
            remedy=f"its classes are {known}",
        )
    wanted = np.array([index[label] for label in labels])
    return float(np.mean(decision.decide(logits) == wanted))


@dataclass(frozen=True, slots=True)
class WorstRow:
    """A row that went wrong or came close: its index in the file, its hash, and the numbers."""

    row: int
    sha256: str
    margin: float
    error: float
    agrees: bool


@dataclass(frozen=True, eq=False)
class Fidelity:
    """A deployment against the original on the same rows.

    Parameters
    ----------
    rows : how many.
    agrees : (batch,) of bool.
    agreement, agreement_interval : share and its Clopper-Pearson 95 % interval.
    kl : mean KL in nats, None for ``value``.
    rmse : root mean square logit error.
    worst_logit_error : largest |deployed - original| in logits.
    margin_quantiles : of the original's margins, at 0, 1, 5, 25, 50 %.
    certified : share of rows whose decision provably survives the deployment's bound, or None without one.
    worst : rows that disagree first, then those whose error uses up most of their margin.
    """

    rows: int
    agrees: Array
    agreement: float
    agreement_interval: tuple[float, float]
    kl: float | None
    rmse: float
    worst_logit_error: float
    margin_quantiles: dict[str, float]
    certified: float | None
    worst: tuple[WorstRow, ...]

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "rows": self.rows,
            "agreement": self.agreement,
            "agreement_interval": list(self.agreement_interval),
            "kl": self.kl,
            "rmse": self.rmse,
            "worst_logit_error": self.worst_logit_error,
            "margins": self.margin_quantiles,
            "certified": self.certified,
            "worst_rows": [
                {"row": w.row, "sha256": w.sha256, "margin": w.margin, "error": w.error, "agrees": w.agrees}
                for w in self.worst
            ],
        }


def measure_fidelity(
    decision: Decision,
    original: Array,
    deployed: Array,
    x: Array,
    *,
    numbers: Array | None = None,
    bound: Array | None = None,
    worst: int = 10,
) -> Fidelity:
    """Measure a deployment's logits (batch, n_out) against the original's on rows x (batch, n_in).

    Parameters
    ----------
    numbers : (batch,) what each row is called, by default its place in `x`.
    bound : (batch, n_out) proved or estimated bound on the difference, in logits, where there is one.
    worst : how many rows to name.
    """
    agrees = decision.agree(original, deployed)
    errors = np.abs(deployed - original).max(axis=1)
    room = decision.surviving_error(original)
    kl = divergence(decision, original, deployed)
    certified = None if bound is None else float(np.mean(certify_rows(decision, original, bound)))
    use = np.where(agrees, errors / np.maximum(room, np.finfo(np.float64).tiny), np.inf)
    order = np.lexsort((-errors, -use))[:worst]
    hashes = row_hashes(x[order])
    names = np.arange(len(x)) if numbers is None else numbers
    margins = decision.margins(original)
    return Fidelity(
        rows=len(x),
        agrees=agrees,
        agreement=float(np.mean(agrees)),
        agreement_interval=agreement_interval(int(agrees.sum()), len(x)),
        kl=None if kl is None else float(np.mean(kl)),
        rmse=float(np.sqrt(np.mean((deployed - original) ** 2))),
        worst_logit_error=float(errors.max()),
        margin_quantiles={f"{percent}%": float(np.percentile(margins, percent)) for percent in (0, 1, 5, 25, 50)},
        certified=certified,
        worst=tuple(
            WorstRow(int(names[row]), digest.hex(), float(margins[row]), float(errors[row]), bool(agrees[row]))
            for row, digest in zip(order, hashes, strict=True)
        ),
    )
