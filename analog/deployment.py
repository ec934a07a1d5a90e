"""A converted network as a circuit: its reference, files, engines, cost and figures.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from analog.compile.cascade import compile_cascade
from analog.compile.design_file import Design, read_design, write_design
from analog.conditions import Conditions
from analog.options import CircuitOptions
from analog.solve import NativePlan, plan_circuit
from deploy.arrays import Array
from deploy.cost import Quantity
from deploy.errors import BundleError
from deploy.model import Model
from deploy.study import Study
from deploy.target import Archives, Bound, Engine, Json, Panel

__all__ = ["FACTS_FILE", "CircuitDeployment", "Facts", "load_deployment"]

FACTS_FILE = "facts.json"

REFERENCE = "native operating points of the circuit, read in logits"


@dataclass(frozen=True, slots=True)
class Facts:
    """What conversion measured on the calibration rows: mean dissipation (W) over `power_rows` rows, realisability."""

    power_W: float
    power_rows: int
    realisability: Mapping[str, Any]


class CircuitDeployment:
    """A circuit ready to be solved; see :class:`deploy.target.Deployment`."""

    def __init__(
        self, design: Design, options: CircuitOptions, plan: NativePlan, facts: Facts, model: Model
    ) -> None:
        self.design, self.options, self.plan, self.facts, self.model = design, options, plan, facts, model

    def files(self) -> Mapping[str, bytes]:
        """Design, options, facts."""
        facts = json.dumps(asdict(self.facts), indent=1, allow_nan=False)
        return {**write_design(self.design, self.options), FACTS_FILE: facts.encode() + b"\n"}

    def archives(self) -> Archives | None:
        """None: a circuit is built, not served."""
        return None

    def logits(self, x: Array) -> Array:
        """Outputs of the circuit in logits: (batch, n_in) -> (batch, n_out)."""
        return self.plan.outputs(np.asarray(x, dtype=np.float64))

    def bound(self, x: Array) -> Bound | None:
        """None: what real diodes do is measured, not bounded."""
        return None

    def engines(self) -> Mapping[str, Engine]:
        """No other simulator yet."""
        return {}

    def studies(self) -> Mapping[str, Study]:
        """None yet."""
        return {}

    @property
    def amplifier_watts(self) -> float:
        """Quiescent power of the active parts, by the options' figure."""
        return self.plan.circuit.active_parts * self.options.amplifier_watts

    def cost(self) -> tuple[Quantity, ...]:
        """Parts and power of one inference."""
        circuit = self.plan.circuit
        return (
            Quantity("resistors", len(circuit.resistors), "", "exact"),
            Quantity("diodes", len(circuit.diodes), "", "exact"),
            Quantity("active_parts", circuit.active_parts, "", "exact"),
            Quantity("power", self.facts.power_W, "W", "modelled"),
            Quantity("amplifier_power", self.amplifier_watts, "W", "modelled"),
        )

    def summary(self) -> Mapping[str, Json]:
        """Keys of ``convert --json``."""
        circuit = self.plan.circuit
        return {
            "reference": REFERENCE,
            "resistors": len(circuit.resistors),
            "diodes": len(circuit.diodes),
            "active_parts": circuit.active_parts,
            "power_watts": self.facts.power_W,
            "power_rows": self.facts.power_rows,
            "amplifier_watts": self.amplifier_watts,
            "nodes": circuit.n_nodes,
            "cell": self.options.cell,
            "diode": self.options.diode,
            "celsius": self.options.celsius,
            "realisability": dict(self.facts.realisability),
        }

    def panels(self, x: Array) -> tuple[Panel, ...]:
        """Logit error against the network, and the resistors' spread."""
        errors = np.abs(self.logits(x) - self.model.logits(x)).max(axis=1)
        counts, edges = np.histogram(errors[np.isfinite(errors)], bins=30)
        ohm = np.abs(self.plan.circuit.resistors.ohm)
        ohm_counts, ohm_edges = np.histogram(np.log10(ohm), bins=30) if len(ohm) else (np.zeros(1), np.zeros(2))
        return (
            Panel(
                "Largest logit error of a row",
                "histogram",
                {"edges": edges.tolist(), "counts": counts.tolist()},
                x_label="|circuit - network| (logits)",
                y_label="rows",
            ),
            Panel(
                "Resistors",
                "histogram",
                {"edges": ohm_edges.tolist(), "counts": ohm_counts.tolist()},
                x_label="log10 of the resistance in ohm",
                y_label="resistors",
            ),
        )


def load_deployment(files: Mapping[str, bytes], model: Model) -> CircuitDeployment:
    """Read a deployment back; raises :class:`deploy.errors.BundleError` where a file is missing or damaged."""
    design, options = read_design(files)
    if FACTS_FILE not in files:
        raise BundleError("is missing", place=FACTS_FILE)
    try:
        document = json.loads(files[FACTS_FILE])
        facts = Facts(float(document["power_W"]), int(document["power_rows"]), dict(document["realisability"]))
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"holds no facts: {error}", place=FACTS_FILE) from None
    plan = plan_circuit(compile_cascade(design), Conditions(celsius=options.celsius))
    return CircuitDeployment(design, options, plan, facts, model)
