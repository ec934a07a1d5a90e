"""Equilibrium networks and their digital solver."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import random_equilibrium

from deploy.errors import DataError, InputError
from deploy.model import Decision, Equilibrium


def _complementary(net: Equilibrium, x: np.ndarray) -> np.ndarray:
    """Equilibrium by Lemke-free enumeration of active sets: exact for a few units."""
    n = len(net.W)
    q = x @ net.U.T + net.b
    for mask in range(2**n):
        active = [i for i in range(n) if mask >> i & 1]
        z = np.zeros(n)
        if active:
            z[active] = np.linalg.solve(np.eye(len(active)) - net.W[np.ix_(active, active)], q[active])
        slack = z - net.W @ z - q
        if (z >= -1e-12).all() and (slack[z <= 0] >= -1e-12).all():
            return z
    raise AssertionError("no active set fits")


@given(st.integers(0, 2**32 - 1), st.sampled_from(["peaceman-rachford", "forward-backward"]))
@settings(max_examples=40, deadline=None)
def test_both_splittings_find_the_equilibrium_that_enumeration_finds(seed: int, method: str) -> None:
    rng = np.random.default_rng(seed)
    net = random_equilibrium(rng, 3, int(rng.integers(1, 7)), 2)
    x = rng.normal(size=(2, 3))
    found = net.solve(x, method=method, tolerance=1e-11, max_iterations=200_000)
    assert found.outcome == "converged"
    for row in range(2):
        # residual 1e-11 over m = 0.3, times the conditioning of I - W below 100
        assert found.z[row] == pytest.approx(_complementary(net, x[row]), abs=1e-8)


def test_peaceman_rachford_needs_fewer_iterations(rng: np.random.Generator) -> None:
    net = random_equilibrium(rng, 5, 40, 3)
    x = rng.normal(size=(4, 5))
    fast = net.solve(x)
    slow = net.solve(x, method="forward-backward", max_iterations=200_000)
    assert fast.outcome == slow.outcome == "converged"
    assert fast.iterations < slow.iterations / 2
    assert fast.z == pytest.approx(slow.z, abs=1e-9)


def test_the_residual_is_recomputed_and_honest(rng: np.random.Generator) -> None:
    net = random_equilibrium(rng, 5, 12, 3)
    x = rng.normal(size=(4, 5))
    found = net.solve(x, max_iterations=2)
    assert found.outcome == "iteration limit"
    assert "raise max_iterations" in found.hint
    expected = np.abs(found.z - np.maximum(found.z @ net.W.T + x @ net.U.T + net.b, 0)).max(axis=1)
    assert found.residual == pytest.approx(expected, rel=1e-12)  # the order of summation


def test_a_diverging_iteration_says_so(rng: np.random.Generator) -> None:
    net = random_equilibrium(rng, 5, 12, 3)
    found = net.solve(rng.normal(size=(1, 5)), method="forward-backward", alpha=1e3)
    assert found.outcome == "not finite"
    assert "peaceman-rachford" in found.hint


def test_a_network_that_is_not_well_posed_is_refused() -> None:
    with pytest.raises(InputError, match=r"W: not well-posed: the least eigenvalue .* is -0\.5"):
        Equilibrium(np.array([[1.5]]), np.eye(1), np.zeros(1), np.eye(1), np.zeros(1), Decision("value"))


def test_shapes_and_entries_are_checked() -> None:
    good = {"W": np.zeros((2, 2)), "U": np.ones((2, 3)), "b": np.zeros(2), "V": np.ones((4, 2)), "c": np.zeros(4)}
    Equilibrium(**good, decision=Decision("argmax"))
    for name, bad, match in [
        ("W", np.zeros((2, 3)), r"W: shape \(2, 3\)"),
        ("b", np.zeros(3), r"b: shape \(3,\), expected \(2,\)"),
        ("V", np.ones((4, 3)), r"V: shape"),
        ("c", np.array([0, 0, np.nan, 0]), "c: 1 entries that are NaN"),
    ]:
        with pytest.raises(InputError, match=match):
            Equilibrium(**{**good, name: bad}, decision=Decision("argmax"))


def test_unsolved_rows_are_an_error_not_a_number(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    net = random_equilibrium(rng, 2, 6, 2)
    solve = Equilibrium.solve
    monkeypatch.setattr(Equilibrium, "solve", lambda self, x: solve(self, x, max_iterations=1))
    with pytest.raises(DataError, match="no equilibrium found"):
        net.logits(rng.normal(size=(1, 2)))


def test_a_trained_network_gives_its_published_answers(inputs: Path) -> None:
    folder = inputs / "models" / "reference"
    arrays = np.load(folder / "digits_mondeq_64_48_10.npz")
    expected = np.load(folder / "digits_mondeq_64_48_10.io.npz")
    net = Equilibrium(*(arrays[name] for name in "WUbVc"), decision=Decision("argmax"))
    assert net.monotonicity >= float(arrays["m"]) - 1e-6  # trained in float32
    assert net.logits(expected["x"]) == pytest.approx(expected["y"], abs=1e-4)  # the file's own solver tolerance


def test_labels_and_names_that_do_not_fit_are_refused() -> None:
    net = random_equilibrium(np.random.default_rng(0), 3, 5, 2)
    for changes, cause in (
        ({"classes": ("a",)}, "1 class labels for 2 classes"),
        ({"features": ("x", "y")}, "2 feature names for 3 inputs"),
        ({"input_shape": (2, 2)}, r"input shape \(2, 2\) does not hold 3 values"),
    ):
        with pytest.raises(InputError, match=cause):
            net.with_(**changes)
