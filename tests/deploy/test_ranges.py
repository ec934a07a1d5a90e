"""Boxes around pre-activations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import mlps, random_mlp

from deploy.errors import InputError
from deploy.interface import Feature, InputGuard
from deploy.model import Affine, Decision, Mlp
from deploy.ranges import Box, calibrated_boxes, calibration_guard, input_box, interval_boxes


@given(mlps(), st.integers(0, 2**32 - 1))
@settings(max_examples=80)
def test_proved_boxes_hold_for_every_input_of_the_box(model: Mlp, seed: int) -> None:
    rng = np.random.default_rng(seed)
    centre, radius = rng.normal(size=model.n_in) * 3, rng.exponential(size=model.n_in)
    box = Box(centre - radius, centre + radius, "proved")
    corners = rng.choice([-1.0, 1.0], size=(40, model.n_in))
    inside = rng.uniform(-1, 1, size=(40, model.n_in))
    x = np.clip(centre + radius * np.vstack([corners, inside]), box.low, box.high)
    for found, values in zip(interval_boxes(model, box), model.preactivations(x), strict=True):
        assert found.kind == "proved"
        assert found.contains(values).all()


def test_the_first_box_is_tight_up_to_rounding(rng: np.random.Generator) -> None:
    model = random_mlp(rng, (6, 4, 2))
    box = Box(-np.ones(6), np.ones(6), "proved")
    layer = model.affines[0]
    reach = np.abs(layer.weight).sum(axis=1)
    found = interval_boxes(model, box)[0]
    assert found.high == pytest.approx(layer.bias + reach, rel=1e-13)
    assert found.low == pytest.approx(layer.bias - reach, rel=1e-13)
    assert (found.high > layer.bias + reach).all()


def test_a_square_layer_has_a_box_from_zero() -> None:
    model = Mlp((Affine([[1.0]], [0.0]), Affine([[1.0]], [0.0])), ("square",), Decision("sign"))
    found = interval_boxes(model, Box(np.array([-3.0]), np.array([2.0]), "proved"))[1]
    assert found.low[0] == pytest.approx(0.0, abs=1e-13)
    assert found.high[0] == pytest.approx(9.0, rel=1e-13)
    found = interval_boxes(model, Box(np.array([-3.0]), np.array([-2.0]), "proved"))[1]
    assert found.low[0] == pytest.approx(4.0, rel=1e-13)


def test_calibrated_boxes_are_the_extremes_and_widen(rng: np.random.Generator) -> None:
    model = random_mlp(rng, (3, 4, 2))
    x = rng.normal(size=(50, 3))
    plain, wide = calibrated_boxes(model, x), calibrated_boxes(model, x, margin=0.5)
    for box, wider, values in zip(plain, wide, model.preactivations(x), strict=True):
        assert box.kind == "estimated"
        assert box.low.tolist() == values.min(axis=0).tolist()
        assert box.high.tolist() == values.max(axis=0).tolist()
        assert wider.high - wider.low == pytest.approx(2 * (box.high - box.low))
        assert box.radius.tolist() == np.abs(values).max(axis=0).tolist()


@given(st.integers(0, 2**32 - 1), st.floats(-6, 6))
def test_a_calibration_guard_holds_its_rows_and_hides_their_digits(seed: int, exponent: float) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(20, 3)) * 10.0**exponent + rng.normal(size=3)
    x[:, 2] = x[0, 2]
    guard = calibration_guard(x)
    assert not guard.outside(x).any()
    assert guard.source == "calibration"
    width = x.max(axis=0) - x.min(axis=0)
    assert (guard.high - guard.low <= 1.3 * width + 3e-3 * np.abs(x[0]) + 1e-300)[:2].all()


def test_a_guard_flags_what_leaves_it() -> None:
    guard = InputGuard((Feature("a", 0.0, 1.0), Feature("b", -1.0, 1.0)), "stated")
    assert guard.outside(np.array([[0.5, -2.0], [1.0, 1.0]])).tolist() == [[False, True], [False, False]]
    assert input_box(guard).kind == "proved"
    assert input_box(InputGuard(guard.features, "calibration")).kind == "estimated"


def test_values_beyond_double_precision_are_refused_with_their_layer(rng: np.random.Generator) -> None:
    model = Mlp(random_mlp(rng, (3, 4, 2)).affines, ("square",), Decision("argmax"))
    for reach, layer in ((1e308, 1), (1e160, 2)):
        with pytest.raises(InputError, match=f"layer {layer} overflows double precision"):
            interval_boxes(model, Box(np.full(3, -reach), np.full(3, reach), "proved"))


def test_an_inverted_box_is_refused() -> None:
    with pytest.raises(InputError, match="lower end"):
        Box(np.array([1.0]), np.array([0.0]), "proved")
