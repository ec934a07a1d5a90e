"""What ``separation.json`` of a bundle must look like: a manifest vouches for its bytes, not for its sense."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deploy.errors import BundleError

__all__ = ["read_separation_report"]

_Number = Annotated[float, Field(allow_inf_nan=False)]
_Reached = Annotated[float, Field(ge=-(2.0**101), le=2.0**101)]
"""A pre-activation: beyond 2^100 no network is planned."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Box(_Part):
    low: list[_Reached]
    high: list[_Reached]


class _Candidate(_Part):
    fit: str
    agreement: _Number
    standard_error: _Number
    distance: _Number


class _Selection(_Part):
    rule: str
    picked: str
    candidates: list[_Candidate]


class _Report(_Part):
    family: str
    degree: int
    fit: str
    refine: str
    separable: bool | None
    min_margin: _Number | None
    tied_rows: int
    certificates: list[dict[str, Any]]
    units: list[dict[str, int]]
    warnings: list[str]
    guard: list[_Box] = []
    selection: _Selection | None = None


def read_separation_report(data: bytes, hidden: Sequence[int]) -> dict[str, Any]:
    """Check the report of a separation for a network with hidden layers of these widths.

    Raises
    ------
    BundleError : not JSON, or not such a report; the place is named.
    """
    try:
        report = _Report.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise BundleError(
            f"{where}: {first['msg']}", place="separation.json", remedy="convert again with this release"
        ) from None
    if "guard" in report.model_fields_set:
        widths = [(len(box.low), len(box.high)) for box in report.guard]
        if widths != [(width, width) for width in hidden]:
            raise BundleError(
                f"guard has boxes of {widths} units, the network has hidden layers of {list(hidden)}",
                place="separation.json",
                remedy="convert again with this release",
            )
    document: dict[str, Any] = json.loads(data)
    return document
