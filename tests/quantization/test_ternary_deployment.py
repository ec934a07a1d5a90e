"""The deployment as the trunk sees it, and the reported cases of others."""

import json

import numpy as np
import onnx
import pytest
from networks import random_equilibrium, random_mlp
from onnx import numpy_helper
from ternary_networks import random_network

from deploy.dataset import Calibration
from deploy.loaders import load
from deploy.model import Affine, Decision, Mlp
from deploy.progress import SILENT
from quantization import target
from quantization.baselines import quantize_exact
from quantization.files import CODES, SCALES
from quantization.network import QuantizedMlp
from quantization.onnx_weights import build_weight_model
from quantization.recognition import recognize_ternary


def convert(model, x, progress=SILENT, **options):
    return target.convert(
        model, Calibration(x), target.options(**options), rng=np.random.default_rng(0), progress=progress
    )


class Listener:
    """Progress that keeps what is said."""

    def __init__(self):
        self.lines = []

    def stage(self, name, steps):
        return SILENT.stage(name, steps)

    def say(self, line):
        self.lines.append(line)


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(6).normal(size=(300, 10))


@pytest.fixture(scope="module")
def model():
    return random_mlp(np.random.default_rng(7), (10, 16, 12, 4))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"levels": 7},
        {"levels": 15, "activations": "16"},
        {"planes": 2},
        {"int8_columns": 0.2},
        {"int8_last_layer": True},
        {"method": "feedback", "beam": 4, "reference": "float"},
        {"method": "exact"},
        {"method": "absmean", "activations": "8"},
        {"method": "sign"},
        {"method": "twn"},
    ],
    ids=str,
)
def test_every_option_makes_a_deployment_whose_engines_give_its_reference(model, rows, options):
    found = convert(model, rows, **options)
    again = target.load(found.files(), model=model)
    assert again.files() == found.files()
    reference = again.logits(rows)
    spread = np.abs(reference).max()
    for name, engine in again.engines().items():
        if engine.requires is not None and not engine.requires.is_met():
            continue
        with engine:
            run = engine.run(rows[:40])
        assert not run.failures
        if name.startswith("integer") and options.get("reference") != "float":
            assert np.array_equal(run.logits, reference[:40])
        else:  # 8-bit activations over three layers
            assert np.abs(run.logits - reference[:40]).max() <= 0.1 * spread
    json.dumps(found.summary(), allow_nan=False)


def test_more_levels_more_planes_and_protected_columns_come_closer(model, rows):
    def distance(**options):
        return np.mean((convert(model, rows, reference="float", **options).logits(rows) - model.logits(rows)) ** 2)

    plain = distance()
    assert distance(levels=7) < plain and distance(planes=2) < plain and distance(int8_columns=0.4) < plain
    assert distance(levels=15) < distance(levels=7)


def test_training_is_tried_where_an_agreement_is_not_met(model, rows):
    pytest.importorskip("torch")
    tried = [item["name"] for item in convert(model, rows, agreement=1.0, levels=3, beam=0).report["tried"]]
    without = [item["name"] for item in convert(model, rows, beam=0).report["tried"]]
    assert "straight-through training" in tried and "straight-through training" not in without


def test_models_that_it_cannot_take_are_refused_with_a_reason(rng):
    squares = random_mlp(rng, (3, 4, 2), activation="square")
    assert "square" in target.accepts(squares, target.options()).cause
    assert target.accepts(random_equilibrium(rng, 3, 4, 2), target.options()) is not None
    assert target.accepts(random_mlp(rng, (3, 4, 2)), target.options()) is None


def test_predicted_bytes_are_the_bytes(model, rows):
    predicted = {
        quantity.name: quantity.value for quantity in target.predict_cost(model, target.options(), calibration=None)
    }
    found = convert(model, rows)
    columns = sum(layer.columns is not None for layer in found.arithmetic.network.layers) * model.n_in
    assert found.stored_bytes == predicted["bytes"] + columns


def test_networks_that_are_ternary_already_are_kept_without_loss(rng):
    affines = tuple(
        Affine(
            rng.integers(-1, 2, size=shape) * 0.25 * (1 + np.arange(shape[0]))[:, None],
            rng.normal(size=shape[0]).astype(np.float32),
        )
        for shape in ((8, 5), (3, 8))
    )
    model = Mlp(affines, ("relu",), Decision("argmax"))
    x = rng.normal(size=(60, 5))
    found = convert(model, x, reference="float")
    assert np.allclose(found.logits(x), model.logits(x), rtol=1e-12, atol=1e-12)  # another order of the same sums


def test_a_row_with_one_weight_off_the_grid_is_not_ternary():
    assert recognize_ternary(np.array([[0.5, -0.5, 0.0], [0.25, 0.0, 0.25]])) is not None
    assert recognize_ternary(np.array([[0.5, -0.5, 0.0], [0.25, 0.0, 0.24]])) is None


def test_published_ternary_weights_are_read_as_codes(inputs):
    path = inputs / "onnx" / "qonnx_tfc_2w2a.onnx"
    tensors = [numpy_helper.to_array(item) for item in onnx.load(path).graph.initializer]
    weights = [tensor.astype(float) for tensor in tensors if tensor.ndim == 2 and min(tensor.shape) > 1]
    assert len(weights) == 4
    for weight in weights:
        plane = recognize_ternary(weight)
        assert plane is not None and np.array_equal(plane.weight, weight)


