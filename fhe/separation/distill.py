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
from deploy.model import Affine
from deploy.requirement import require
from fhe.network import PolynomialNetwork
from fhe.separation.targets import Targets, orient_logits

if TYPE_CHECKING:
    from deploy.progress import Progress

__all__ = ["Distilled", "distill"]

_BATCH = 256
_ASIDE = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Distilled:
    """A retrained network.

    Parameters
    ----------
    network : the best by agreement on the rows kept aside; the start where no epoch was better.
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
    rate: float = 5e-4,
    aside: Array | None = None,
) -> Distilled:
    """Retrain on rows x (batch, n_in); deterministic given the arguments.

    Parameters
    ----------
    rate : Adam's step, relative: every tensor's is scaled by its root mean square times 10.
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
    scale = _ranges(start, x)
    tensors = _tensors(torch, start, scale)
    optimiser = torch.optim.Adam(
        [{"params": [t], "lr": rate * max(1e-3, 10 * float(t.detach().square().mean().sqrt()))} for t in tensors]
    )
    steps = epochs * -(-len(fitted) // _BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, steps))
    inputs = torch.tensor(x[fitted], dtype=torch.float32)
    aims = torch.softmax(torch.tensor(targets.scores[fitted], dtype=torch.float64), dim=1).float()

    def agreement(network: PolynomialNetwork) -> float:
        scores = orient_logits(network.decision, network.logits(x[judged]))
        return float(targets.take(judged).agrees(scores).mean())

    before = agreement(start)
    best, best_epoch, best_agreement = start, 0, before
    with progress.stage("distill (retraining without labels)", epochs) as advance:
        for epoch in range(1, epochs + 1):
            for batch in torch.randperm(len(inputs)).split(_BATCH):
                scores = _forward(torch, start, tensors, inputs[batch])
                loss = torch.nn.functional.kl_div(
                    torch.log_softmax(scores, dim=1), aims[batch], reduction="batchmean"
                )
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
            network = _network(start, tensors, scale)
            now = agreement(network)
            if now > best_agreement:
                best, best_epoch, best_agreement = network, epoch, now
            advance(1)
    return Distilled(best, best_epoch, before, best_agreement, judged)


def _ranges(network: PolynomialNetwork, x: Array) -> list[Array]:
    """Power of two near each hidden unit's spread: training sees pre-activations of size about 1."""
    found = []
    for z in network.preactivations(x)[:-1]:
        spread = np.maximum(z.std(axis=0), 2.0**-40)
        found.append(2.0 ** np.round(np.log2(spread)))
    return found


def _tensors(torch: Any, network: PolynomialNetwork, scale: list[Array]) -> list[Any]:
    """Weight and bias of each layer and each table without its constant, with hidden units scaled."""
    found: list[Array] = []
    for index, layer in enumerate(network.affines):
        by = scale[index] if index < len(scale) else np.ones(layer.n_out)
        found += [layer.weight / by[:, None], layer.bias / by]
        if index < len(scale):
            table = network.coefficients[index]
            found.append(table[:, 1:] * by[:, None] ** np.arange(1, table.shape[1]))
    return [torch.tensor(array, dtype=torch.float32, requires_grad=True) for array in found]


def _forward(torch: Any, network: PolynomialNetwork, tensors: list[Any], h: Any) -> Any:
    left = list(tensors)
    for _ in network.coefficients:
        weight, bias, table = left.pop(0), left.pop(0), left.pop(0)
        z = h @ weight.T + bias
        h = table[:, -1] * z
        for power in range(table.shape[1] - 2, -1, -1):
            h = (h + table[:, power]) * z
    scores = h @ left[0].T + left[1]
    rule = network.decision.rule
    if rule == "argmin":
        return -scores
    return torch.cat([torch.zeros_like(scores), scores], dim=1) if rule == "sign" else scores


def _network(start: PolynomialNetwork, tensors: list[Any], scale: list[Array]) -> PolynomialNetwork:
    left = [tensor.detach().double().numpy() for tensor in tensors]
    affines, tables = [], []
    for index, layer in enumerate(start.affines):
        by = scale[index] if index < len(scale) else np.ones(layer.n_out)
        affines.append(Affine(left.pop(0) * by[:, None], left.pop(0) * by, layer.name))
        if index < len(scale):
            table = left.pop(0)
            powers = table / by[:, None] ** np.arange(1, table.shape[1] + 1)
            tables.append(np.hstack([np.zeros((len(table), 1)), powers]))
    return PolynomialNetwork(tuple(affines), tuple(tables), start.decision)
