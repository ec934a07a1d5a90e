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
from fhe.network import PolynomialNetwork, evaluate_polynomials
from fhe.separation.basis import UnitBasis
from fhe.separation.selection import paired_difference
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
    coordinates = _Coordinates.around(start, x[fitted])
    tensors = [torch.tensor(a, dtype=torch.float32, requires_grad=True) for a in coordinates.parameters()]
    optimiser = torch.optim.Adam(
        [{"params": [t], "lr": rate * size} for t, size in zip(tensors, coordinates.sizes(), strict=True)]
    )
    steps = epochs * -(-len(fitted) // _BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, steps))
    inputs = torch.tensor(coordinates.inputs(x[fitted]), dtype=torch.float32)
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
                scores = _scores(torch, coordinates, tensors, inputs[batch])
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


@dataclass(frozen=True, slots=True, eq=False)
class _Hidden:
    """A hidden layer's unit polynomials, in their orthonormal basis over the rows that training starts on."""

    basis: UnitBasis
    coefficients: Array


@dataclass(frozen=True, slots=True, eq=False)
class _Coordinates:
    """Well-conditioned coordinates of all weights, and the way back.

    Inputs are centred and each is scaled by the size of the weights that it meets; pre-activations are standardised;
    unit polynomials are combinations of their orthonormal basis, so that what enters the next layer is centred too.
    In raw weights the mean of the inputs and of the powers rules every gradient, and training stalls a percent lower.

    Parameters
    ----------
    start : the network that training starts from.
    centre, scale : (n_in,) of the inputs.
    hidden : one for each hidden layer.
    constants : for each hidden layer, what its polynomials' means add to the bias that follows: (n_next,).
    """

    start: PolynomialNetwork
    centre: Array
    scale: Array
    hidden: tuple[_Hidden, ...]
    constants: tuple[Array, ...]

    @classmethod
    def around(cls, start: PolynomialNetwork, x: Array) -> _Coordinates:
        """Prepare over rows x (batch, n_in)."""
        hidden, constants = [], []
        for table, z, after in zip(start.coefficients, start.preactivations(x), start.affines[1:], strict=False):
            basis = UnitBasis.over(z, table.shape[1] - 1)
            values = evaluate_polynomials(table, z)
            hidden.append(_Hidden(basis, np.einsum("pbu,bu->pu", basis.values(z), values) / len(z)))
            constants.append(after.weight @ values.mean(axis=0))
        first = start.affines[0].weight / (hidden[0].basis.std[:, None] if hidden else 1.0)
        size = np.sqrt((first * first).mean(axis=0))
        return cls(
            start,
            x.mean(axis=0),
            np.maximum(size, 1e-3 * size.max(initial=1e-300)),
            tuple(hidden),
            tuple(constants),
        )

    def inputs(self, x: Array) -> Array:
        """Rows (batch, n_in) as training sees them."""
        return (x - self.centre) * self.scale

    def parameters(self) -> list[Array]:
        """Weight and bias of each layer, each but the last followed by its coefficients (powers, units)."""
        found: list[Array] = []
        for index, layer in enumerate(self.start.affines):
            weight, bias = layer.weight, layer.bias
            if index == 0:
                weight, bias = weight / self.scale, bias + weight @ self.centre
            else:
                bias = bias + self.constants[index - 1]
            if index < len(self.hidden):
                basis = self.hidden[index].basis
                weight, bias = weight / basis.std[:, None], (bias - basis.mean) / basis.std
            found += [weight, bias]
            if index < len(self.hidden):
                found.append(self.hidden[index].coefficients)
        return found

    def sizes(self) -> list[float]:
        """Root mean square of each of :meth:`parameters`, a bias's by the weights beside it: steps are relative to it."""
        found: list[float] = []
        for values in self.parameters():
            if values.ndim == 2:
                size = max(float(np.sqrt((values * values).mean())), 1e-6)
            found.append(size)
        return found

    def network(self, parameters: list[Array]) -> PolynomialNetwork:
        """Back to weights of rows as they are, and polynomials in powers of the pre-activation."""
        left = list(parameters)
        affines, tables = [], []
        for index, layer in enumerate(self.start.affines):
            weight, bias = left.pop(0), left.pop(0)
            if index < len(self.hidden):
                basis = self.hidden[index].basis
                weight, bias = weight * basis.std[:, None], bias * basis.std + basis.mean
                tables.append(np.einsum("pu,pud->ud", left.pop(0), basis.monomials()))
            if index == 0:
                weight = weight * self.scale
                bias = bias - weight @ self.centre
            affines.append(Affine(weight, bias, layer.name))
        return PolynomialNetwork(tuple(affines), tuple(tables), self.start.decision)


def _scores(torch: Any, coordinates: _Coordinates, tensors: list[Any], h: Any) -> Any:
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
