"""What a user may ask of a plan."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["PlanOptions"]


class PlanOptions(BaseModel):
    """What is asked of a plan."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    packing: Literal["latency", "interleaved", "throughput"] = Field(
        default="latency",
        description="latency: one row a ciphertext; interleaved: several rows a ciphertext; throughput: one row a "
        "slot, thousands a request",
    )
    rows: int = Field(default=4, ge=1, description="rows a request with packing=interleaved; a power of two")
    objective: Literal["latency", "server", "keys", "error"] = Field(
        default="latency",
        description="what the plan makes small: server time and traffic, server time alone, evaluation keys, or logit "
        "error",
    )
    logit_error: float = Field(
        default=0.008,
        gt=0,
        description="what 8 standard deviations of a logit's error may be on typical rows; logits beyond 64 allow more",
    )
    poly_modulus_degree: int | None = Field(default=None, description="pin the ring degree N")
    coeff_modulus_bits: tuple[int, ...] | None = Field(default=None, description="pin the primes")
    pairs: bool | None = Field(
        default=None, description="two inputs in each complex slot; None: whichever is cheaper"
    )
    client_rotations: bool | None = Field(
        default=None,
        description="the client sends its input rotated: larger requests, fewer key switches, less noise; none: where "
        "the error asks for it",
    )
