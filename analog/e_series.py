"""Preferred values of resistors (IEC 60063), and rounding to them."""

from __future__ import annotations

from typing import Literal

import numpy as np

from deploy.arrays import Array

__all__ = ["SERIES", "Series", "round_to_series", "series_values"]

Series = Literal["E3", "E6", "E12", "E24", "E48", "E96", "E192"]

SERIES: tuple[Series, ...] = ("E3", "E6", "E12", "E24", "E48", "E96", "E192")

_E24 = (1.0, 1.1, 1.2, 1.3, 1.5, 1.6, 1.8, 2.0, 2.2, 2.4, 2.7, 3.0, 3.3, 3.6, 3.9, 4.3, 4.7, 5.1, 5.6, 6.2)
_E24_END = (6.8, 7.5, 8.2, 9.1)


def series_values(series: Series) -> Array:
    """Values of one decade, from 1.0 up.

    E3 to E24 are a table; from E48 on they are 10^(k/n) to three digits, with 9.20 for 9.19 in E192 as the
    standard has it.

    >>> series_values("E6").tolist()
    [1.0, 1.5, 2.2, 3.3, 4.7, 6.8]
    """
    count = int(series[1:])
    if count <= 24:
        return np.array((*_E24, *_E24_END)[:: 24 // count])
    values = np.round(10 ** (np.arange(count) / count), 2)
    return np.where(values == 9.19, 9.20, values)


def round_to_series(ohm: Array, series: Series) -> Array:
    """Round each resistance to the nearest value of the series, by ratio.

    >>> round_to_series(np.array([10_400.0, 950.0]), "E24").tolist()
    [10000.0, 910.0]
    """
    values = np.append(series_values(series), 10.0)
    resistance = np.asarray(ohm, dtype=np.float64)
    decade = 10.0 ** np.floor(np.log10(resistance))
    logs = np.log(resistance / decade)
    middles = (np.log(values[1:]) + np.log(values[:-1])) / 2
    chosen = values[np.searchsorted(middles, logs)]
    # 91 * 10 is exact in binary where 9.1 * 100 is not
    return np.asarray(np.round(chosen * 100) * (decade / 100))
