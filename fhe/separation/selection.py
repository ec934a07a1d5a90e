"""Which fit to keep, by cross-validation inside the calibration rows.

The rule, fixed before any held-out row is read: among the candidates that are within one standard error (paired, over
the same rows) of the best, take the one closest to least squares. Least squares itself stays in the running until the
best's lead over it is significant (exact McNemar test, 5 %): a few rows among hundreds are luck, and a standard error
of so few says little. The same is done among fits that saw perturbed copies of the rows as well; theirs is taken only if
it leads the other by more than one standard error, and least squares significantly. Then finish it (keep every calibration decision
that can be kept, moving as little as possible) unless cross-validation says that this costs more than one standard
error.

Axes: ``batch``, ``candidates``, ``parameters``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from deploy.arrays import Array
from deploy.fidelity import compare_paired
from fhe.separation.candidates import AUTO, Candidate, finish, fit_candidates
from fhe.separation.lift import Lift
from fhe.separation.newton import Fit
from fhe.separation.targets import Targets

if TYPE_CHECKING:
    from deploy.progress import Progress

__all__ = ["Folds", "Scored", "Selection", "make_folds", "paired_difference", "select_fit"]

MANY_ROWS = 20_000
"""Above this many rows one split is enough, and no more rows than this are fitted in it."""

_LUCK = 0.05
"""A lead over least squares less sure than this is taken for luck."""


@dataclass(frozen=True, slots=True, eq=False)
class Folds:
    """Pairs of rows to fit on and rows to judge on."""

    pairs: tuple[tuple[Array, Array], ...]


def make_folds(rows: int, rng: np.random.Generator, *, judged: Array | None = None, folds: int = 5) -> Folds:
    """Split `rows` rows at random: `folds` folds, or one split where rows abound.

    Parameters
    ----------
    judged : indices of the rows that may be judged on (the network was not trained on them), or None for all.
    """
    order = rng.permutation(rows)
    allowed = np.ones(rows, dtype=bool)
    if judged is not None:
        allowed[:] = False
        allowed[judged] = True
    if rows > MANY_ROWS:
        fitted = max(rows // 2, rows - MANY_ROWS) if rows < 2 * MANY_ROWS else MANY_ROWS
        pairs = [(np.sort(order[:fitted]), np.sort(order[fitted:]))]
    else:
        parts = np.array_split(order, min(folds, rows))
        pairs = [
            (np.sort(np.concatenate(parts[:i] + parts[i + 1 :])), np.sort(parts[i])) for i in range(len(parts))
        ]
    return Folds(tuple((fit, judge[allowed[judge]]) for fit, judge in pairs if allowed[judge].any() and len(fit)))


@dataclass(frozen=True, slots=True)
class Scored:
    """How a candidate did on rows that it was not fitted on."""

    candidate: Candidate
    agreement: float
    standard_error: float
    distance: float
    admissible: bool


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """What cross-validation found.

    Parameters
    ----------
    table : every candidate's score.
    picked : the candidate to keep.
    finish : whether to finish it.
    finished_agreement : cross-validated agreement of the pick when finished.
    rows : how many judgements each score is made of.
    """

    table: tuple[Scored, ...]
    picked: Candidate
    finish: bool
    finished_agreement: float
    rows: int


def select_fit(
    lift: Lift,
    targets: Targets,
    anchor: Array,
    folds: Folds,
    *,
    gamma: float,
    progress: Progress,
    candidates: tuple[Candidate, ...] = AUTO,
    rows: int | None = None,
) -> Selection:
    """Cross-validate all candidates and apply the rule of this module; deterministic given the folds.

    Parameters
    ----------
    rows : how many of the rows are judged, all by default. What follows them are perturbed copies (row r's stand at
        r + rows, r + 2 rows, …): every candidate but least squares then competes with and without them.
    """
    rows = len(lift) if rows is None else rows
    if len(lift) > rows:
        candidates += tuple(replace(each, perturbed=True) for each in candidates if each.kind != "least-squares")
    right: dict[Candidate, list[Array]] = {candidate: [] for candidate in candidates}
    distance = dict.fromkeys(candidates, 0.0)
    kept: list[dict[Candidate, Array]] = []
    with progress.stage("cross-validate fits", len(folds.pairs)) as advance:
        for fitted, judged in folds.pairs:
            fits: dict[Candidate, Fit] = {}
            for perturbed in sorted({candidate.perturbed for candidate in candidates}):
                some = tuple(candidate for candidate in candidates if candidate.perturbed == perturbed)
                seen = _training_rows(fitted, rows, len(lift), perturbed=perturbed)
                share = len(fitted) / rows
                fits |= fit_candidates(lift.take(seen), targets.take(seen), anchor, some, share=share, max_steps=10)
            there, wanted = lift.take(judged), targets.take(judged)
            for candidate, fit in fits.items():
                right[candidate].append(wanted.agrees(there.at(fit.parameters).scores))
                distance[candidate] += float(np.linalg.norm(fit.parameters - anchor)) / len(folds.pairs)
            kept.append({candidate: fit.parameters for candidate, fit in fits.items()})
            advance(1)
    votes = {candidate: np.concatenate(parts) for candidate, parts in right.items()}
    picked, table = _pick(votes, distance)
    finished = []
    for (fitted, judged), parameters in zip(folds.pairs, kept, strict=True):
        seen = _training_rows(fitted, rows, len(lift), perturbed=picked.perturbed)
        share = len(fitted) / rows
        fit = finish(lift.take(seen), targets.take(seen), parameters[picked], gamma=gamma, share=share)
        finished.append(targets.take(judged).agrees(lift.take(judged).at(fit.parameters).scores))
    after = np.concatenate(finished)
    loss, error = paired_difference(votes[picked], after)
    return Selection(table, picked, loss <= error * (1 + 1e-9), float(after.mean()), len(after))


def _training_rows(fitted: Array, rows: int, total: int, *, perturbed: bool) -> Array:
    """A fold's rows, with their perturbed copies where those are wanted."""
    return np.concatenate([fitted + start for start in range(0, total, rows)]) if perturbed else fitted