def test_case_output_is_really_ternary(inputs):
    case = inputs / "cases" / "ternary_output_is_really_ternary"
    model, x = load(case / "model.onnx"), np.load(case / "io.npz")["x"].astype(float)
    found = convert(model, x)
    files = found.files()
    network = target.load(files, model=model).arithmetic.network
    for layer in network.layers:
        assert set(np.unique(layer.planes[0].codes)) <= {-1, 0, 1}
    for layer, affine in zip(network.layers, model.affines, strict=True):
        assert layer.planes[0].scales.shape == (affine.n_out, 1)
    sizes = [affine.weight.shape for affine in model.affines]
    assert (64, 64) in sizes
    assert len(files[CODES]) + len(files[SCALES]) < sum(4 * a * b for a, b in sizes) / 12
    assert 8 * len(files[CODES]) / network.weights <= 1.65


def test_case_zero_and_constant_rows(inputs):
    case = inputs / "cases" / "ternary_all_zero_and_constant_rows"
    model, x = load(case / "model.onnx"), np.load(case / "io.npz")["x"].astype(float)
    zero_rows = [~affine.weight.any(axis=1) for affine in model.affines]
    assert any(rows.any() for rows in zero_rows)
    for method in ("auto", "exact", "absmean", "twn", "sign"):
        found = convert(model, x, method=method)
        for layer, zero in zip(found.arithmetic.network.layers, zero_rows, strict=True):
            assert np.isfinite(layer.weight).all() and not layer.weight[zero].any()
        for layer in found.summary()["layers"]:
            assert 0 <= layer["zeros"] <= 1 and np.isfinite(layer["weight_error"])
            assert np.isfinite(layer["output_error"])


def test_case_an_agreement_that_is_not_reached_is_said_and_reported(inputs, rng):
    model = load(inputs / "cases" / "ternary_all_zero_and_constant_rows" / "model.onnx")
    x = rng.normal(size=(200, model.n_in))
    for wanted, met in ((0.9, False), (0.01, True)):  # one huge outlier: the rule reaches a tenth
        listener = Listener()
        found = convert(model, x, progress=listener, method="sign", agreement=wanted)
        assert any(f"{wanted:g} was asked for" in line for line in listener.lines) is not met
        assert found.summary()["agreement_met"] is met and found.summary()["agreement_asked_for"] == wanted
    assert convert(model, x, method="sign").summary()["agreement_met"] is None


@pytest.mark.parametrize("form", ["dequantize", "nbits"])
def test_float_models_fuse_to_the_two_bit_kernel_and_stay_close(rng, form):
    """10 outputs and 70 inputs: neither whole blocks nor whole bytes, which onnxruntime gets wrong without padding."""
    pytest.importorskip("onnxruntime")
    from quantization.engines import open_session

    network = random_network(rng, (70, 300, 10), columns=True)
    session, kernels = open_session(build_weight_model(network, form))
    x = rng.normal(size=(9, 70)).astype(np.float32)
    assert kernels.get("MatMulNBits") == 2 and "DequantizeLinear" not in kernels
    reference = network.logits(x.astype(float))
    error = np.abs(session.run(None, {"x": x})[0] - reference).max()
    # activations rounded to int8 in blocks, twice; columns that differ by 64 share a block
    assert error <= 0.05 * np.abs(reference).max()


def test_the_standard_float_model_is_exact_in_the_reference_evaluator(rng):
    from onnx.reference import ReferenceEvaluator

    network = random_network(rng, (70, 40, 3))
    model = onnx.load_from_string(build_weight_model(network))
    x = rng.normal(size=(4, 70)).astype(np.float32)
    assert np.allclose(ReferenceEvaluator(model).run(None, {"x": x})[0], network.logits(x), rtol=1e-4, atol=1e-4)


def test_the_latency_study_times_every_engine(model, rows):
    study = convert(model, rows).studies()["latency"]
    options = study.options(batches=[2], repeats=1)
    cases = list(study.cases(options, np.random.default_rng(0)))
    row = study.solve(cases[0], rows)
    assert row["outcome"] == "ok" and row["us_per_call"] > 0 and len({case.id for case in cases}) == len(cases)


def test_panels_hold_what_was_tried_each_layer_and_the_latency_at_two_batches(model, rows):
    *others, latency = convert(model, rows).panels(rows)
    assert [panel.form for panel in others] == ["table", "bar", "bar"]
    times = {(label, batch): us for label, batch, us, _ in latency.data["rows"]}
    assert {batch for _, batch in times} == {1, 256} and min(times.values()) > 0
    for batch in (1, 256):
        least = min((label for label, at in times if at == batch), key=lambda label: times[label, batch])
        assert f"At batch {batch} the fastest is: {least}." in latency.caption
    for _, batch, us, ratio in latency.data["rows"]:
        assert ratio == times["float32, numpy", batch] / us


def test_a_rounded_layer_drops_codes_whose_scale_vanishes():
    plane = quantize_exact(np.full((1, 3), 1e-60))
    from quantization.network import QuantizedLayer

    layer = QuantizedMlp.of([QuantizedLayer((plane,), np.zeros(1))]).layers[0]
    assert not layer.planes[0].codes.any() and not layer.planes[0].scales.any()
