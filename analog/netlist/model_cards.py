"""Diode model cards, written and read: ``.model NAME D(IS=… N=… RS=…)``.

Reading refuses what our law does not have (breakdown, recombination, high injection) instead of dropping it, so a
user's own card means the same to the native solver as to ngspice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from analog.devices.diode import DiodeModel
from analog.netlist.numbers import parse_number
from deploy.errors import InputError

__all__ = ["card_parameters", "read_model_card", "write_model_card"]

_FIELDS: Mapping[str, str] = {
    "is": "saturation_A",
    "n": "emission",
    "rs": "series_ohm",
    "eg": "gap_eV",
    "xti": "temperature_exponent",
    "tnom": "nominal_celsius",
    "cjo": "junction_F",
    "vj": "junction_V",
    "m": "grading",
    "tt": "transit_s",
}
_ALIASES = {"js": "is", "cj0": "cjo", "cj": "cjo", "pb": "vj", "mj": "m", "pt": "xti", "tref": "tnom"}
_NEUTRAL = {"type", "mfg", "iave", "vpk", "vrrm", "fc", "kf", "af", "level", "area"}
"""Parameters without effect on an operating point (noise, forward-bias capacitance, vendors' remarks)."""

_CARD = re.compile(r"^\s*\.model\s+(?P<name>\S+)\s+d\b\s*\(?(?P<body>.*?)\)?\s*$", re.IGNORECASE | re.DOTALL)


def write_model_card(model: DiodeModel, name: str, *, celsius: float = 27.0) -> str:
    """Write one card. A model without temperature law gets TNOM = `celsius`, the ambient temperature.

    >>> plain = DiodeModel("plain", saturation_A=1e-12, emission=0.001, nominal_celsius=None)
    >>> write_model_card(plain, "plain", celsius=85.0)
    '.model plain d(is=1e-12 n=0.001 tnom=85.0)'
    """
    parts = [f"{key}={value!r}" for key, value in card_parameters(model, celsius=celsius).items()]
    return f".model {name} d({' '.join(parts)})"


def card_parameters(model: DiodeModel, *, celsius: float = 27.0) -> dict[str, float]:
    """The parameters of a card, by SPICE's names; those that have SPICE's default are left out."""
    plain = DiodeModel(name="", saturation_A=1.0)
    found: dict[str, float] = {}
    for key, attribute in _FIELDS.items():
        value = getattr(model, attribute)
        if attribute == "nominal_celsius":
            found[key] = celsius if value is None else value
        elif key in ("is", "n") or value != getattr(plain, attribute):
            found[key] = value
    return found


def read_model_card(text: str) -> DiodeModel:
    """Read one card of a diode, continuation lines (``+``) included.

    Raises
    ------
    InputError : it is not a diode's card, or has a parameter that would change the law.

    Examples
    --------
    >>> read_model_card(".model DFAST D(IS=1n N=1.9 RS=2 CJO=2p)").saturation_A
    1e-09
    """
    joined = re.sub(r"\n\s*\+", " ", text.strip())
    match = _CARD.match(joined)
    if match is None:
        raise InputError(
            f"no diode model card: {joined.splitlines()[0][:60] if joined else 'the text is empty'}",
            remedy="write .model NAME D(IS=1n N=1.8 RS=1)",
        )
    values: dict[str, float] = {}
    for key, raw in re.findall(r"(\w+)\s*=\s*([^\s,()]+)", match["body"].lower()):
        known = _ALIASES.get(key, key)
        if known in _FIELDS:
            values[_FIELDS[known]] = parse_number(raw)
        elif known in ("bv", "vb", "var"):
            values["reverse_V"] = parse_number(raw)
        elif known == "ibv" or known in _NEUTRAL:
            continue
        elif known in ("nbv", "ik", "ikf", "ikr", "isr", "nr", "jtun", "jsw", "isw"):
            if parse_number(raw) != 0:
                raise InputError(
                    f"parameter {key.upper()} changes the diode's law in a way the native solver does not have",
                    place=f"model {match['name']}",
                    remedy="leave it out, or simulate your netlist with ngspice alone",
                )
        else:
            raise InputError(f"unknown parameter {key.upper()}", place=f"model {match['name']}")
    if "saturation_A" not in values:
        values["saturation_A"] = 1e-14
    return DiodeModel(name=match["name"], source="the user's own card", **values)  # type: ignore[arg-type]
