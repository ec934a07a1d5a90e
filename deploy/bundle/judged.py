"""What a bundle's documents must look like to be drawn and judged by.

The fidelity report lies outside the manifest, so anybody may have edited it; and a manifest vouches for bytes, not for
sense.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deploy.errors import BundleError

__all__ = ["Number", "read_guard", "read_report"]

Number = Annotated[float, Field(allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, le=100_000_000)]


class _Run(BaseModel):
    model_config = ConfigDict(extra="allow")

    engine: str
    rows: _Count
    agreement: Number
    agreement_interval: tuple[Number, Number] | None = None
    max_abs_error: Number | None = None
    seconds_per_row: dict[str, Number] = {}
    failures: list[Any] = []


class _About(BaseModel):
    model_config = ConfigDict(extra="allow")

    rows: _Count | None = None
    source: str | None = None
    rows_sha256: str | None = None


class _Entry(BaseModel):
    model_config = ConfigDict(extra="allow")

    rows: _Count | None = None
    reference: str = ""
    agreement: Number | None = None
    agreement_interval: tuple[Number, Number] | None = None
    accuracy: Number | None = None
    original_accuracy: Number | None = None
    kl: Number | None = None
    worst_logit_error: Number | None = None
    certified: Number | None = None
    disagreeing_rows: list[_Count] = []
    real: list[_Run] = []
    panels: list[dict[str, Any]] = []
    worst_rows: list[dict[str, Any]] = []
    evaluation: _About = _About()


class _Report(BaseModel):
    model_config = ConfigDict(extra="allow")

    targets: dict[str, _Entry]


class _Box(BaseModel):
    low: list[Number]
    high: list[Number]


class _Guard(BaseModel):
    kind: str
    boxes: list[_Box]


def read_guard(data: bytes, widths: Sequence[int]) -> dict[str, Any]:
    """Pre-activation boxes, one for each of the first `widths`, with as many ends.

    Raises
    ------
    BundleError : it is no such document.
    """
    try:
        boxes = _Guard.model_validate_json(data).boxes
    except ValidationError as error:
        raise BundleError(f"is damaged: {_first(error)}", remedy="convert again") from None
    for layer, (box, width) in enumerate(zip(boxes, widths, strict=False)):
        if (len(box.low), len(box.high)) != (width, width):
            raise BundleError(
                f"the box of layer {layer} has {len(box.low)} and {len(box.high)} ends for {width} units",
                remedy="convert again",
            )
    found: dict[str, Any] = json.loads(data)
    return found


def read_report(data: bytes) -> dict[str, Any]:
    """The document as it stands, where figures are numbers and names are text.

    Raises
    ------
    BundleError : it is no such document.
    """
    try:
        found = json.loads(data, parse_constant=_refuse)
        _Report.model_validate(found)
    except ValidationError as error:
        raise BundleError(f"is damaged: {_first(error)}", remedy="delete it, evaluate again") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"is damaged: {error}", remedy="delete it, evaluate again") from None
    return dict(found)


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{first['msg']} at {'.'.join(map(str, first['loc'])) or 'the top'}"


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number of JSON")
