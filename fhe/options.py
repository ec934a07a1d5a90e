"""What a user may ask of the ``ckks`` target."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from fhe.plan.options import PlanOptions

__all__ = ["CkksOptions", "Family", "Fit"]

Family = Literal["shared", "per-unit", "head"]
Fit = Literal["auto", "least-squares", "anchored", "kl", "soft", "rch", "nu", "exact"]


def _whole_number(value: object) -> object:
    """Take "4" for 4: the command hands over text."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _two_ends(value: object) -> object:
    """Take "0:1" for (0, 1)."""
    return value.split(":") if isinstance(value, str) else value


def _in_order(value: tuple[float, float] | None) -> tuple[float, float] | None:
    if value is not None and value[0] > value[1]:
        raise PydanticCustomError("order", "the lower end exceeds the upper end")
    return value


class CkksOptions(PlanOptions):
    """Options of the ``ckks`` target, those of its plan among them; ``--set ckks.NAME=VALUE``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    family: Family = Field(
        "per-unit",
        description="shared: one polynomial for a whole layer, as in arXiv 2605.22237; per-unit: one for each "
        "hidden unit, at the same encrypted cost; head: per unit and output (the output weights are fitted too)",
    )
    degree: Annotated[Literal[2, 4, 6], BeforeValidator(_whole_number)] = Field(
        2, description="degree of the polynomials; 4 and 6 cost one level more"
    )
    fit: Fit = Field(
        "auto",
        description="auto: least squares, kl and hinge candidates by cross-validation, keeping least squares where "
        "nothing is better; exact: every calibration decision kept, with a certificate, or a proof that none can",
    )
    refine: Literal["none", "distill"] = Field(
        "none",
        description="distill: retrain all weights towards the original's logits, without labels (needs torch)",
    )
    gamma: float = Field(
        0.1, gt=0, description="margin that exact and anchored ask of each calibration row, in logits"
    )
    strength: float = Field(100.0, gt=0, description="weight C of a violated margin in fit=anchored and fit=soft")
    cap: float = Field(
        1.0, gt=0, le=1, description="largest weight mu of one row in fit=rch and fit=nu; 1 is the hull"
    )
    agreement: float | None = Field(
        None,
        gt=0,
        le=1,
        description="take the cheapest family, degree and refine that reach this by cross-validation",
    )
    selection_rows: str | None = Field(
        None,
        pattern=r"^\d*:\d*$",
        description="a:b, calibration rows that the network was not trained on; cross-validation is scored on them",
    )
    augment: bool = Field(
        False,
        description="let fits see small perturbations of the calibration rows too (labels are free); fit=auto does so only "
        "where they lead by more than one standard error in cross-validation",
    )
    domain: Annotated[tuple[float, float] | None, BeforeValidator(_two_ends), AfterValidator(_in_order)] = Field(
        None,
        description="low:high, the box every input lies in, if you can promise one, for bounds that are proved",
    )
    baselines: bool = Field(False, description="also fit and print the usual polynomial replacements")
