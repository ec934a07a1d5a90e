"""A converted network as a circuit: its reference, files, engines, cost and figures.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from analog.bill_of_materials import bill_of_materials, round_resistors, write_bill_csv
from analog.circuit import Circuit
from analog.compile.design_file import Design, compile_design, read_design, write_design
from analog.conditions import Conditions
from analog.e_series import Series
from analog.engines import OperatingPointEngine, ProcessEngine, PySpiceEngine, RealEngine, SweepEngine
from analog.engines.ngspice import settings_for
from analog.netlist import Hold, Netlist, UserOpAmp, write_netlist
from analog.netlist.op_amp import IDEAL_OP_AMP, OpAmpCard
from analog.options import CircuitOptions
from analog.solve import NativePlan, plan_circuit
from analog.studies import Subject, circuit_studies
from deploy.arrays import Array
from deploy.cost import Quantity
from deploy.errors import BundleError
from deploy.model import Model
from deploy.study import Study
from deploy.target import Archives, Bound, Engine, Json, Panel

__all__ = ["FACTS_FILE", "CircuitDeployment", "Facts", "build_circuit", "load_deployment", "op_amp_card"]

FACTS_FILE = "facts.json"
NETLIST_FILE = "circuit.cir"
BILL_FILE = "bill_of_materials.csv"

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
        """Design, options, facts, netlist, bill of materials."""
        facts = json.dumps(asdict(self.facts), indent=1, allow_nan=False)
        return {
            **write_design(self.design, self.options),
            FACTS_FILE: facts.encode() + b"\n",
            NETLIST_FILE: self.netlist().text.encode(),
            BILL_FILE: write_bill_csv(bill_of_materials(self.plan.circuit, self.bill_series)).encode(),
        }

    def netlist(self, x: Array | None = None) -> Netlist:
        """The netlist that ngspice runs as it is, inputs at row x (n_in,) or at 0."""
        row = np.zeros(self.plan.circuit.n_in) if x is None else x
        settings = settings_for(self.plan.conditions, None)
        return write_netlist(self.plan.circuit, Hold(row), settings=settings, op_amp=op_amp_card(self.options))

    @property
    def bill_series(self) -> Series:
        """Series of the bill of materials: the one that was asked for, or E96."""
        return "E96" if self.options.e_series == "none" else self.options.e_series

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
        """ngspice by its library, its sweep, its program; PySpice."""
        card = op_amp_card(self.options)
        circuit, conditions = self.plan.circuit, self.plan.conditions
        made = (
            OperatingPointEngine(circuit, conditions, op_amp=card),
            SweepEngine(circuit, conditions, op_amp=card),
            ProcessEngine(circuit, conditions, op_amp=card),
            PySpiceEngine(circuit, conditions),
        )
        return {engine.name: RealEngine(engine) for engine in made}

    def studies(self) -> Mapping[str, Study]:
        """Everything that :mod:`analog.studies` offers for this circuit."""
        subject = Subject(
            circuit=self.plan.circuit,
            conditions=self.plan.conditions,
            model=self.model,
            amplifier_W=self.options.amplifier_watts,
            op_amp=op_amp_card(self.options),
        )
        return circuit_studies(subject)

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


def build_circuit(design: Design, options: CircuitOptions) -> Circuit:
    """Compile a design, resistors rounded where a series was asked for."""
    circuit = compile_design(design)
    return circuit if options.e_series == "none" else round_resistors(circuit, options.e_series)


def op_amp_card(options: CircuitOptions) -> OpAmpCard:
    """The subcircuit of op-amps in netlists: the user's own, or the saturating one."""
    return UserOpAmp(options.op_amp) if options.op_amp else IDEAL_OP_AMP


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
    plan = plan_circuit(build_circuit(design, options), Conditions(celsius=options.celsius))
    return CircuitDeployment(design, options, plan, facts, model)
