"""Numbers as SPICE reads them."""

from __future__ import annotations

import math
import re

from deploy.errors import InputError

__all__ = ["parse_number"]

_SCALES = {
    "t": 1e12,
    "g": 1e9,
    "meg": 1e6,
    "k": 1e3,
    "mil": 25.4e-6,
    "m": 1e-3,
    "u": 1e-6,
    "n": 1e-9,
    "p": 1e-12,
    "f": 1e-15,
    "a": 1e-18,
}
_NUMBER = re.compile(
    r"(?P<digits>[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)(?P<scale>meg|mil|[tgkmunpfa])?[a-z]*", re.I
)


def parse_number(text: str) -> float:
    """Read a SPICE number: a scale letter, then letters that mean nothing. "1M" is a milli, "1Meg" a million.

    Raises
    ------
    InputError : it is no finite number.

    Examples
    --------
    >>> parse_number("9k"), parse_number("1M"), parse_number("1Meg"), parse_number("5pF")
    (9000.0, 0.001, 1000000.0, 5e-12)
    """
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{text[:40]!r} is no number", remedy="every value must be a finite number")
    digits = float(match["digits"])
    scale = match["scale"]
    value = digits * _SCALES[scale.lower()] if scale else digits
    if not math.isfinite(value):
        raise InputError(f"{text[:40]!r} is not finite", remedy="every value must be a finite number")
    return value
