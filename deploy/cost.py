"""Numbers that say how far they can be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Kind", "Quantity"]

Kind = Literal["exact", "proved", "estimated", "measured", "modelled"]


@dataclass(frozen=True, slots=True)
class Quantity:
    """One figure of cost, with its unit, its kind and who learns what it stands for.

    Kinds: ``exact`` counted, ``proved`` a bound with a proof, ``estimated`` a formula with assumptions,
    ``measured`` on a machine, ``modelled`` from constants of a model (a fixed cost table, a watt figure).

    >>> Quantity("galois_key_bytes", 5_900_000, "B", "exact").text()
    'galois_key_bytes 5.9e+06 B (exact)'
    """

    name: str
    value: float
    unit: str
    kind: Kind
    who_sees: str = ""

    def text(self) -> str:
        """One line for people."""
        return f"{self.name} {self.value:.4g} {self.unit} ({self.kind})"

    def document(self) -> dict[str, object]:
        """The JSON form."""
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "kind": self.kind,
            "who_sees": self.who_sees,
        }
