"""Training with ternary weights by the straight-through estimator, towards the float network's logits.

The forward pass rounds each row of the latent weights by the rule of Ternary Weight Networks; the backward pass
takes the rounding for the identity (Bengio et al., arXiv 1308.3432). Latents start at the *float* weights:
started at a ternary point they stay there, since a small step crosses no threshold. The loss is KL(float ‖ ours)
of logits divided by 2, so no label is needed.

Needs the extra ``torch``. The same seed gives the same network on the same machine.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from deploy.progress import SILENT, Progress
from deploy.requirement import require
from quantization.baselines import quantize_twn
from quantization.distillation import SOFTENING
from quantization.evidence import Evidence
from quantization.network import QuantizedLayer, QuantizedMlp

__all__ = ["train_straight_through"]


def train_straight_through(
    evidence: Evidence,
    *,
    rng: np.random.Generator,
    epochs: int = 20,
    batch: int = 64,
    rate: float = 1e-3,
    progress: Progress = SILENT,
) -> QuantizedMlp:
    """Train a ternary network on the calibration rows.

    Parameters
    ----------
    evidence : the float network on calibration rows.
    epochs, batch, rate : passes, rows a step, and Adam's rate, which falls to 0 by a cosine.

    Raises
    ------
    RequirementMissing : torch is not installed.
    """
    torch: Any = require("torch", extra="torch")
    model = evidence.model
    latents = [torch.tensor(layer.weight, dtype=torch.float32, requires_grad=True) for layer in model.affines]
    biases = [torch.tensor(layer.bias, dtype=torch.float32, requires_grad=True) for layer in model.affines]
    x = torch.from_numpy(evidence.x.astype(np.float32))
    target = torch.from_numpy(evidence.logits.astype(np.float32))
    steps_per_epoch = -(-len(x) // batch)
    optimizer = torch.optim.Adam([*latents, *biases], lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps_per_epoch)
    with progress.stage("ternary: straight-through training", epochs) as advance:
        for _ in range(epochs):
            order = rng.permutation(len(x))
            for begin in range(0, len(x), batch):
                rows = torch.from_numpy(order[begin : begin + batch])
                loss = _loss(torch, model.decision.rule, target[rows], _forward(torch, latents, biases, x[rows]))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
            advance(1)
    return QuantizedMlp.of(
        [
            QuantizedLayer(
                (quantize_twn(latent.detach().numpy().astype(np.float64), "row"),),
                bias.detach().numpy().astype(np.float64),
                "straight-through training",
                affine.name or f"layer {index}",
            )
            for index, (latent, bias, affine) in enumerate(zip(latents, biases, model.affines, strict=True))
        ]
    )


def _forward(torch: Any, latents: list[Any], biases: list[Any], h: Any) -> Any:
    for index, (latent, bias) in enumerate(zip(latents, biases, strict=True)):
        magnitude = latent.abs()
        kept = magnitude > 0.7 * magnitude.mean(dim=1, keepdim=True)
        scale = (magnitude * kept).sum(dim=1, keepdim=True) / kept.sum(dim=1, keepdim=True).clamp(min=1)
        rounded = scale * torch.sign(latent) * kept
        h = torch.nn.functional.linear(h, latent + (rounded - latent).detach(), bias)
        if index < len(latents) - 1:
            h = torch.relu(h)
    return h


def _loss(torch: Any, rule: str, target: Any, ours: Any) -> Any:
    if rule == "value":
        return ((ours - target) ** 2).mean()
    target, ours = target / SOFTENING, ours / SOFTENING
    if rule == "sign":
        return SOFTENING**2 * torch.nn.functional.binary_cross_entropy_with_logits(ours, torch.sigmoid(target))
    sign = 1.0 if rule == "argmax" else -1.0
    log_softmax = torch.nn.functional.log_softmax
    return SOFTENING**2 * torch.nn.functional.kl_div(
        log_softmax(sign * ours, dim=1), log_softmax(sign * target, dim=1), log_target=True, reduction="batchmean"
    )
