"""From a float network and calibration rows to a deployment.

Axes: ``batch``, ``n_in``.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from deploy.arrays import Array
from deploy.errors import ModelRefused, PlanError
from deploy.model import Model
from deploy.progress import SILENT, Progress
from deploy.target import Json
from quantization.arithmetic import Arithmetic
from quantization.deployment import TernaryDeployment
from quantization.evidence import Evidence, decision_loss
from quantization.integer import Bits, Grids, calibrate_grids, compile_integer
from quantization.layer_report import report_layers
from quantization.layerwise import quantize_network
from quantization.network import QuantizedMlp
from quantization.options import TernaryOptions
from quantization.recipe import Method, Recipe
from quantization.selection import select

__all__ = ["convert_model"]

_WORTH_TWO_BYTES = 1.1
"""Activations take 16 bits where 8 cost more than a tenth of the loss."""


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
        tried: list[Json] = [{"name": candidate.name, "loss": candidate.loss} for candidate in selection.tried]
    else:
        recipe = _one_recipe(options)
        network = QuantizedMlp.of(quantize_network(evidence, [recipe] * len(model.affines)))
        name, tried = recipe.name, [{"name": recipe.name, "loss": evidence.loss(network.layers)}]
    grids, integer = _choose_grids(evidence, network, options)
    report = {
        "method": name,
        "tried": tried,
        "layers": report_layers(model, network, evidence.probe.x),
        "integer": integer,
    }
    reference = options.reference if grids is not None else "float"
    return TernaryDeployment(model, Arithmetic(network, grids, reference), report)


def _one_recipe(options: TernaryOptions) -> Recipe:
    if options.method == "feedback":
        return Recipe("feedback", levels=options.levels // 2, beam=options.beam or 0)
    return Recipe(cast(Method, options.method), "tensor" if options.method in ("absmean", "twn") else "row")


def _choose_grids(
    evidence: Evidence, network: QuantizedMlp, options: TernaryOptions
) -> tuple[Grids | None, dict[str, Json]]:
    """Grids of the integer program, and what it costs; none where no program is free of overflow."""
    model, probe = evidence.model, evidence.probe
    wanted: tuple[Bits, ...] = (8, 16) if options.activations == "auto" else (cast(Bits, int(options.activations)),)
    float_loss = probe.loss(network.layers)
    report: dict[str, Json] = {"float_loss": float_loss}
    chosen: Grids | None = None
    for bits in wanted:
        grids = calibrate_grids(network, evidence.x, bits=bits)
        try:
            program = compile_integer(network, grids)
        except PlanError as error:
            report["refused"] = str(error)
            continue
        logits = program.logits(probe.x)
        loss = decision_loss(model.decision, probe.logits, logits)
        chosen = grids
        report.update(
            activation_bits=bits,
            loss=loss,
            largest_difference=float(np.abs(logits - network.logits(probe.x)).max()),
            overflow_proof=[
                {
                    "accumulator_bits": layer.accumulator_bits,
                    "product_bits": layer.product_bits,
                    "shift": layer.shift,
                }
                for layer in program.layers
            ],
        )
        if loss <= _WORTH_TWO_BYTES * float_loss + 1e-6:
            break
    return chosen, report
