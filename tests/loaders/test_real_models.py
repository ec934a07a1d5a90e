"""Each model of inputs/models and each case of inputs/cases equals its recorded outputs, or is refused as said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import deploy
from deploy.errors import LoadError
from deploy.model import Mlp

# file, file of recorded outputs, tolerance relative to the largest output, why
MODELS = [
    ("fashion_784_128_10/fashion_784_128_10.checkpoint_dict.pt", "fashion_784_128_10", 1e-5, "float32 runs"),
    ("fashion_784_128_10/fashion_784_128_10.dynamo.onnx", "fashion_784_128_10", 1e-5, "float32 runs"),
    ("fashion_784_128_10/fashion_784_128_10.dynamo_ext/model.onnx", "fashion_784_128_10", 1e-5, "float32 runs"),
    ("fashion_784_128_10/fashion_784_128_10.legacy.onnx", "fashion_784_128_10", 1e-5, "float32 runs"),
    ("fashion_784_128_10/fashion_784_128_10.legacy_op11_fixed.onnx", "fashion_784_128_10", 1e-5, "float32 runs"),
    ("fashion_784_128_10/fashion_784_128_10.legacyzip.state_dict.pth", "fashion_784_128_10", 1e-5, "float32 runs"),
    ("fashion_784_128_10/fashion_784_128_10.pt2", "fashion_784_128_10", 1e-5, "float32 runs"),
    ("fashion_784_128_10/fashion_784_128_10.state_dict.pt", "fashion_784_128_10", 1e-5, "float32 runs"),
    ("fashion_784_128_10/fashion_784_128_10.torchscript.pt", "fashion_784_128_10", 1e-5, "float32 runs"),
    ("mnist_784_128_10/mnist_784_128_10.dataparallel_prefix.pt", "mnist_784_128_10", 1e-5, "float32 runs"),
    ("mnist_784_128_10/mnist_784_128_10.dynamo.onnx", "mnist_784_128_10", 1e-5, "float32 runs"),
    ("mnist_784_128_10/mnist_784_128_10.dynamo_ext/model.onnx", "mnist_784_128_10", 1e-5, "float32 runs"),
    (
        "mnist_784_128_10/mnist_784_128_10.fp16.state_dict.pt",
        "mnist_784_128_10",
        1e-3,
        "weights were rounded to 11 bits",
    ),
    ("mnist_784_128_10/mnist_784_128_10.legacy.onnx", "mnist_784_128_10", 1e-5, "float32 runs"),
    ("mnist_784_128_10/mnist_784_128_10.legacy_op11_fixed.onnx", "mnist_784_128_10", 1e-5, "float32 runs"),
    ("mnist_784_128_10/mnist_784_128_10.pt2", "mnist_784_128_10", 1e-5, "float32 runs"),
    ("mnist_784_128_10/mnist_784_128_10.state_dict.pt", "mnist_784_128_10", 1e-5, "float32 runs"),
    ("mnist_784_128_10/mnist_784_128_10.torchscript.pt", "mnist_784_128_10", 1e-5, "float32 runs"),
    ("keras/keras_mnist_plain.keras", "keras_mnist_plain", 1e-5, "float32 runs"),
    ("keras/keras_mnist_plain.h5", "keras_mnist_plain", 1e-5, "float32 runs"),
    ("keras/keras_mnist_plain.onnx", "keras_mnist_plain", 1e-5, "float32 runs"),
    ("reference/digits_mondeq_64_48_10.npz", "digits_mondeq_64_48_10", 1e-9, "both solve to 1e-12"),
]

REFUSED = [
    ("fashion_784_128_10/fashion_784_128_10.whole_module_pickle.pt", r"can run any code(.|\n)*torch\.export\.save"),
    ("real/gurobi_diabetes_pytorch.pt", r"can run any code(.|\n)*weights_only=False"),
    ("sklearn/cancer_pipe_minmax_binary.joblib", "skl2onnx"),
    ("sklearn/digits_mlp.joblib", "skl2onnx"),
    ("sklearn/diabetes_tanh_NOT_relu_float.onnx", "Tanh"),
]

WIDTHS = {
    "real/autolirpa_mnist_fc_3layer.pth": (784, 128, 64, 10),
    "real/heir_mnist_traced_model.pt": (784, 512, 10),
    "real/gurobi_diabetes_v2.keras": (10, 20, 20, 1),
    "real/omlt_keras_linear_131_relu.keras": (1, 3, 1),
    "real/nvjl_mnist_small.nnet": (784, 10),
    "reference/breast_cancer_30_16_2.onnx": (30, 16, 2),
    "reference/digits_64_32_10.onnx": (64, 32, 10),
    "reference/digits_64_32_32_10.onnx": (64, 32, 32, 10),
    "reference/fashion60k_784_128_10.onnx": (784, 128, 10),
    "reference/mnist_784_128_64_10.onnx": (784, 128, 64, 10),
    "reference/mnist_784_256_256_10.onnx": (784, 256, 256, 10),
    "reference/mnist_784_64x6_10.onnx": (784, *[64] * 6, 10),
    "reference/shuttle_9_256_7.onnx": (9, 256, 7),
    "reference/shuttle_9_64_7.onnx": (9, 64, 7),
}

SKLEARN = [
    "cancer_pipe_minmax_binary_float_nozipmap",
    "digits_mlp_double_nozipmap",
    "digits_mlp_float_nozipmap",
    "digits_mlp_float_zipmap",
    "digits_pipe_scaler_float_zipmap",
]


def needs(path: str) -> None:
    if path.endswith((".pt", ".pth")):
        pytest.importorskip("torch")
    if path.endswith((".keras", ".h5")):
        pytest.importorskip("h5py")


@pytest.mark.parametrize(("path", "io", "tolerance", "why"), MODELS, ids=[row[0] for row in MODELS])
def test_a_model_equals_its_recorded_outputs(inputs: Path, path: str, io: str, tolerance: float, why: str) -> None:
    needs(path)
    model = deploy.load(inputs / "models" / path)
    folder = (inputs / "models" / path).parent
    record = next(place / f"{io}.io.npz" for place in (folder, folder.parent) if (place / f"{io}.io.npz").exists())
    with np.load(record) as arrays:
        x, y = arrays["x"], arrays["y"]
    found = model.outputs(model.check_rows(x))
    np.testing.assert_allclose(found, y, rtol=tolerance, atol=tolerance * np.abs(y).max(), err_msg=why)


@pytest.mark.parametrize(("path", "pattern"), REFUSED, ids=[row[0] for row in REFUSED])
def test_a_model_is_refused_with_its_remedy(inputs: Path, path: str, pattern: str) -> None:
    needs(path)
    with pytest.raises(LoadError, match=pattern) as caught:
        deploy.load(inputs / "models" / path)
    assert Path(path).name in str(caught.value)


@pytest.mark.parametrize("path", WIDTHS)
def test_a_model_without_a_record_has_its_widths(inputs: Path, path: str) -> None:
    needs(path)
    assert deploy.load(inputs / "models" / path).widths == WIDTHS[path]


def test_no_model_file_is_left_out(inputs: Path) -> None:
    root = inputs / "models"
    listed = {row[0] for row in MODELS} | {row[0] for row in REFUSED} | set(WIDTHS)
    listed |= {f"sklearn/{name}.onnx" for name in SKLEARN}
    there = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    there = {path for path in there if not path.endswith((".io.npz", ".data"))}
    print({"models": len(there), "load": len(there) - len(REFUSED), "refuse": len(REFUSED)})
    assert there == listed


@pytest.mark.parametrize("name", SKLEARN)
def test_a_scikit_learn_export_gives_probabilities_and_labels(inputs: Path, name: str) -> None:
    model = deploy.load(inputs / "models" / "sklearn" / f"{name}.onnx")
    with np.load(inputs / "models" / "sklearn" / f"{name}.io.npz") as arrays:
        x, labels, probabilities = arrays["x"], arrays["onnx_label"], arrays["onnx_proba"]
    rows = np.asarray(x, dtype=np.float64)
    tolerance = 1e-9 if "double" in name else 1e-5  # the run's arithmetic
    np.testing.assert_allclose(model.outputs(rows), probabilities, rtol=tolerance, atol=tolerance)
    assert model.classes is not None
    assert np.array_equal(np.array(model.classes)[model.decide(rows)], labels)
    assert model.decision.rule == ("sign" if len(model.classes) == 2 else "argmax")


CASES = {
    "onnx_external_data_missing": "weights.bin is missing.*onnx_external_data_missing",
    "onnx_nan_weights": "tensor W0 has 1 of 15 entries that are NaN or infinite",
    "onnx_two_outputs_and_branch": "Add.*joins two values",
}


def test_each_case_equals_its_record_or_is_refused_for_its_reason(inputs: Path) -> None:
    counts = {"load": 0, "refuse": 0}
    for folder in sorted(path.parent for path in (inputs / "cases").glob("*/model.onnx")):
        path = folder / "model.onnx"
        if folder.name in CASES:
            with pytest.raises(LoadError, match=CASES[folder.name]):
                deploy.load(path)
            counts["refuse"] += 1
            continue
        model = deploy.load(path)
        assert isinstance(model, Mlp)
        with np.load(folder / "io.npz") as io:
            pairs = [
                (io[name], io[name.replace("x", "y")])
                for name in io.files
                if name in ("x6", "x") and name.replace("x", "y") in io.files
            ]
            if not pairs:
                pairs = [(io["x"], io[next(name for name in io.files if name.startswith("y"))])]
        for x, y in pairs:
            found = model.outputs(np.asarray(x, dtype=np.float64).reshape(-1, model.n_in))
            # float32 arithmetic of the recorded run
            np.testing.assert_allclose(
                found.ravel(), y.ravel(), rtol=1e-5, atol=1e-5 * np.abs(y).max(), err_msg=folder.name
            )
        assert json.loads((folder / "case.json").read_text())
        counts["load"] += 1
    print(counts)
    assert counts["refuse"] == len(CASES)
    assert counts["load"] >= 10


def test_hidden_inputs_are_found_among_initialisers(inputs: Path) -> None:
    assert deploy.load(inputs / "cases" / "onnx_initialisers_also_inputs" / "model.onnx").widths == (3, 5, 2)


@pytest.mark.parametrize("name", SKLEARN)
def test_no_note_names_another_rule_than_the_decision(inputs: Path, name: str) -> None:
    model = deploy.load(inputs / "models" / "sklearn" / f"{name}.onnx")
    notes = " ".join(model.notes)
    assert "was stripped" in notes
    assert all(rule == model.decision.rule or f"rule {rule}" not in notes for rule in ("argmax", "argmin", "sign"))
