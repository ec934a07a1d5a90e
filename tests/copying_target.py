"""The least target there is: a plain copy of the model, for tests of the trunk that need any target at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from deploy.cost import Quantity
from deploy.errors import BundleError, PlanError
from deploy.target import Archives, Bound, EngineRun, Refusal


class Options(BaseModel):
    """Options of the copy."""

    model_config = ConfigDict(extra="forbid")

    shift: float = Field(0.0, description="added to the first logit")
    refuse: bool = Field(False, description="refuse every model")
    fail: bool = Field(False, description="find no plan")
    mode: str = "plain"
    sizes: list[int] = Field(default_factory=list, description="a list")


class CopyEngine:
    """Runs the copy; the third row fails."""

    requires = None

    def __init__(self, deployment: CopyDeployment) -> None:
        self.deployment = deployment

    def __enter__(self) -> CopyEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def run(self, x: np.ndarray) -> EngineRun:
        logits = self.deployment.logits(x) + 1e-3
        if len(x) > 3:
            logits[3] = np.nan
        return EngineRun(logits, {"client": 0.0, "server": 1e-3}, {2: "out of luck"} if len(x) > 2 else {})


class CopyDeployment:
    """The model, its first logit shifted."""

    def __init__(self, model: Any, shift: float) -> None:
        self.model, self.shift = model, shift

    def files(self) -> Mapping[str, bytes]:
        return {"shift.txt": repr(self.shift).encode()}

    def archives(self) -> Archives | None:
        return Archives({"note.txt": b"client"}, {"shift.txt": repr(self.shift).encode()})

    def logits(self, x: np.ndarray) -> np.ndarray:
        logits = self.model.logits(x)
        logits[:, 0] += self.shift
        return logits

    def bound(self, x: np.ndarray) -> Bound | None:
        return Bound(np.full((len(x), self.model.n_out), abs(self.shift) + 1e-9), "proved", "the shift")

    def engines(self) -> Mapping[str, Any]:
        return {"copy": CopyEngine(self)}

    def studies(self) -> Mapping[str, Any]:
        return {}

    def cost(self) -> tuple[Quantity, ...]:
        return (Quantity("bytes", 8.0 * self.model.parameters, "B", "exact"),)

    def summary(self) -> Mapping[str, Any]:
        return {"reference": "the float network, shifted", "shift": self.shift}

    def panels(self, x: np.ndarray) -> tuple[Any, ...]:
        return ()


class CopyTarget:
    """See the module."""

    name = "copy"
    guarantee = "decides as the original"
    non_guarantee = "nothing is gained"
    options = Options

    def accepts(self, model: Any, options: Options) -> Refusal | None:
        return Refusal("layer 1: too good to copy", "keep it") if options.refuse else None

    def predict_cost(self, model: Any, options: Options, *, calibration: Any) -> tuple[Quantity, ...]:
        return (Quantity("bytes", 8.0 * model.parameters, "B", "exact"),)

    def convert(self, model: Any, calibration: Any, options: Options, *, rng: Any, progress: Any) -> CopyDeployment:
        if options.fail:
            raise PlanError("needs 5 levels, 3 are left", place="layer 2", remedy="use fewer layers")
        return CopyDeployment(model, options.shift)

    def load(self, files: Mapping[str, bytes], *, model: Any) -> CopyDeployment:
        if "shift.txt" not in files:
            raise BundleError("is missing", place="shift.txt")
        return CopyDeployment(model, float(files["shift.txt"]))

    def server(self, files: Mapping[str, bytes]) -> None:
        return None

    def client(self, files: Mapping[str, bytes]) -> None:
        return None

    def commands(self) -> Mapping[str, Any]:
        return {}


target = CopyTarget()
