"""Quantise a network layer after layer, each repairing what the ones before it did.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from deploy.arrays import Array
from quantization.evidence import Evidence
from quantization.network import QuantizedLayer
from quantization.problem import repair_bias
from quantization.recipe import Recipe, column_factors, quantize_rows
from quantization.recognition import recognize_ternary

__all__ = ["BiasRule", "Memory", "quantize_layer", "quantize_network"]

BiasRule = Literal["keep", "repair", "better"]
"""Keep the float bias, repair the mean pre-activation, or whichever gives the lower loss."""


def quantize_layer(
    evidence: Evidence, done: Sequence[QuantizedLayer], recipe: Recipe, *, seen: Array, bias: BiasRule = "better"
) -> QuantizedLayer:
    """Quantise the layer after those in `done`.

    `seen` (batch, n_in) is what it sees behind the quantised layers. Under "better" the bias is repaired only where
    that lowers the calibration loss with the layers behind it still exact: on weight-only codes a repair can
    cost ten times what it gains.
    """
    index = len(done)
    affine = evidence.model.affines[index]
    exact = evidence.layer_input(index)
    last = index == len(evidence.model.affines) - 1
    known = recognize_ternary(affine.weight) if recipe.method == "feedback" else None
    factors = column_factors(affine.weight, 0.0 if known is not None else recipe.balance)
    scaled = exact if factors is None else exact * factors
    planes = (
        (known,)
        if known is not None
        else quantize_rows(
            recipe,
            affine.weight if factors is None else affine.weight / factors,
            scaled,
            scaled if not done else (seen if factors is None else seen * factors),
            row_weights=evidence.row_weights,
            output_weights=evidence.output_weights if last else None,
        )
    )
    name = affine.name or f"layer {index}"
    method = recipe.name if known is None else "ternary already"
    plain = QuantizedLayer(planes, affine.bias, method, name, factors).rounded()
    if bias == "keep":
        return plain
    repaired = replace(
        plain,
        bias=repair_bias(affine.weight, affine.bias, plain.weight, exact, seen),
        method=f"{plain.method}, bias repaired",
    ).rounded()
    if bias == "repair":
        return repaired
    product = seen[evidence.probe_rows] @ plain.weight.T
    loss = partial(evidence.probe.loss_behind, index)
    return repaired if loss(product + repaired.bias) < loss(product + plain.bias) else plain


Memory = dict[tuple[Recipe, ...], tuple[QuantizedLayer, Array]]
"""The last layer that a run of recipes made, and what it gives behind its ReLU; for one evidence and one bias rule."""


def quantize_network(
    evidence: Evidence, recipes: Sequence[Recipe], *, bias: BiasRule = "better", memory: Memory | None = None
) -> list[QuantizedLayer]:
    """Quantise every layer, each by its recipe; `memory` shares the first layers of plans that begin alike."""
    memory = {} if memory is None else memory
    done: list[QuantizedLayer] = []
    seen = evidence.x
    for index in range(len(recipes)):
        key = tuple(recipes[: index + 1])
        if key not in memory:
            layer = quantize_layer(evidence, done, recipes[index], seen=seen, bias=bias)
            memory[key] = layer, np.maximum(layer(seen), 0.0)
        layer, seen = memory[key]
        done.append(layer)
    return done
