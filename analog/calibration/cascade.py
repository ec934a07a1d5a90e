"""Calibrating a cascade: layer by layer, on what the circuit so far really gives.

For each candidate rail of a layer its cells' true output is computed, the next layer is refitted to it, and the
rail whose refit leaves the least error of the next layer's pre-activations is kept: one objective for both.

Axes: ``batch``, ``units``.
"""

from __future__ import annotations

import numpy as np

from analog.calibration.gains import scale_network
from analog.calibration.least_squares import refit
from analog.compile.cascade import CascadeDesign, CellLayer
from analog.compile.cells import respond
from analog.compile.parts import Parts
from analog.conditions import Conditions
from analog.options import CircuitOptions
from deploy.arrays import Array
from deploy.model import Mlp
from deploy.progress import SILENT, Progress

__all__ = ["calibrate_cascade"]

_RAILS = np.linspace(0.0, 0.8, 17)
"""Candidate rails in volts: from no compensation to beyond the drop of a silicon diode at 1 mA."""

_ROWS = 2000
"""Rows that a rail is chosen on, spread evenly: it is one number; the refit uses all."""


def calibrate_cascade(
    model: Mlp, x: Array, options: CircuitOptions, *, progress: Progress = SILENT
) -> CascadeDesign:
    """Design the cascade of a network from calibration rows x (batch, n_in)."""
    parts = Parts.of(options)
    conditions = Conditions(celsius=options.celsius)
    scaled = scale_network(model, x, full_scale_V=options.full_scale_volts, equalise=options.equalise)
    digital = given = x * scaled.input_volts_per_unit
    layers: list[CellLayer] = []
    targets = [*scaled.layers, scaled.readout]
    weight, bias = targets[0]
    with progress.stage("calibrate layers", len(scaled.layers)) as advance:
        for index in range(len(scaled.layers)):
            own_weight, own_bias = scaled.layers[index]
            digital = np.maximum(digital @ own_weight.T + own_bias, 0.0)
            wanted = digital @ targets[index + 1][0].T + targets[index + 1][1]
            layer, given, (weight, bias) = _choose_layer(
                CellLayer(weight, bias, 0.0), given, wanted, targets[index + 1], parts, options, conditions
            )
            layers.append(layer)
            advance(1)
    return CascadeDesign(parts, scaled.input_volts_per_unit, tuple(layers), weight, bias)


def _choose_layer(
    layer: CellLayer,
    given: Array,
    wanted: Array,
    following: tuple[Array, Array],
    parts: Parts,
    options: CircuitOptions,
    conditions: Conditions,
) -> tuple[CellLayer, Array, tuple[Array, Array]]:
    """Pick a layer's rail; gives the layer, its output (batch, units) and the next layer's weights."""

    def judge(rail: float, rows: slice) -> tuple[float, CellLayer, Array, tuple[Array, Array]]:
        trial = with_rail(layer, rail, parts)
        summing = trial.plan(parts)
        u = given[rows] @ trial.weight.T + trial.bias
        output = respond(
            parts.cell, u, trial.rail_V, gain=summing.gain, total_S=summing.total_S, conditions=conditions
        )
        if not options.compensate:
            error = output @ following[0].T + following[1] - wanted[rows]
            return float(np.sqrt(np.mean(error**2))), trial, output, following
        weight, bias, rest = refit(output, wanted[rows], *following, unit_V=options.full_scale_volts)
        return rest, trial, output, (weight, bias)

    candidates = [0.0]
    if parts.cell.takes_rail:
        candidates = _RAILS.tolist() if options.fit_rail else [options.rail_volts]
    thin = slice(None, None, max(1, len(given) // _ROWS))
    rail = candidates[0]
    if len(candidates) > 1:
        rail = min(candidates, key=lambda candidate: judge(candidate, thin)[0])
    _, chosen, output, weights = judge(rail, slice(None))
    return chosen, output, weights


def with_rail(layer: CellLayer, rail_V: float, parts: Parts) -> CellLayer:
    """Set a layer's rail; a series cell takes it as a shift of its bias."""
    if parts.cell.kind == "series":
        return CellLayer(layer.weight, layer.bias + rail_V, 0.0)
    return CellLayer(layer.weight, layer.bias, rail_V)
