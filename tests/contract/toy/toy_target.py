"""A fourth target: a plain copy of the model, keyless, with one study and one verb.

It is a distribution of its own, found by its entry point as soon as this folder is on the path. No line of the
trunk names it; the tests in ``tests/contract`` drive it through every verb and the service.

This module is light, so that showing help stays instant; :mod:`toy_deployment` does the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import BaseModel, ConfigDict, Field

from deploy.cost import Quantity
from deploy.errors import UsageError
from deploy.progress import Progress
from deploy.target import Command, Json, Refusal

if TYPE_CHECKING:
    import numpy as np
    from toy_deployment import ToyClient, ToyDeployment, ToyServer

    from deploy.dataset import Calibration
    from deploy.model import Model

__all__ = ["target"]


class Options(BaseModel):
    """Options of the copy."""

    model_config = ConfigDict(extra="forbid")

    offset: float = Field(0.0, description="added to the first logit, so that disagreement can be seen")
    widest: int = Field(100_000, gt=0, description="the widest layer that is taken")


class ToyTarget:
    """The target itself."""

    name = "toy"
    guarantee = "Every decision is that of the float network, as long as no offset is asked for."
    non_guarantee = "Nothing is hidden from anyone, nothing becomes smaller or faster."
    options: type[BaseModel] = Options

    def accepts(self, model: Model, options: Options) -> Refusal | None:
        if max(model.widths) > options.widest:
            return Refusal(f"a layer of {max(model.widths)} units, {options.widest} are taken", "raise toy.widest")
        return None

    def predict_cost(
        self, model: Model, options: Options, *, calibration: Calibration | None
    ) -> tuple[Quantity, ...]:
        return (Quantity("parameters", model.parameters, "", "exact", who_sees="server"),)

    def convert(
        self,
        model: Model,
        calibration: Calibration,
        options: Options,
        *,
        rng: np.random.Generator,
        progress: Progress,
    ) -> ToyDeployment:
        from toy_deployment import ToyDeployment

        with progress.stage("toy: copy", 1) as advance:
            advance(1)
        return ToyDeployment(model, options.offset)

    def load(self, files: Mapping[str, bytes], *, model: Model) -> ToyDeployment:
        from toy_deployment import read_deployment

        return read_deployment(files)

    def server(self, files: Mapping[str, bytes]) -> ToyServer:
        from toy_deployment import ToyServer, read_deployment

        return ToyServer(read_deployment(files))

    def client(self, files: Mapping[str, bytes]) -> ToyClient:
        from toy_deployment import ToyClient

        from deploy.interface import INTERFACE_FILE, Interface

        return ToyClient(Interface.from_bytes(files[INTERFACE_FILE]))

    def commands(self) -> Mapping[str, Command]:
        return {"count-parameters": Command("Count what a copy copies.", _count_parameters, _draw_count)}


def _count_parameters(
    bundle: Annotated[Path, typer.Argument(help="A bundle.")],
    progress: Progress,
    at_most: Annotated[int | None, typer.Option(help="Refuse more.")] = None,
) -> Json:
    from deploy.bundle import Bundle

    parameters = Bundle.read(bundle).model.parameters
    progress.say(f"{bundle} was read")
    if at_most is not None and parameters > at_most:
        raise UsageError(f"{parameters} parameters, {at_most} were allowed")
    return {"parameters": parameters}


def _draw_count(document: Json) -> str:
    assert isinstance(document, dict)
    return f"{document['parameters']} parameters"


target = ToyTarget()
