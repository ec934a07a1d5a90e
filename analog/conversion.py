"""From a network and calibration rows to a circuit deployment."""

from __future__ import annotations

from analog.calibration import calibrate_cascade, calibrate_equilibrium
from analog.compile.cascade import CascadeDesign
from analog.compile.design_file import Design
from analog.compile.realisability import report_realisability
from analog.conditions import Conditions
from analog.deployment import CircuitDeployment, Facts, build_circuit
from analog.options import CircuitOptions
from analog.solve import plan_circuit
from analog.survey import survey_rows
from deploy.arrays import Array
from deploy.model import Mlp, Model
from deploy.progress import SILENT, Progress

__all__ = ["convert_model", "design_model"]


def design_model(model: Model, x: Array, options: CircuitOptions, *, progress: Progress = SILENT) -> Design:
    """Make every choice that calibration rows x (batch, n_in) decide."""
    if isinstance(model, Mlp):
        return calibrate_cascade(model, x, options, progress=progress)
    return calibrate_equilibrium(model, x, options, progress=progress)


def convert_model(
    model: Model, x: Array, options: CircuitOptions, *, progress: Progress = SILENT
) -> CircuitDeployment:
    """Design, compile, solve and judge; `x` (batch, n_in) are the calibration rows."""
    design = design_model(model, x, options, progress=progress)
    circuit = build_circuit(design, options)
    plan = plan_circuit(circuit, Conditions(celsius=options.celsius))
    with progress.stage("survey the circuit on the calibration rows", None):
        survey = survey_rows(plan, x)
    report = report_realisability(circuit, survey, options, _describe(design))
    for violation in report.violations:
        progress.say(f"circuit: {violation}")
    facts = Facts(power_W=survey.dissipated_W, power_rows=survey.rows, realisability=report.document())
    return CircuitDeployment(design, options, plan, facts, model)


def _describe(design: Design) -> tuple[str, ...]:
    """How the network is realised, for people."""
    if isinstance(design, CascadeDesign):
        return ()
    if design.realisation == "doubled":
        return (
            "the symmetric part of I - W is resistors alone: a positive diagonal scaling makes it dominant, and "
            "mirror nodes carry its positive couplings",
        )
    return (
        "the symmetric part of I - W takes transconductances for its positive couplings and active negative "
        "resistors to ground (no scaling makes it dominant, or controlled was asked for)",
    )
