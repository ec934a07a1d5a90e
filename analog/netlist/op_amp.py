"""The subcircuit that stands for an op-amp: a saturating ideal one, or the user's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from deploy.errors import InputError

__all__ = ["IDEAL_OP_AMP", "OpAmpCard", "Pin", "SaturatingOpAmp", "UserOpAmp"]

Pin = Literal["plus", "minus", "high", "low", "out"]
"""Non-inverting input, inverting input, positive supply, negative supply, output."""


class OpAmpCard(Protocol):
    """Defines the subcircuit and writes its instances."""

    def definition(self) -> Sequence[str]:
        """The ``.subckt`` lines."""
        ...

    def instance(
        self, name: str, out: str, plus: str, minus: str, *, gain: float, offset: float, low: float, high: float
    ) -> str:
        """One instance; node names are given, `gain`, `offset` (V), `low` and `high` (V) are the circuit's."""
        ...


@dataclass(frozen=True, slots=True)
class SaturatingOpAmp:
    """v_out = middle + half tanh(gain (v_plus - v_minus + offset) / half): the circuit's own law."""

    def definition(self) -> Sequence[str]:
        """A behavioural source without a constant: ngspice keeps ten digits of those that stand in expressions."""
        return (
            ".subckt saturating_op_amp out plus minus gain=1e5 offset=0 middle=0 half=12",
            "voffset shifted plus {offset}",
            "edrive drive 0 shifted minus {gain/half}",
            "btanh level 0 v=tanh(v(drive))",
            "vmiddle centre 0 {middle}",
            "eout out centre level 0 {half}",
            ".ends saturating_op_amp",
        )

    def instance(
        self, name: str, out: str, plus: str, minus: str, *, gain: float, offset: float, low: float, high: float
    ) -> str:
        """``xname out plus minus saturating_op_amp gain=…``."""
        middle, half = (low + high) / 2, (high - low) / 2
        return (
            f"x{name} {out} {plus} {minus} saturating_op_amp "
            f"gain={gain!r} offset={offset!r} middle={middle!r} half={half!r}"
        )


IDEAL_OP_AMP: OpAmpCard = SaturatingOpAmp()


@dataclass(frozen=True, slots=True)
class UserOpAmp:
    """The user's own op-amp: a vendor's ``.subckt`` and the order of its pins.

    Its gain, offset and saturation are its own; the circuit's `gain` and `offset` are not applied. Supplies come
    from the circuit's rails through sources of its own.

    Parameters
    ----------
    text : one complete ``.subckt NAME pins … .ends`` block (with the models it needs).
    pins : what its pins are, in its order. Vendors' usual order is the default.

    Raises
    ------
    InputError : no ``.subckt``, another number of pins, or a pin that the circuit needs is missing.
    """

    text: str
    pins: tuple[Pin, ...] = ("plus", "minus", "high", "low", "out")

    def __post_init__(self) -> None:
        header = self._header()
        unknown = set(self.pins) - set(get_args(Pin))
        missing = {"plus", "minus", "out"} - set(self.pins)
        if unknown or missing or len(set(self.pins)) != len(self.pins):
            raise InputError(f"pins {self.pins} must name plus, minus, out and perhaps high, low, each once")
        given = [word for word in header[2:] if "=" not in word and word.lower() != "params:"]
        if len(given) != len(self.pins):
            raise InputError(
                f"subcircuit {header[1]} has {len(given)} pins ({' '.join(given)}), {len(self.pins)} were named",
                remedy="say what each pin is, in its order, for instance plus,minus,high,low,out",
            )

    def _header(self) -> list[str]:
        joined = re.sub(r"\n\s*\+", " ", self.text)
        for line in joined.splitlines():
            if line.strip().lower().startswith(".subckt"):
                words = line.split()
                if len(words) > 2:
                    return words
        raise InputError("no .subckt line in the op-amp's text", remedy="give the whole .subckt … .ends block")

    def definition(self) -> Sequence[str]:
        """The user's text."""
        return tuple(self.text.strip().splitlines())

    def instance(
        self, name: str, out: str, plus: str, minus: str, *, gain: float, offset: float, low: float, high: float
    ) -> str:
        """``xname pins NAME``, with a source for each supply pin."""
        nodes = {
            "out": out,
            "plus": plus,
            "minus": minus,
            "high": f"x{name}_high",
            "low": f"x{name}_low",
        }
        lines = [f"x{name} {' '.join(nodes[pin] for pin in self.pins)} {self._header()[1]}"]
        for pin, level in (("high", high), ("low", low)):
            if pin in self.pins:
                lines.append(f"vsupply_{name}_{pin} {nodes[pin]} 0 {level!r}")
        return "\n".join(lines)
