"""Options of the ``ternary`` target; light to import."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["TernaryOptions"]


class TernaryOptions(BaseModel):
    """What ``--set ternary.NAME=VALUE`` takes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Literal["auto", "feedback", "absmean", "twn", "exact", "sign"] = Field(
        "auto",
        description="auto keeps the best candidate by calibration KL; the others are one method, as published",
    )
    levels: Literal[3, 7, 15] = Field(3, description="levels of the grid: 3 is ternary")
    planes: Literal[1, 2] = Field(1, description="2 for the sum of two ternary planes, 3.2 bits a weight")
    int8_columns: float = Field(
        0.0,
        ge=0,
        le=0.5,
        description="share of each layer's columns, those whose signs matter most, that stay in int8",
    )
    int8_last_layer: bool = Field(False, description="keep the last layer in int8")
    agreement: float | None = Field(
        None,
        gt=0,
        le=1,
        description="agreement on the calibration rows below which training is tried (extra torch)",
    )
    beam: int | None = Field(
        None,
        ge=0,
        le=256,
        description="width of the K-best refinement, 0 for none; by default what the sizes allow",
    )
    reference: Literal["float", "integer"] = Field(
        "integer",
        description="what counts as the deployment's answer: the integer program, the same bits wherever it runs, or "
        "codes times scales in float64",
    )
    activations: Literal["auto", "8", "16"] = Field(
        "auto",
        description="bits of activations in the integer program; auto takes 16 where 8 cost over a tenth of the KL",
    )
