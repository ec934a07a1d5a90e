"""Device laws and model cards."""

from analog.devices.cards import BAT54, D1N4148, IDEAL, MODEL_CARDS, NEAR_IDEAL
from analog.devices.diode import DiodeModel

__all__ = ["BAT54", "D1N4148", "IDEAL", "MODEL_CARDS", "NEAR_IDEAL", "DiodeModel"]
