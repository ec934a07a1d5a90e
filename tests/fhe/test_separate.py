"""The separation as a whole, on small networks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from deploy.fidelity import divergence
from deploy.model import Affine, Decision, Mlp
from fhe.onnx_export import export_onnx
from fhe.options import CkksOptions
from fhe.separation import separate


def make_mlp(rng, widths, rule="argmax", activations=None) -> Mlp:
    affines = tuple(
        Affine(rng.normal(size=(n, m)) / np.sqrt(m), rng.normal(size=n) / 3) for m, n in pairwise(widths)
    )
    return Mlp(affines, activations or ("relu",) * (len(widths) - 2), Decision(rule))


def run(model, x, **options):
    return separate(model, x, CkksOptions(**options), rng=np.random.default_rng(0))


def share(model, network, x) -> float:
    return float(model.decision.agree(model.logits(x), network.logits(x)).mean())


@pytest.mark.parametrize("fit", ["auto", "anchored", "kl"])
@pytest.mark.parametrize("rule,n_out", [("argmax", 3), ("argmin", 3), ("argmax", 2), ("sign", 1), ("argmax", 30)])
def test_decisions_are_kept_better_than_by_least_squares(rng, fit, rule, n_out):
    model = make_mlp(rng, (5, 12, n_out), rule)
    x = rng.normal(size=(200, 5))
    least = run(model, x, fit="least-squares")
    fitted = run(model, x, fit=fit)
    if fit == "kl":
        divergences = [
            divergence(model.decision, model.logits(x), found.network.logits(x)).mean() for found in (fitted, least)
        ]
        assert divergences[0] < divergences[1]
    else:
        assert share(model, fitted.network, x) >= share(model, least.network, x)


@pytest.mark.parametrize("widths", [(4, 10, 8, 3), (4, 8, 8, 8, 3)])
def test_deep_networks_are_fitted_together(rng, widths):
    model = make_mlp(rng, widths)
    x = rng.normal(size=(300, 4))
    assert share(model, run(model, x).network, x) >= share(model, run(model, x, fit="least-squares").network, x)


def test_a_network_without_hidden_layer_is_taken_as_it_is(rng):
    model = make_mlp(rng, (4, 3))
    x = rng.normal(size=(20, 4))
    np.testing.assert_array_equal(run(model, x).network.logits(x), model.logits(x))


def test_squares_are_exact(rng):
    model = make_mlp(rng, (4, 6, 3), activations=("square",))
    x = rng.normal(size=(50, 4))
    found = run(model, x)
    np.testing.assert_allclose(found.network.logits(x), model.logits(x), rtol=1e-12, atol=1e-12)
    mixed = make_mlp(rng, (4, 6, 5, 3), activations=("square", "relu"))
    assert share(mixed, run(mixed, x).network, x) == 1.0


def test_values_are_fitted_by_least_squares(rng):
    model = make_mlp(rng, (4, 6, 2), "value")
    x = rng.normal(size=(100, 4))
    found = run(model, x)
    assert found.fit == "least-squares"
    assert np.abs(found.network.logits(x) - model.logits(x)).max() < np.abs(model.logits(x)).max()


def test_dead_always_on_constant_and_unused_units_are_exact(rng):
    model = make_mlp(rng, (4, 8, 3))
    weight, bias = model.affines[0].weight.copy(), model.affines[0].bias.copy()
    bias[0], bias[1] = -100.0, 100.0  # never on, never off
    weight[2], bias[2] = 0.0, 0.75  # constant and on
    weight[3], bias[3] = 0.0, -0.75  # constant and off
    after = model.affines[1].weight.copy()
    after[:, 4] = 0.0  # nothing depends on it
    model = Mlp((Affine(weight, bias), Affine(after, model.affines[1].bias)), ("relu",), model.decision)
    x = rng.normal(size=(100, 4))
    found = run(model, x)
    assert found.report["units"][0] == {"units": 8, "fitted": 3, "dead": 3, "always_on": 2, "constant": 0}
    table = found.network.coefficients[0]
    assert not table[[0, 3, 4]].any()
    np.testing.assert_array_equal(table[[1, 2]], [[0, 1, 0]] * 2)
    assert share(model, found.network, x) == 1.0


def test_ties_are_counted_and_do_not_constrain(rng):
    model = make_mlp(rng, (4, 6, 3))
    after = model.affines[1]
    weight, bias = after.weight.copy(), after.bias.copy()
    weight[1], bias[1] = weight[0], bias[0]
    model = Mlp((model.affines[0], Affine(weight, bias)), ("relu",), model.decision)
    x = rng.normal(size=(100, 4))
    found = run(model, x)
    assert found.report["tied_rows"] == np.count_nonzero(np.isin(model.decide(x), (0, 1)))
    assert share(model, found.network, x) == 1.0


def test_all_outputs_tied_leaves_least_squares(rng):
    model = make_mlp(rng, (4, 6, 2))
    model = Mlp((model.affines[0], Affine(np.ones((2, 6)), np.zeros(2))), ("relu",), model.decision)
    assert run(model, rng.normal(size=(30, 4))).fit == "least-squares"


@pytest.mark.parametrize("rows", [1, 2])
def test_one_row_is_enough(rng, rows):
    model = make_mlp(rng, (4, 6, 3))
    x = rng.normal(size=(rows, 4))
    assert share(model, run(model, x).network, x) == 1.0


def test_the_same_inputs_give_the_same_bytes(rng):
    model = make_mlp(rng, (5, 12, 4))
    x = rng.normal(size=(200, 5))
    assert run(model, x).network.to_bytes() == run(model, x).network.to_bytes()


@pytest.mark.parametrize("degree", [2, 4, 6])
@pytest.mark.parametrize("widths", [(5, 7, 3), (5, 7, 6, 3), (5, 3)])
def test_the_onnx_file_computes_the_network(rng, degree, widths):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = make_mlp(rng, widths)
    x = rng.normal(size=(60, 5))
    network = run(model, x, degree=degree, fit="least-squares").network
    session = onnxruntime.InferenceSession(export_onnx(network), providers=["CPUExecutionProvider"])
    ours = network.logits(x)
    # the same float64 operations; only the order inside a dot product may differ
    np.testing.assert_allclose(session.run(None, {"x": x})[0], ours, rtol=1e-11, atol=1e-11 * np.abs(ours).max())
