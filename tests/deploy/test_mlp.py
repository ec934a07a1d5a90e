"""The feed-forward network and its decisions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import mlps, random_mlp

from deploy.errors import DataError, InputError, UsageError
from deploy.model import Affine, Decision, Mlp, apply_tail


def test_logits_are_what_the_definition_says() -> None:
    first = Affine([[1.0, -2.0], [0.5, 1.0], [0.0, -1.0]], [0.5, -1.0, 0.0])
    last = Affine([[1.0, 2.0, 3.0], [-1.0, 0.0, 1.0]], [10.0, 20.0])
    x = np.array([[1.0, 2.0], [-3.0, 1.0]])
    # by hand: z = (-2.5, 1.5, -2), (-4.5, -1.5, -1)
    relu = Mlp((first, last), ("relu",), Decision("argmax"))
    assert relu.logits(x).tolist() == [[13.0, 20.0], [10.0, 20.0]]
    square = Mlp((first, last), ("square",), Decision("argmax"))
    assert square.logits(x)[0].tolist() == [6.25 + 2 * 2.25 + 3 * 4 + 10, -6.25 + 4 + 20]
    assert relu.preactivations(x)[0].tolist() == [[-2.5, 1.5, -2.0], [-4.5, -1.5, -1.0]]
    assert relu.preactivations(x)[1].tolist() == relu.logits(x).tolist()


def test_a_network_without_hidden_layer_is_a_model() -> None:
    model = Mlp((Affine([[2.0]], [1.0]),), (), Decision("value", 0.1))
    assert model.logits(np.array([[3.0]])).tolist() == [[7.0]]
    assert model.widths == (1, 1)
    assert model.parameters == 2


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("none", [[0.0, np.log(3.0)]]),
        ("softmax", [[0.25, 0.75]]),
        ("log_softmax", [[np.log(0.25), np.log(0.75)]]),
        ("sigmoid", [[0.5, 0.75]]),
    ],
)
def test_outputs_reapply_the_tail(tail: str, expected: list[list[float]]) -> None:
    model = Mlp((Affine(np.eye(2), [0.0, np.log(3.0)]),), (), Decision("argmax"), tail=tail)
    assert model.outputs(np.zeros((1, 2))) == pytest.approx(np.array(expected), rel=1e-15)
    assert apply_tail("none", np.ones((1, 2))).tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("rule", "logits", "decision", "margin", "room"),
    [
        ("argmax", [[1.0, 5.0, 3.0]], [1], [2.0], [1.0]),
        ("argmax", [[2.0, 2.0, 0.0]], [0], [0.0], [0.0]),
        ("argmin", [[1.0, 5.0, 3.0]], [0], [2.0], [1.0]),
        ("argmin", [[4.0, 1.0, 1.0]], [1], [0.0], [0.0]),
        ("sign", [[-0.5]], [0], [0.5], [0.5]),
        ("sign", [[0.0]], [0], [0.0], [0.0]),
        ("sign", [[0.25]], [1], [0.25], [0.25]),
    ],
)
def test_decisions_and_margins(
    rule: str, logits: list[list[float]], decision: list[int], margin: list[float], room: list[float]
) -> None:
    found = Decision(rule)
    array = np.array(logits)
    assert found.decide(array).tolist() == decision
    assert found.margins(array).tolist() == margin
    assert found.surviving_error(array).tolist() == room


@given(st.sampled_from(["argmax", "argmin", "sign"]), st.integers(0, 2**32 - 1))
def test_an_error_below_the_surviving_error_never_flips(rule: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_out = 1 if rule == "sign" else int(rng.integers(2, 6))
    logits = rng.normal(size=(20, n_out))
    decision = Decision(rule)
    room = decision.surviving_error(logits) * (1 - 1e-9)  # rounding of the sum itself
    moved = logits + room[:, None] * rng.choice([-1.0, 1.0], size=logits.shape)
    assert decision.agree(logits, moved).all()


@given(st.integers(0, 2**32 - 1))
def test_twice_the_surviving_error_can_flip(seed: int) -> None:
    logits = np.random.default_rng(seed).normal(size=(1, 4))
    decision = Decision("argmax")
    best, second = np.argsort(logits[0])[[-1, -2]]
    moved = logits.copy()
    moved[0, best] -= 1.01 * decision.surviving_error(logits)[0]
    moved[0, second] += 1.01 * decision.surviving_error(logits)[0]
    assert not decision.agree(logits, moved)[0]


def test_values_agree_within_their_tolerance() -> None:
    decision = Decision("value", 0.5)
    ours = np.array([[1.0, 2.0], [1.0, 2.0]])
    assert decision.agree(ours, ours + [[0.5, -0.5], [0.0, 0.51]]).tolist() == [True, False]
    assert decision.margins(ours).tolist() == [0.5, 0.5]


def test_rows_are_checked() -> None:
    model = Mlp((Affine(np.ones((2, 6)), np.zeros(2)),), (), Decision("argmax"), input_shape=(2, 3))
    assert model.check_rows(np.zeros((4, 2, 3))).shape == (4, 6)
    assert model.check_rows(np.zeros(6)).shape == (1, 6)
    with pytest.raises(DataError, match=r"shape \(4, 5\), the model takes 6 values a row"):
        model.check_rows(np.zeros((4, 5)))
    with pytest.raises(DataError, match=r"row 1, column 2: value nan is not finite"):
        model.check_rows(np.array([[0.0] * 6, [0, 0, np.nan, 0, 0, 0]]))


def test_what_does_not_fit_is_refused() -> None:
    one, two = Affine(np.ones((2, 3)), np.zeros(2), "a"), Affine(np.ones((2, 2)), np.zeros(2), "b")
    with pytest.raises(InputError, match="layer 0: gives 2 values, the next layer takes 3"):
        Mlp((one, one), ("relu",), Decision("argmax"))
    with pytest.raises(InputError, match="no affine layer"):
        Mlp((), (), Decision("argmax"))
    with pytest.raises(InputError, match="need 1 activations"):
        Mlp((one, two), (), Decision("argmax"))
    with pytest.raises(InputError, match="unknown activations"):
        Mlp((one, two), ("tanh",), Decision("argmax"))
    with pytest.raises(InputError, match="sign needs 1 output, the model has 2"):
        Mlp((one, two), ("relu",), Decision("sign"))
    with pytest.raises(InputError, match="needs 2 outputs or more, the model has 1"):
        Mlp((Affine([[1.0]], [0.0]),), (), Decision("argmax"))
    with pytest.raises(InputError, match="3 class labels for 2 classes"):
        Mlp((one,), (), Decision("argmax"), classes=("a", "b", "c"))
    with pytest.raises(InputError, match="1 feature names for 3 inputs"):
        Mlp((one,), (), Decision("argmax"), features=("a",))
    with pytest.raises(InputError, match=r"input shape \(4,\) does not hold 3 values"):
        Mlp((one,), (), Decision("argmax"), input_shape=(4,))
    with pytest.raises(InputError, match="c: weight has 1 entries that are NaN or infinite"):
        Affine([[np.inf]], [0.0], "c")
    with pytest.raises(InputError, match="bias has 1 entries that are NaN"):
        Affine([[1.0]], [np.nan])
    with pytest.raises(InputError, match="bias has 2 entries, weight 1 rows"):
        Affine([[1.0]], [0.0, 0.0])
    with pytest.raises(UsageError, match="use argmax, argmin, sign or value"):
        Decision("most")
    with pytest.raises(UsageError, match="tolerance -1"):
        Decision("value", -1.0)


def test_weights_are_read_only_copies() -> None:
    weight = np.ones((2, 2))
    layer = Affine(weight, np.zeros(2))
    weight[0, 0] = 7.0
    assert layer.weight[0, 0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        layer.weight[0, 0] = 2.0


@given(mlps())
@settings(max_examples=50)
def test_the_hash_sees_every_number_and_every_rule(model: Mlp) -> None:
    assert model.sha256 == model.with_(notes=("said",)).sha256
    layer = model.affines[-1]
    bias = layer.bias.copy()
    bias[-1] = np.nextafter(bias[-1], np.inf)
    changed = model.with_(affines=(*model.affines[:-1], Affine(layer.weight, bias)))
    assert changed.sha256 != model.sha256
    weight = layer.weight.copy()
    weight[0, -1] = np.nextafter(weight[0, -1], np.inf)
    assert model.with_(affines=(*model.affines[:-1], Affine(weight, layer.bias))).sha256 != model.sha256
    other = {"relu": "square", "square": "relu"}
    if model.activations:
        assert model.with_(activations=tuple(other[a] for a in model.activations)).sha256 != model.sha256
    assert model.with_(decision=Decision("value", 0.7)).sha256 != model.sha256


def test_random_networks_are_the_same_every_time() -> None:
    first = random_mlp(np.random.default_rng(3), (4, 5, 2))
    assert first.sha256 == random_mlp(np.random.default_rng(3), (4, 5, 2)).sha256
