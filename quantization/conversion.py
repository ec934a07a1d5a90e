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
from quantization.selection import Candidate, select
from quantization.straight_through import train_straight_through

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
    if options.method == "auto":
        template = Recipe(levels=options.levels // 2, planes=options.planes, protected=options.int8_columns)
        selection = select(
            evidence,
            template=template,
            int8_last=options.int8_last_layer,
            beam=options.beam,
            rng=rng,
            progress=progress,
        )
        candidates = _train_if_needed(evidence, list(selection.tried), options, rng=rng, progress=progress)
        network, name = candidates[0].network, candidates[0].name
        tried: list[Json] = [{"name": candidate.name, "loss": candidate.loss} for candidate in candidates]
    else:
        recipe = _one_recipe(options)
        network = QuantizedMlp.of(quantize_network(evidence, [recipe] * len(model.affines)))
        name, tried = recipe.name, [{"name": recipe.name, "loss": evidence.loss(network.layers)}]
    agreement, wanted = _agreement(evidence, network), options.agreement
    if wanted is not None and agreement < wanted:
        progress.say(f"ternary: agreement {agreement:.4f} on the calibration rows, {wanted:g} was asked for")
    grids, integer = _choose_grids(evidence, network, options)
    report = {
        "method": name,
        "tried": tried,
        "agreement_asked_for": wanted,
        "agreement_met": None if wanted is None else agreement >= wanted,
        "layers": report_layers(model, network, evidence.probe.x),
        "integer": integer,
    }
    reference = options.reference if grids is not None else "float"
    return TernaryDeployment(model, Arithmetic(network, grids, reference), report)


def _train_if_needed(
    evidence: Evidence,
    candidates: list[Candidate],
    options: TernaryOptions,
    *,
    rng: np.random.Generator,
    progress: Progress,
) -> list[Candidate]:
    """Add a trained network where an agreement was asked for and rounding alone does not reach it."""
    wanted = options.agreement
    if wanted is None or _agreement(evidence, candidates[0].network) >= wanted:
        return candidates
    trained = train_straight_through(evidence, rng=rng, progress=progress)
    candidates.append(Candidate("straight-through training", trained, evidence.loss(trained.layers)))
    candidates.sort(key=lambda candidate: candidate.loss)
    reached = [candidate for candidate in candidates if _agreement(evidence, candidate.network) >= wanted]
    return sorted(candidates, key=lambda candidate: candidate not in reached)


def _agreement(evidence: Evidence, network: QuantizedMlp) -> float:
    """Share of the rows on which a network decides as the float one does."""
    return float(evidence.model.decision.agree(evidence.logits, network.logits(evidence.x)).mean())


def _one_recipe(options: TernaryOptions) -> Recipe:
    if options.method == "feedback":
        return Recipe(
            levels=options.levels // 2,
            planes=options.planes,
            protected=options.int8_columns,
            beam=options.beam or 0,
        )
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
