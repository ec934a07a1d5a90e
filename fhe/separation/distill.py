"""``refine=distill``: all weights of the polynomial network retrained towards the original's logits, without labels.

This is retraining, and every report says so. It starts at the separation solution, minimises KL(original ‖ network)
over the calibration rows with Adam, and stops by agreement on rows kept aside; coefficients are then separated once
more on the new features.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from deploy.arrays import Array
from deploy.requirement import require
from fhe.network import PolynomialNetwork
from fhe.separation.basis import UnitBasis
from fhe.separation.coordinates import Coordinates
from fhe.separation.selection import paired_difference
from fhe.separation.targets import Targets, orient_logits

if TYPE_CHECKING:
    from deploy.progress import Progress

__all__ = ["Distilled", "distill", "training_scores"]

_BATCH = 256
_ASIDE = 0.1

_ROWS_FOR_BASES = 20_000
"""Rows that suffice for means, spreads and bases: they condition the training, they do not decide it."""


@dataclass(frozen=True, slots=True, eq=False)
class Distilled:
    """A retrained network.

    Parameters
    ----------
    network : the last, if it is within one paired standard error of the best by agreement on the rows kept aside (the
        steps shrink to nothing, so the last is the best trained, and the best of many is partly luck); otherwise the
        best; the start where no epoch was better.
    epoch : which one, 0 for the start.
    agreement_before, agreement_after : on the rows kept aside.
    aside : indices of those rows.
    """

    network: PolynomialNetwork
    epoch: int
    agreement_before: float
    agreement_after: float
    aside: Array


def distill(
    start: PolynomialNetwork,
    x: Array,
    targets: Targets,
    *,
    rng: np.random.Generator,
    progress: Progress,
    epochs: int = 24,
    rate: float = 1e-3,
    aside: Array | None = None,
) -> Distilled:
    """Retrain on rows x (batch, n_in); deterministic given the arguments.

    Parameters
    ----------
    rate : Adam's step, relative to the sizes in :class:`fhe.separation.coordinates.Coordinates`.
    aside : rows kept for stopping; a tenth at random by default.
    """
    torch = require("torch", extra="torch")
    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(int(rng.integers(2**31)))
            return _distill(torch, start, x, targets, rng, progress, epochs, rate, aside)
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.set_num_threads(threads)


def _distill(
    torch: Any,
    start: PolynomialNetwork,
    x: Array,
    targets: Targets,
    rng: np.random.Generator,
    progress: Progress,
    epochs: int,
    rate: float,
    aside: Array | None,
) -> Distilled:
    order = rng.permutation(len(x))
    judged = np.sort(order[: max(1, int(len(x) * _ASIDE))]) if aside is None else aside
    fitted = np.setdiff1d(np.arange(len(x)), judged)
    coordinates = Coordinates.around(start, x[fitted[:: 1 + len(fitted) // _ROWS_FOR_BASES]])
    tensors = [torch.tensor(a, dtype=torch.float32, requires_grad=True) for a in coordinates.parameters()]
    optimiser = torch.optim.Adam(
        [{"params": [t], "lr": rate * size} for t, size in zip(tensors, coordinates.sizes(), strict=True)]
    )
    steps = epochs * -(-len(fitted) // _BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, steps))
    inputs = torch.from_numpy(coordinates.inputs(x, fitted))
    aims = torch.softmax(torch.tensor(targets.scores[fitted], dtype=torch.float64), dim=1).float()

    wanted = targets.take(judged)

    def votes(network: PolynomialNetwork) -> Array:
        return wanted.agrees(orient_logits(network.decision, network.logits(x[judged])))

    begun = votes(start)
    best, best_votes, best_epoch = start, begun, 0
    last, last_votes = start, begun
    with progress.stage("distill (retraining without labels)", epochs) as advance:
        for epoch in range(1, epochs + 1):
            for batch in torch.randperm(len(inputs)).split(_BATCH):
                scores = training_scores(torch, coordinates, tensors, inputs[batch])
                loss = torch.nn.functional.kl_div(
                    torch.log_softmax(scores, dim=1), aims[batch], reduction="batchmean"
                )
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
            last = coordinates.network([tensor.detach().double().numpy() for tensor in tensors])
            last_votes = votes(last)
            if last_votes.mean() > best_votes.mean():
                best, best_votes, best_epoch = last, last_votes, epoch
            advance(1)
    behind, error = paired_difference(best_votes, last_votes)
    if best_epoch and behind <= error and last_votes.mean() >= begun.mean():
        best, best_votes, best_epoch = last, last_votes, epochs
    return Distilled(best, best_epoch, float(begun.mean()), float(best_votes.mean()), judged)


def training_scores(torch: Any, coordinates: Coordinates, tensors: list[Any], h: Any) -> Any:
    """Oriented scores of inputs h (batch, n_in) in the coordinates."""
    left = list(tensors)
    for hidden in coordinates.hidden:
        weight, bias, coefficients = left.pop(0), left.pop(0), left.pop(0)
        t = h @ weight.T + bias
        before, here, last = 0.0, 1.0, torch.zeros(())
        h = 0.0
        for shift, scale, coefficient in zip(*_recurrence(torch, hidden.basis), coefficients, strict=True):
            inverse = torch.where(scale > 0, 1.0 / scale.clamp(min=1e-30), torch.zeros(()))
            before, here = here, ((t - shift) * here - last * before) * inverse
            h, last = h + coefficient * here, scale
    scores = h @ left[0].T + left[1]
    rule = coordinates.start.decision.rule
    if rule == "argmin":
        return -scores
    return torch.cat([torch.zeros_like(scores), scores], dim=1) if rule == "sign" else scores


def _recurrence(torch: Any, basis: UnitBasis) -> tuple[Any, Any]:
    return torch.tensor(basis.shift, dtype=torch.float32), torch.tensor(basis.scale, dtype=torch.float32)
