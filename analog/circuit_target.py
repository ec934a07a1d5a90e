"""The ``circuit`` target; light to import, numerics are loaded when work begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from analog.options import CircuitOptions
from deploy.cost import Quantity
from deploy.target import Command, Refusal

if TYPE_CHECKING:
    import numpy as np
    from pydantic import BaseModel

    from deploy.dataset import Calibration
    from deploy.model import Equilibrium, Model
    from deploy.progress import Progress
    from deploy.requirement import Requirement
    from deploy.target import ClientRole, Deployment, ServerRole

__all__ = ["CircuitTarget"]

MAX_WEIGHTS = 4_000_000
"""Networks beyond this many weights would make netlists that no SPICE reads."""


class CircuitTarget:
    """Resistors, diodes and amplifiers."""

    name = "circuit"
    guarantee = (
        "with ideal diodes the circuit computes the network exactly (to rounding); every operating point satisfies "
        "Kirchhoff's laws and the devices' laws to the residual that comes with it"
    )
    non_guarantee = (
        "real diodes and tolerances move logits: agreement is measured, not proved; noise, bandwidth and layout are "
        "not modelled"
    )
    options: type[BaseModel] = CircuitOptions

    def accepts(self, model: Model, options: Any) -> Refusal | None:
        """Take feed-forward ReLU chains and equilibrium networks."""
        if model.kind == "equilibrium":
            return self._accepts_equilibrium(model, options)
        squares = [index for index, activation in enumerate(model.activations) if activation != "relu"]
        if squares:
            return Refusal(
                f"activation {squares[0]} is a square, a diode gives ReLU", "convert the network with ReLU"
            )
        return _refuse_size(sum(layer.weight.size for layer in model.affines))

    def _accepts_equilibrium(self, model: Equilibrium, options: Any) -> Refusal | None:
        if options.cell != "clamp":
            return Refusal(
                f"an equilibrium network clamps its nodes, it has no {options.cell} cell", "use cell clamp"
            )
        if options.realisation == "doubled":
            from analog.compile.equilibrium import dominant_scaling

            if dominant_scaling(model.W) is None:
                return Refusal(
                    "W: no diagonal scaling makes sym(I - W) dominant, resistors alone cannot carry it",
                    "use realisation controlled, which takes active parts",
                )
        return _refuse_size(model.parameters)

    def predict_cost(self, model: Model, options: Any, *, calibration: Calibration | None) -> tuple[Quantity, ...]:
        """Parts, from the shapes."""
        from analog.prediction import predict_parts

        return predict_parts(model, options)

    def convert(
        self, model: Model, calibration: Calibration, options: Any, *, rng: np.random.Generator, progress: Progress
    ) -> Deployment:
        """Design and compile; nothing is random."""
        from analog.conversion import convert_model

        return convert_model(model, calibration.x, options, progress=progress)

    def load(self, files: Mapping[str, bytes], *, model: Model) -> Deployment:
        """Read a deployment back."""
        from analog.deployment import load_deployment

        return load_deployment(files, model)

    def server(self, files: Mapping[str, bytes]) -> ServerRole | None:
        """None: a circuit is built, not served."""
        return None

    def client(self, files: Mapping[str, bytes]) -> ClientRole | None:
        """None: a circuit is built, not served."""
        return None

    def requirements(self) -> tuple[Requirement, ...]:
        """What runs a netlist, for ``relu-deploy doctor``."""
        from analog.engines.locate import LIBRARY, PROGRAM

        return (LIBRARY, PROGRAM)

    def commands(self) -> Mapping[str, Command]:
        """None of its own."""
        return {}


def _refuse_size(weights: int) -> Refusal | None:
    if weights <= MAX_WEIGHTS:
        return None
    return Refusal(
        f"{weights} weights would be as many resistors, the limit is {MAX_WEIGHTS}", "prune the network first"
    )