def paired_difference(first: Array, second: Array) -> tuple[float, float]:
    """Mean of first - second over the rows, and its standard error."""
    apart = first.astype(np.float64) - second
    return float(apart.mean()), float(apart.std() / np.sqrt(max(len(apart) - 1, 1)))


def _pick(votes: dict[Candidate, Array], distance: dict[Candidate, float]) -> tuple[Candidate, tuple[Scored, ...]]:
    without = {candidate: mine for candidate, mine in votes.items() if not candidate.perturbed}
    picked, table = _closest_of_the_best(without, distance)
    if len(without) == len(votes):
        return picked, table
    perturbed = {candidate: mine for candidate, mine in votes.items() if candidate.perturbed}
    other, more = _closest_of_the_best(perturbed, distance)
    lead, error = paired_difference(votes[other], votes[picked])
    sure = picked.kind != "least-squares" or compare_paired(votes[other], votes[picked]).p_value < _LUCK
    return other if sure and lead > error * (1 + 1e-9) else picked, table + more


def _closest_of_the_best(
    votes: dict[Candidate, Array], distance: dict[Candidate, float]
) -> tuple[Candidate, tuple[Scored, ...]]:
    best = max(votes, key=lambda candidate: (votes[candidate].mean(), -distance[candidate]))
    table = []
    for candidate, mine in votes.items():
        behind, error = paired_difference(votes[best], mine)
        admissible = behind <= error * (1 + 1e-9)  # being behind on a single row is exactly one standard error
        if candidate.kind == "least-squares":
            admissible = admissible or compare_paired(votes[best], mine).p_value >= _LUCK
        spread = float(mine.std() / np.sqrt(len(mine)))
        table.append(Scored(candidate, float(mine.mean()), spread, distance[candidate], admissible))
    picked = min((row for row in table if row.admissible), key=lambda row: row.distance).candidate
    return picked, tuple(table)
