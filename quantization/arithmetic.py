"""How a quantised network is evaluated: in float64 from codes and scales, or by its integer program.

One of the two is the deployment's reference; ``arithmetic.json`` names it and holds the grids that the integer
program is compiled from, so the program itself is never stored twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deploy.arrays import Array
from deploy.errors import BundleError
from quantization.files import read_network, write_network
from quantization.integer import Bits, Grids, IntegerMlp, compile_integer
from quantization.network import QuantizedMlp

__all__ = ["ARITHMETIC", "Arithmetic", "Reference", "read_arithmetic"]

Reference = Literal["float", "integer"]

ARITHMETIC = "arithmetic.json"


class _Grids(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    bits: Bits
    origin: list[float]
    reach: float = Field(gt=0)
    steps: list[float]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")
    schema_version: Literal[1] = 1
    reference: Reference
    grids: _Grids | None


@dataclass(frozen=True, eq=False)
class Arithmetic:
    """A network, the grids of its integer program (None where it has none), and which of the two is the
    reference."""

    network: QuantizedMlp
    grids: Grids | None
    reference: Reference = "float"

    @cached_property
    def program(self) -> IntegerMlp | None:
        """The integer program, or None."""
        return None if self.grids is None else compile_integer(self.network, self.grids)

    def logits(self, x: Array) -> Array:
        """The reference: (batch, n_in) -> (batch, n_out)."""
        if self.reference == "integer":
            assert self.program is not None
            return self.program.logits(x)
        return self.network.logits(x)

    def describe(self) -> str:
        """What the reference computes, in words."""
        if self.reference == "integer" and self.grids is not None:
            return f"integer program: ternary codes, int{self.grids.bits} activations, fixed-point rescale"
        return "codes times scales in float64, activations not rounded"

    def files(self) -> dict[str, bytes]:
        """Everything that a server needs."""
        grids = None
        if self.grids is not None:
            grids = _Grids(
                bits=self.grids.bits,
                origin=self.grids.origin.tolist(),
                reach=self.grids.reach,
                steps=list(self.grids.steps),
            )
        document = _Document(reference=self.reference, grids=grids)
        text = json.dumps(document.model_dump(), indent=1, allow_nan=False) + "\n"
        return {**write_network(self.network), ARITHMETIC: text.encode()}


def read_arithmetic(files: Mapping[str, bytes]) -> Arithmetic:
    """Read what :meth:`Arithmetic.files` gave; raises :class:`deploy.errors.BundleError` on anything else."""
    network = read_network(files)
    if ARITHMETIC not in files:
        raise BundleError(f"{ARITHMETIC} is missing")
    try:
        document = _Document.model_validate_json(files[ARITHMETIC])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the top"
        raise BundleError(f"{first['msg']} at {where}", place=ARITHMETIC) from None
    stored = document.grids
    if stored is None:
        if document.reference == "integer":
            raise BundleError("the integer program is the reference and has no grids", place=ARITHMETIC)
        return Arithmetic(network, None)
    if (
        len(stored.origin) != network.n_in
        or len(stored.steps) != len(network.layers) - 1
        or min(stored.steps, default=1) <= 0
    ):
        raise BundleError("grids that do not fit the network", place=ARITHMETIC)
    grids = Grids(stored.bits, np.array(stored.origin), stored.reach, tuple(stored.steps))
    return Arithmetic(network, grids, document.reference)
