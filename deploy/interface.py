"""What a client must know of a model, and nothing more: no weight, no layer.

Both derived archives hold it as ``interface.json``; a target finds it among the files it is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from deploy.arrays import Array
from deploy.model.decision import Decision, Rule

__all__ = ["INTERFACE_FILE", "Feature", "InputGuard", "Interface"]

INTERFACE_FILE = "interface.json"


@dataclass(frozen=True, slots=True)
class Feature:
    """One input of the model: name, unit, and the box that it was calibrated or declared on."""

    name: str
    low: float
    high: float
    unit: str = ""


@dataclass(frozen=True, slots=True)
class InputGuard:
    """A box per feature: what the client warns about. `source` is "stated" by the user or "calibration"."""

    features: tuple[Feature, ...]
    source: str

    @property
    def low(self) -> Array:
        """(n_in,) lower ends."""
        return np.array([feature.low for feature in self.features])

    @property
    def high(self) -> Array:
        """(n_in,) upper ends."""
        return np.array([feature.high for feature in self.features])

    def outside(self, x: Array) -> Array:
        """Say which values leave the box: (batch, n_in) -> (batch, n_in) of bool."""
        return np.asarray((x < self.low) | (x > self.high))


class _Feature(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    low: float
    high: float
    unit: str = ""


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")
    rule: Rule
    tolerance: float
    classes: list[str | int] | None
    n_out: int
    input_shape: list[int]
    tail: str
    features: list[_Feature]
    guard_source: str


@dataclass(frozen=True, slots=True)
class Interface:
    """Decision rule, class labels, input shape, tail, features with their guard."""

    decision: Decision
    classes: tuple[str | int, ...] | None
    n_out: int
    input_shape: tuple[int, ...]
    tail: str
    guard: InputGuard

    @property
    def n_in(self) -> int:
        """Number of inputs."""
        return len(self.guard.features)

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        document = _Document(
            rule=self.decision.rule,
            tolerance=self.decision.tolerance,
            classes=None if self.classes is None else list(self.classes),
            n_out=self.n_out,
            input_shape=list(self.input_shape),
            tail=self.tail,
            features=[_Feature(name=f.name, low=f.low, high=f.high, unit=f.unit) for f in self.guard.features],
            guard_source=self.guard.source,
        )
        return document.model_dump_json(indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> Interface:
        """Read what :meth:`to_bytes` wrote; raises :class:`deploy.errors.BundleError` otherwise."""
        from pydantic import ValidationError

        from deploy.errors import BundleError

        try:
            document: Any = _Document.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise BundleError(f"{first['msg']} at {where or 'the top'}", place=INTERFACE_FILE) from None
        return cls(
            decision=Decision(document.rule, document.tolerance),
            classes=None if document.classes is None else tuple(document.classes),
            n_out=document.n_out,
            input_shape=tuple(document.input_shape),
            tail=document.tail,
            guard=InputGuard(
                tuple(Feature(f.name, f.low, f.high, f.unit) for f in document.features),
                document.guard_source,
            ),
        )
