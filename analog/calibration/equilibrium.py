"""Calibrating an equilibrium circuit: scales, realisation, rail, and a readout refitted to what it really gives.

The rail is the one whose refitted readout leaves the least error of the logits over the calibration rows; errors
inside the equilibrium are amplified by up to 1/m, so the rail matters more here than in a cascade.

Axes: ``batch``, ``n`` (hidden units), ``n_in``, ``n_out``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from analog.calibration.gains import input_ranges, unit_scales
from analog.calibration.least_squares import refit
from analog.circuit import ROLES
from analog.compile.equilibrium import EquilibriumDesign, Realisation, compile_equilibrium, dominant_scaling
from analog.compile.parts import Parts
from analog.conditions import Conditions
from analog.options import CircuitOptions
from analog.solve import plan_circuit
from deploy.arrays import Array
from deploy.errors import ModelRefused
from deploy.model import Equilibrium
from deploy.progress import SILENT, Progress

__all__ = ["calibrate_equilibrium"]

_RAILS = np.linspace(0.0, 0.8, 17)

_ROWS = 256
"""Rows that the rail is chosen on, spread evenly: one number needs no more; the readout is refitted on all."""


def calibrate_equilibrium(
    model: Equilibrium, x: Array, options: CircuitOptions, *, progress: Progress = SILENT
) -> EquilibriumDesign:
    """Design the circuit of an equilibrium network from calibration rows x (batch, n_in).

    Raises
    ------
    ModelRefused : `realisation` asks for resistors alone and no diagonal scaling allows it.
    """
    parts = Parts.of(options)
    z = model.states(x)
    realisation, scale = _choose_realisation(model, z, options)
    design = EquilibriumDesign(
        parts=parts,
        input_volts_per_unit=options.full_scale_volts / input_ranges(x),
        W=np.array(model.W),
        U=np.array(model.U),
        b=np.array(model.b),
        volts_per_unit=scale,
        rail_V=0.0,
        realisation=realisation,
        readout=model.V / scale,
        readout_bias=np.array(model.c),
    )
    if parts.cell.diode.ideal:
        return design
    wanted = z @ model.V.T + model.c
    rails = _RAILS if options.fit_rail else np.array([options.rail_volts])
    thin = slice(None, None, max(1, len(x) // _ROWS))
    best = (np.inf, float(rails[0]))
    with progress.stage("fit the clamp rail", len(rails)) as advance:
        for rail in rails.tolist() if len(rails) > 1 else []:
            best = min(best, (_rail_error(replace(design, rail_V=rail), x[thin], wanted[thin], options), rail))
            advance(1)
    design = replace(design, rail_V=best[1])
    if not options.compensate:
        return design
    hidden = hidden_volts(design, x, options)
    good = np.isfinite(hidden).all(axis=1)
    readout, bias, _ = refit(
        hidden[good], wanted[good], design.readout, design.readout_bias, unit_V=options.full_scale_volts
    )
    return replace(design, readout=readout, readout_bias=bias)


def _choose_realisation(model: Equilibrium, z: Array, options: CircuitOptions) -> tuple[Realisation, Array]:
    """Resistors alone where some scaling makes sym(I - W) dominant; then that scaling decides the volts."""
    dominant = dominant_scaling(model.W)
    if dominant is None:
        if options.realisation == "doubled":
            raise ModelRefused(
                "the comparison matrix of sym(I - W) is no nonsingular M-matrix, so some ground resistors would be "
                "negative whatever the scaling",
                place="W",
                remedy="use realisation controlled, which takes active parts",
            )
        return "controlled", unit_scales(z, options.full_scale_volts, equalise=options.equalise)
    if options.realisation == "controlled":
        return "controlled", unit_scales(z, options.full_scale_volts, equalise=options.equalise)
    loudest = float((z / dominant).max(initial=0.0))
    return "doubled", options.full_scale_volts / (loudest or 1.0) / dominant


def _rail_error(design: EquilibriumDesign, x: Array, wanted: Array, options: CircuitOptions) -> float:
    hidden = hidden_volts(design, x, options)
    if not np.isfinite(hidden).all():
        return np.inf
    if not options.compensate:
        return float(np.sqrt(np.mean((hidden @ design.readout.T + design.readout_bias - wanted) ** 2)))
    return refit(hidden, wanted, design.readout, design.readout_bias, unit_V=options.full_scale_volts)[2]


def hidden_volts(design: EquilibriumDesign, x: Array, options: CircuitOptions) -> Array:
    """What the circuit's hidden nodes really give for rows x (batch, n_in): (batch, n) volts."""
    circuit = compile_equilibrium(design)
    plan = plan_circuit(circuit, Conditions(celsius=options.celsius))
    nodes = np.flatnonzero(circuit.node_origins["role"] == ROLES.index("hidden"))
    return plan.volts(x)[:, nodes]
