"""From a float network and calibration rows to a deployment.

Axes: ``batch``, ``n_in``.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from deploy.arrays import Array
from deploy.errors import ModelRefused
from deploy.model import Model
from deploy.progress import SILENT, Progress
from deploy.target import Json
from quantization.deployment import TernaryDeployment
from quantization.evidence import Evidence
from quantization.layerwise import quantize_network
from quantization.network import QuantizedMlp
from quantization.options import TernaryOptions
from quantization.recipe import Method, Recipe
from quantization.selection import select

__all__ = ["convert_model"]


def convert_model(
    model: Model, x: Array, options: TernaryOptions, *, rng: np.random.Generator, progress: Progress = SILENT
) -> TernaryDeployment:
    """Quantise a network on calibration rows (batch, n_in)."""
    if model.kind != "mlp":
        raise ModelRefused("ternary layers are feed-forward, this is an equilibrium network")
    evidence = Evidence(model, model.check_rows(x))
    levels = options.levels // 2
    if options.method == "auto":
        selection = select(evidence, levels=levels, beam=options.beam, rng=rng, progress=progress)
        network, name = selection.best.network, selection.best.name
        tried: list[Json] = [{"name": candidate.name, "kl": candidate.loss} for candidate in selection.tried]
    else:
        recipe = (
            Recipe("feedback", levels=levels, beam=options.beam or 0)
            if options.method == "feedback"
            else _published(options)
        )
        network = QuantizedMlp.of(quantize_network(evidence, [recipe] * len(model.affines)))
        name, tried = recipe.name, [{"name": recipe.name, "kl": evidence.loss(network.layers)}]
    return TernaryDeployment(model, network, {"method": name, "tried": tried})


def _published(options: TernaryOptions) -> Recipe:
    assert options.method not in ("auto", "feedback")
    return Recipe(cast(Method, options.method), "tensor" if options.method in ("absmean", "twn") else "row")
