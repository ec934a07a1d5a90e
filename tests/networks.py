"""Random networks and rows for tests."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from deploy.model import Affine, Decision, Equilibrium, Mlp


def random_mlp(
    rng: np.random.Generator, widths: tuple[int, ...], *, activation: str = "relu", rule: str | None = None
) -> Mlp:
    """He-initialised network of these widths with biases."""
    layers = tuple(
        Affine(rng.normal(size=(n_out, n_in)) * np.sqrt(2 / n_in), rng.normal(size=n_out) * 0.1, f"fc{index}")
        for index, (n_in, n_out) in enumerate(pairwise(widths))
    )
    rule = rule or ("argmax" if widths[-1] > 1 else "sign")
    return Mlp(layers, (activation,) * (len(layers) - 1), Decision(rule, 0.1 if rule == "value" else 0.0))


def random_equilibrium(rng: np.random.Generator, n_in: int, n: int, n_out: int, *, m: float = 0.3) -> Equilibrium:
    """Well-posed network: W = (1-m) I - A'A + B - B'."""
    a, b = rng.normal(size=(2, n, n)) / np.sqrt(n)
    W = (1 - m) * np.eye(n) - a.T @ a + b - b.T
    return Equilibrium(
        W,
        rng.normal(size=(n, n_in)),
        rng.normal(size=n),
        rng.normal(size=(n_out, n)),
        rng.normal(size=n_out),
        Decision("argmax"),
    )


@st.composite
def mlps(draw: st.DrawFn, *, max_width: int = 8, max_hidden: int = 3) -> Mlp:
    """Networks of any small shape."""
    widths = tuple(draw(st.lists(st.integers(1, max_width), min_size=2, max_size=2 + max_hidden)))
    seed = draw(st.integers(0, 2**32 - 1))
    rule = "sign" if widths[-1] == 1 else draw(st.sampled_from(["argmax", "argmin", "value"]))
    activation = draw(st.sampled_from(["relu", "square"]))
    return random_mlp(np.random.default_rng(seed), widths, activation=activation, rule=rule)
