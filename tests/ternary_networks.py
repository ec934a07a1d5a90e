"""Random quantised networks for tests: every form that a file may hold."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from quantization.network import Plane, QuantizedLayer, QuantizedMlp


def random_network(
    rng: np.random.Generator,
    widths: tuple[int, ...],
    *,
    levels: int = 1,
    planes: int = 1,
    group: int = 0,
    columns: bool = False,
) -> QuantizedMlp:
    """Random codes and scales of these widths; `group` columns share a scale, 0 for all."""
    layers = []
    for index, (n_in, n_out) in enumerate(pairwise(widths)):
        size = group or n_in
        made = tuple(
            Plane(
                rng.integers(-levels, levels + 1, size=(n_out, n_in)),
                rng.uniform(0.2, 1.0, size=(n_out, -(-n_in // size))) * 3.0**-at / levels,
                levels,
                size,
            )
            for at in range(planes)
        )
        factors = 2.0 ** rng.integers(-3, 4, size=n_in) if columns and index == 0 else None
        layers.append(QuantizedLayer(made, rng.normal(size=n_out), "random", f"fc{index}", factors))
    return QuantizedMlp.of(layers)


def extreme_rows(n_in: int, low: int, high: int) -> np.ndarray:
    """All least, all largest, all zero, all one, and alternating rows."""
    rows = [np.full(n_in, value) for value in (low, high, 0, 1, -1)]
    rows += [np.where(np.arange(n_in) % 2, low, high), np.where(np.arange(n_in) % 2, high, low)]
    return np.array(rows)
