"""What the toy target does, once it is asked to: a plain copy of the model, keyless, with one study.

On the wire a request and an answer are rows of little-endian float64, nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from deploy.arrays import Array
from deploy.bundle.manifest import ModelEntry
from deploy.bundle.weights import describe_model, read_model, write_model
from deploy.cost import Quantity
from deploy.errors import BundleError, WireError
from deploy.interface import Interface
from deploy.model import Decision, Model
from deploy.study import Case, Column
from deploy.target import Archives, Bound, EngineRun, Json, Limits, Panel, Signature, Tensor

__all__ = ["ToyClient", "ToyDeployment", "ToyServer", "read_deployment"]

COPY_FILE, WEIGHTS_FILE = "copy.json", "copy.safetensors"
MAX_ROWS = 64


def read_deployment(files: Mapping[str, bytes]) -> ToyDeployment:
    """Read back what :meth:`ToyDeployment.files` gave."""
    try:
        head = json.loads(files[COPY_FILE])
        model = read_model(ModelEntry.model_validate(head["model"]), files[WEIGHTS_FILE])
        return ToyDeployment(model, float(head["offset"]))
    except (KeyError, ValueError, TypeError) as error:
        raise BundleError(f"is no copy: {error}", place=COPY_FILE) from None


class ToyDeployment:
    """The model itself, with an offset on its first logit."""

    def __init__(self, model: Model, offset: float) -> None:
        self.model = model
        self.offset = offset

    def files(self) -> Mapping[str, bytes]:
        head = {"model": describe_model(self.model).model_dump(mode="json"), "offset": self.offset}
        return {
            COPY_FILE: json.dumps(head, sort_keys=True, indent=1).encode(),
            WEIGHTS_FILE: write_model(self.model),
        }

    def archives(self) -> Archives:
        shape = json.dumps({"n_in": self.model.n_in, "n_out": self.model.n_out}).encode()
        return Archives(client={"shape.json": shape}, server=self.files())

    def logits(self, x: Array) -> Array:
        found = self.model.logits(x)
        found[:, 0] += self.offset
        return found

    def bound(self, x: Array) -> Bound:
        error = np.zeros((len(x), self.model.n_out))
        error[:, 0] = abs(self.offset) * (1 + 1e-9) + 1e-12
        return Bound(error, "proved", "the offset, and one rounding of the sum")

    def engines(self) -> Mapping[str, Any]:
        return {"single": SinglePrecision(self)}

    def studies(self) -> Mapping[str, Any]:
        return {"shake": Shake(self.model)}

    def cost(self) -> tuple[Quantity, ...]:
        return (Quantity("parameters", self.model.parameters, "", "exact", who_sees="server"),)

    def summary(self) -> Mapping[str, Json]:
        return {"reference": "the float network itself", "offset": self.offset}

    def panels(self, x: Array) -> tuple[Panel, ...]:
        counts, edges = np.histogram(self.logits(x), bins=8)
        histogram = {"edges": edges.tolist(), "counts": counts.tolist()}
        return (
            Panel("Logits of the copy", "histogram", histogram, x_label="logit", y_label="count"),
            Panel("Size", "table", {"columns": ["what", "count"], "rows": [["parameters", self.model.parameters]]}),
        )


class SinglePrecision:
    """The real run: the logits rounded to single precision."""

    requires = None

    def __init__(self, deployment: ToyDeployment) -> None:
        self.deployment = deployment

    def __enter__(self) -> SinglePrecision:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def run(self, x: Array) -> EngineRun:
        rounded = self.deployment.logits(x).astype(np.float32).astype(np.float64)
        return EngineRun(rounded, {"client": 0.0, "server": 1e-3 * len(x)})


class ShakeOptions(BaseModel):
    """Options of the study."""

    model_config = ConfigDict(extra="forbid")

    amplitudes: list[float] = Field(default=[0.0, 0.1, 1.0], description="standard deviations of the noise")
    samples: int = Field(4, gt=0, description="noises for each amplitude")


class Shake:
    """How far the inputs may shake: agreement of noisy rows with clean ones."""

    summary = "agreement of noisy rows with clean ones"
    options = ShakeOptions
    columns = (
        Column("amplitude", "", "standard deviation of the noise"),
        Column("sample", "", "which noise"),
        Column("agreement", "", "share of rows decided as without noise"),
    )

    def __init__(self, model: Model) -> None:
        self.model = model

    def cases(self, options: ShakeOptions, rng: np.random.Generator) -> Iterator[Case]:
        seed = int(rng.integers(2**31))
        for amplitude in options.amplitudes:
            for sample in range(options.samples):
                yield Case(f"{amplitude}/{sample}", {"amplitude": amplitude, "sample": sample, "seed": seed})

    def solve(self, case: Case, x: Array) -> Mapping[str, Any]:
        amplitude, sample = case.parameters["amplitude"], case.parameters["sample"]
        noise = np.random.default_rng([case.parameters["seed"], sample]).normal(size=x.shape)
        agrees = self.model.decision.agree(self.model.logits(x), self.model.logits(x + amplitude * noise))
        return {"amplitude": amplitude, "sample": sample, "agreement": float(np.mean(agrees))}


def _read_rows(data: bytes, width: int, what: str) -> Array:
    if not data or len(data) % (8 * width) or len(data) > 8 * width * MAX_ROWS:
        raise WireError(
            f"{what} of {len(data)} bytes", code=f"{what}_size", http_status=422, hint="rows of float64"
        )
    rows = np.frombuffer(data, "<f8").reshape(-1, width)
    if not np.isfinite(rows).all():
        raise WireError(f"{what} is not finite", code=f"{what}_value", http_status=422, hint="send finite values")
    return rows.astype(np.float64)


class ToyServer:
    """The server's side: computes in the clear."""

    def __init__(self, deployment: ToyDeployment) -> None:
        self.deployment = deployment
        n_in, n_out = deployment.model.n_in, deployment.model.n_out
        self.limits = Limits(8 * n_in * MAX_ROWS, 8 * n_out * MAX_ROWS, rows_per_request=MAX_ROWS)
        self.signature = Signature(Tensor("rows", "BYTES", (1,)), Tensor("logits", "BYTES", (1,)))

    def check_key(self, path: Path) -> None:
        raise WireError("this model has no keys", code="keyless", http_status=409, hint="send no key")

    def load_key(self, path: Path) -> object:
        raise WireError("this model has no keys", code="keyless", http_status=409, hint="send no key")

    def infer(self, request: bytes, key: object | None) -> bytes:
        rows = _read_rows(request, self.deployment.model.n_in, "request")
        return bytes(self.deployment.logits(rows).astype("<f8").tobytes())


class ToyClient:
    """The client's side: rows as they are."""

    def __init__(self, interface: Interface) -> None:
        self.guard = interface.guard
        self.features = interface.guard.features
        self.decision: Decision = interface.decision
        self._n_out = interface.n_out

    def generate_keys(self) -> None:
        return None

    def encrypt(self, x: Array, secret: bytes | None) -> bytes:
        return bytes(x.astype("<f8").tobytes())

    def decrypt(self, answer: bytes, secret: bytes | None) -> Array:
        return _read_rows(answer, self._n_out, "answer")
