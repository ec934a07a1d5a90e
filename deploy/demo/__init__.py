"""The digits model and rows that ``relu-deploy demo`` ships; ``examples/make_digits.py`` made them.

scikit-learn's digits (a copy of the UCI optical recognition set: 1797 images of 8 by 8 pixels, here from 0 to 1,
permuted) and a 64-32-10 network trained on the first 1200 of them.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["CALIBRATION", "HELD_OUT", "MODEL"]

_FOLDER = Path(__file__).parent

MODEL = _FOLDER / "digits.onnx"
CALIBRATION = f"{_FOLDER / 'digits.npz'}[0:1437]"
HELD_OUT = f"{_FOLDER / 'digits.npz'}[1437:1797]"
