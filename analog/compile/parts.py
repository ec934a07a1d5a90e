"""The parts that a circuit is built from."""

from __future__ import annotations

from dataclasses import dataclass

from analog.compile.cells import Cell
from analog.devices.cards import MODEL_CARDS
from analog.devices.diode import DiodeModel
from analog.netlist.model_cards import read_model_card
from analog.options import CircuitOptions
from deploy.errors import UsageError
from deploy.registry import nearest

__all__ = ["Parts", "choose_diode"]


@dataclass(frozen=True, slots=True)
class Parts:
    """Cell, conductance of the largest weight (S), bias rails (V)."""

    cell: Cell
    max_conductance_S: float
    bias_rail_V: float

    @classmethod
    def of(cls, options: CircuitOptions) -> Parts:
        """Read them from the target's options."""
        cell = Cell(
            kind=options.cell,
            diode=choose_diode(options.diode),
            series_ohm=options.series_ohm,
            load_ohm=options.load_ohm,
            op_amp_gain=options.op_amp_gain,
            op_amp_rail_V=options.supply_volts,
        )
        return cls(cell, options.max_conductance_siemens, options.full_scale_volts)


def choose_diode(text: str) -> DiodeModel:
    """Find a model card by name, or read the user's own ``.model`` text; raises :class:`deploy.errors.UsageError`
    for an unknown name and :class:`deploy.errors.InputError` for a card outside our law."""
    if text.lstrip().lower().startswith(".model"):
        return read_model_card(text)
    by_name = {name.lower(): model for name, model in MODEL_CARDS.items()}
    if text.lower() not in by_name:
        raise UsageError(f"no diode {text!r}", remedy=nearest(text, list(MODEL_CARDS)))
    return by_name[text.lower()]
