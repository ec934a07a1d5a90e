"""What every study is about: a circuit, the network that it should compute, and how well it does.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from analog.circuit import Circuit
from analog.conditions import Conditions
from analog.netlist.op_amp import IDEAL_OP_AMP, OpAmpCard
from analog.solve import plan_circuit
from analog.survey import dissipation
from deploy.arrays import Array
from deploy.errors import InputError
from deploy.model import Model
from deploy.study import Column

__all__ = ["JUDGED", "OUTCOME", "Subject", "Variation"]

OUTCOME = Column("outcome", "", '"ok", or why there are no numbers')

JUDGED = (
    Column("agreement", "", "share of rows that the circuit decides as the network does"),
    Column("rms_logit_error", "logits", "root mean square of circuit minus network"),
    Column("max_logit_error", "logits", "largest |circuit - network|"),
    Column("failed_rows", "", "rows without an operating point; they count as disagreement"),
    OUTCOME,
)


@dataclass(frozen=True, eq=False)
class Variation:
    """A circuit that differs from the nominal one.

    Parameters
    ----------
    saturation_factors : (diodes,) multiplies each diode's saturation current; None: 1.
    """

    circuit: Circuit
    conditions: Conditions
    saturation_factors: Array | None = None


@dataclass(frozen=True, eq=False)
class Subject:
    """The nominal circuit, its conditions, and the network.

    Parameters
    ----------
    amplifier_W : quiescent power of one active part.
    op_amp : subcircuit of op-amps where SPICE is run.
    """

    circuit: Circuit
    conditions: Conditions
    model: Model
    amplifier_W: float = 0.0
    op_amp: OpAmpCard = IDEAL_OP_AMP

    def nominal(self) -> Variation:
        """No difference."""
        return Variation(self.circuit, self.conditions)

    def judge(self, variation: Variation, x: Array) -> Mapping[str, Any]:
        """The columns :data:`JUDGED` for rows x (batch, n_in); what cannot be solved says so in ``outcome``."""
        try:
            plan = plan_circuit(
                variation.circuit, variation.conditions, saturation_factors=variation.saturation_factors
            )
        except InputError as error:
            nothing = dict.fromkeys((column.name for column in JUDGED), np.nan)
            return {**nothing, "failed_rows": len(x), "outcome": str(error)}
        logits, wanted = plan.outputs(x), self.model.logits(x)
        good = np.isfinite(logits).all(axis=1)
        off = logits[good] - wanted[good]
        agree = self.model.decision.agree(logits[good], wanted[good])
        return {
            "agreement": float(np.count_nonzero(agree) / max(len(x), 1)),
            "rms_logit_error": float(np.sqrt(np.mean(off**2))) if off.size else np.nan,
            "max_logit_error": float(np.abs(off).max()) if off.size else np.nan,
            "failed_rows": int(np.count_nonzero(~good)),
            "outcome": "ok",
        }

    def watts(self, variation: Variation, x: Array) -> Array:
        """Heat of resistors and diodes for rows x: (batch,) in watts, NaN where a row fails."""
        plan = plan_circuit(variation.circuit, variation.conditions)
        volts = plan.volts(x)
        return np.asarray(dissipation(plan, volts))
