"""ONNX files by hand: constants and their places, types, batches, quantised weights, endings, refusals."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import deploy
from deploy.errors import LoadError
from deploy.loaders.onnx import file as onnx_file
from deploy.loaders.onnx import wire

W = np.array([[1.0, -2.0, 0.5], [0.25, 1.0, -1.0]], dtype=np.float32)
V = np.array([[1.0, 2.0], [-1.0, 0.5], [0.5, -0.75]], dtype=np.float32)


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, **attributes)


def make(
    nodes: Sequence[onnx.NodeProto],
    *,
    dims: Sequence[object] | None = ("batch", 3),
    outputs: Sequence[str] = ("y",),
    constants: dict[str, Any] | None = None,
    kind: int = TensorProto.FLOAT,
    opset: int = 13,
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", kind, dims)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        tensors,
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 2)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def chain(*middle: onnx.NodeProto, **options: Any) -> onnx.ModelProto:
    """x -> W -> the nodes given, from "h" to "a" -> V."""
    nodes = [node("Gemm", ["x", "W"], ["h"], transB=1), *middle, node("Gemm", ["a", "V"], ["y"], transB=1)]
    constants = {"W": W, "V": V, **options.pop("constants", {})}
    return make(nodes, constants=constants, **options)


RELU = node("Relu", ["h"], ["a"])
ROWS = np.array([[1.0, 2.0, -3.0], [0.5, -1.0, 2.0]])


def relu_output() -> Any:
    return np.maximum(ROWS @ W.T.astype(float), 0) @ V.T.astype(float)


# Constants


def save_external(folder: Path, location: str, *, length: int | None = None, offset: int = 0) -> Path:
    model = chain(RELU)
    tensor = model.graph.initializer[0]
    raw = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (
        ("location", location),
        ("offset", offset),
        ("length", len(raw) if length is None else length),
    ):
        tensor.external_data.add(key=key, value=str(value))
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


def test_external_data_is_read_beside_the_model(tmp_path: Path) -> None:
    path = save_external(tmp_path, "data/weights.bin", offset=8)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "weights.bin").write_bytes(b"12345678" + W.tobytes())
    np.testing.assert_allclose(deploy.load(path).outputs(ROWS), relu_output(), rtol=1e-12)


@pytest.mark.parametrize(
    "location", ["/etc/hostname", "../outside.bin", "inside/../../outside.bin", "link.bin", ""]
)
def test_nothing_outside_the_folder_is_read(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside.bin").write_bytes(W.tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    with pytest.raises(LoadError, match="outside the model's folder"):
        deploy.load(save_external(folder, location))


def test_missing_and_short_external_data_are_named(tmp_path: Path) -> None:
    path = save_external(tmp_path, "weights.bin")
    with pytest.raises(LoadError, match=rf"weights.bin is missing.*copy it into {tmp_path}"):
        deploy.load(path)
    (tmp_path / "weights.bin").write_bytes(W.tobytes()[:-1])
    with pytest.raises(LoadError, match="which holds 23"):
        deploy.load(path)
    (tmp_path / "weights.bin").write_bytes(W.tobytes())
    with pytest.raises(LoadError, match="needs 24"):
        deploy.load(save_external(tmp_path, "weights.bin", length=20))


def test_large_weights_are_read_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(chain(RELU).SerializeToString())
    plain = deploy.load(path)
    monkeypatch.setattr(onnx_file, "_DETACHED", 0)
    monkeypatch.setattr(wire, "_LARGE", 16)
    small = wire.detach_weights(path)
    assert small is not None
    assert W.tobytes() not in small
    assert deploy.load(path).sha256 == plain.sha256  # type: ignore[union-attr]


def test_a_link_to_a_model_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "blob").write_bytes(chain(RELU).SerializeToString())
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "model.onnx"
    link.symlink_to(tmp_path / "blob")
    monkeypatch.setattr(onnx_file, "_DETACHED", 0)
    monkeypatch.setattr(wire, "_LARGE", 16)
    np.testing.assert_allclose(deploy.load(link).outputs(ROWS), relu_output(), rtol=1e-12)


MEMORY = """
import sys
import deploy
model = deploy.load(sys.argv[1])
status = open("/proc/self/status").read()
print(*model.widths, 1024 * int(status.split("VmHWM:")[1].split()[0]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_a_large_model_needs_less_than_four_times_its_size_in_memory(tmp_path: Path) -> None:
    """784-4096-4096-10, 80 MB of float32: twice that in float64, once more while it is read, and the interpreter."""
    rng = np.random.default_rng(0)
    path = tmp_path / "large.onnx"
    widths = (784, 4096, 4096, 10)
    nodes, constants, value = [], {}, "x"
    for index, (n_in, n_out) in enumerate(itertools.pairwise(widths)):
        constants[f"W{index}"] = rng.standard_normal((n_out, n_in), dtype=np.float32)
        nodes.append(node("Gemm", [value, f"W{index}"], [f"h{index}"], transB=1))
        value = f"h{index}"
        if index < 2:
            nodes.append(node("Relu", [value], [f"a{index}"]))
            value = f"a{index}"
    path.write_bytes(make(nodes, dims=("N", 784), outputs=[value], constants=constants).SerializeToString())
    size = path.stat().st_size
    del constants
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    *found, peak = (int(number) for number in done.stdout.split())
    print({"file_bytes": size, "peak_bytes": peak, "ratio": peak / size})
    assert tuple(found) == widths
    assert peak < 4 * size


# Types


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.int64])
def test_weights_of_any_type_are_cast_exactly(dtype: Any) -> None:
    weight = np.array([[1, -2, 3], [4, 0, -1]], dtype=dtype)
    if np.dtype(dtype).kind == "f":
        weight = weight / dtype(3)
    model = deploy.load(make([node("MatMul", ["x", "W"], ["y"])], constants={"W": weight.T}))
    assert np.array_equal(model.affines[0].weight, weight.astype(np.float64))  # type: ignore[union-attr]


def test_bfloat16_weights_are_cast_exactly() -> None:
    tensor = TensorProto(name="W", dims=[3, 2], data_type=TensorProto.BFLOAT16)
    tensor.raw_data = (V.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    model = make([node("MatMul", ["x", "W"], ["y"])])
    model.graph.initializer.append(tensor)
    expected = ((V.view(np.uint32) >> 16) << 16).view(np.float32)
    assert np.array_equal(deploy.load(model).affines[0].weight.T, expected)  # type: ignore[union-attr]


def test_a_narrower_type_inside_the_file_is_said() -> None:
    nodes = [
        node("Cast", ["x"], ["c"], to=TensorProto.FLOAT16),
        node("MatMul", ["c", "W"], ["m"]),
        node("Cast", ["m"], ["y"], to=TensorProto.FLOAT),
    ]
    model = deploy.load(make(nodes, constants={"W": W.T.astype(np.float16)}))
    assert any("float16" in note for note in model.notes)


def test_a_cast_that_rounds_is_refused_with_both_types() -> None:
    with pytest.raises(LoadError, match="casts FLOAT to INT32, which rounds"):
        deploy.load(
            make(
                [node("Cast", ["x"], ["c"], to=TensorProto.INT32), node("MatMul", ["c", "W"], ["y"])],
                constants={"W": W.T},
            )
        )


def test_integer_inputs_may_be_cast() -> None:
    nodes = [node("Cast", ["x"], ["c"], to=TensorProto.FLOAT), node("MatMul", ["c", "W"], ["y"])]
    assert deploy.load(make(nodes, constants={"W": W.T}, kind=TensorProto.UINT8)).widths == (3, 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_named_and_counted(bad: float) -> None:
    weight = W.copy()
    weight[0, 0] = weight[1, 1] = bad
    with pytest.raises(LoadError, match="tensor W has 2 of 6 entries that are NaN or infinite"):
        deploy.load(chain(RELU, constants={"W": weight}))


# Batches


@pytest.mark.parametrize("batch", [1, 7, 789_444, "N", 0])
def test_any_batch_gives_the_same_network(batch: int | str) -> None:
    model = deploy.load(chain(RELU, dims=(batch, 3)))
    np.testing.assert_allclose(model.outputs(ROWS), relu_output(), rtol=1e-12)


@pytest.mark.parametrize("dims", [None, ("N", "M"), (1, "M")])
def test_a_width_that_is_not_stated_is_that_of_the_first_weight(dims: Sequence[object] | None) -> None:
    assert deploy.load(chain(RELU, dims=dims)).widths == (3, 2, 3)


def test_a_batch_that_is_mixed_makes_one_row() -> None:
    mix = np.array([[1.0, -1.0], [0.5, 2.0]], dtype=np.float32)
    nodes = [node("MatMul", ["M", "x"], ["m"]), node("Relu", ["m"], ["a"]), node("MatMul", ["a", "W"], ["y"])]
    model = deploy.load(make(nodes, dims=(2, 3), constants={"M": mix, "W": W.T}))
    assert model.input_shape == (2, 3)
    expected = np.maximum(mix.astype(float) @ ROWS, 0) @ W.T.astype(float)
    np.testing.assert_allclose(model.outputs(ROWS.reshape(1, -1)), expected.reshape(1, -1), rtol=1e-12)


def test_a_hard_coded_batch_in_a_reshape_is_a_batch() -> None:
    nodes = [node("Reshape", ["x", "shape"], ["f"]), node("MatMul", ["f", "W"], ["y"])]
    model = deploy.load(make(nodes, dims=(4, 3, 1), constants={"shape": np.array([4, 3]), "W": W.T}))
    assert model.widths == (3, 2)
    assert model.input_shape == (3, 1)


# Quantised weights


def test_qonnx_weights_are_dequantised_as_defined() -> None:
    quant = node("Quant", ["Q", "s", "z", "bits"], ["q"], domain="qonnx.custom_op.general", signed=1, narrow=1)
    model = make(
        [quant, node("MatMul", ["x", "q"], ["y"])],
        constants={
            "Q": np.array([[0.9], [-0.26], [-7.0]], np.float32),
            "s": np.array(0.5, np.float32),
            "z": np.array(0.0, np.float32),
            "bits": np.array(2.0, np.float32),
        },
    )
    found = deploy.load(model)
    assert found.affines[0].weight.tolist() == [[0.5, -0.5, -0.5]]  # type: ignore[union-attr]
    assert "quantised weights were dequantised" in found.notes


@pytest.mark.parametrize(
    ("op", "domain"),
    [("QuantizeLinear", ""), ("Quant", "qonnx.custom_op.general"), ("BipolarQuant", "onnx.brevitas")],
)
def test_quantised_activations_are_refused_by_name(op: str, domain: str) -> None:
    quant = node(op, ["h", "s", "z"], ["a"], domain=domain)
    scale = {"s": np.array(0.5, np.float32), "z": np.array(0, np.uint8)}
    with pytest.raises(LoadError, match=rf"{op} quantises activations"):
        deploy.load(chain(quant, constants=scale))


# Endings


def test_one_column_for_each_class_is_one_result() -> None:
    nodes = [
        node("Gemm", ["x", "W"], ["h"], transB=1),
        node("Softmax", ["h"], ["p"], axis=1),
        node("ArrayFeatureExtractor", ["p", "zero"], ["y0"], domain="ai.onnx.ml"),
        node("ArrayFeatureExtractor", ["p", "one"], ["y1"], domain="ai.onnx.ml"),
        node("ArgMax", ["p"], ["i"], axis=1),
        node("ArrayFeatureExtractor", ["names", "i"], ["label"], domain="ai.onnx.ml"),
    ]
    constants = {
        "W": W,
        "zero": np.array([0]),
        "one": np.array([1]),
        "names": np.array([b"cat", b"dog"], dtype=object),
    }
    model = deploy.load(make(nodes, outputs=["label", "y0", "y1"], constants=constants))
    assert (model.classes, model.tail, model.decision.rule) == (("cat", "dog"), "softmax", "argmax")
    with pytest.raises(LoadError, match=r"the outputs y1 are entries \[1\] of 2"):
        deploy.load(make(nodes[:4], outputs=["y1"], constants=constants))


def test_argmin_and_a_comparison_become_rules() -> None:
    gemm = node("Gemm", ["x", "W"], ["h"], transB=1)
    model = deploy.load(make([gemm, node("ArgMin", ["h"], ["y"], axis=1)], constants={"W": W}))
    assert model.decision.rule == "argmin"
    nodes = [gemm, node("Sigmoid", ["h"], ["p"]), node("Greater", ["p", "half"], ["y"])]
    model = deploy.load(make(nodes, constants={"W": W[:1], "half": np.array(0.5, np.float32)}))
    assert (model.decision.rule, model.tail) == ("sign", "none")


def test_the_caller_overrides_rule_classes_and_features() -> None:
    model = deploy.load(chain(RELU), decision="argmin", classes=["a", "b", "c"], features=["u", "v", "w"])
    assert model.decision.rule == "argmin"
    assert (model.classes, model.features) == (("a", "b", "c"), ("u", "v", "w"))
    with pytest.raises(LoadError, match="2 class labels for 3 classes"):
        deploy.load(chain(RELU), classes=["a", "b"])
    with pytest.raises(LoadError, match="decision rule sign needs 1 output"):
        deploy.load(chain(RELU), decision="sign")


# Refusals, and what is dropped


@pytest.mark.parametrize(
    ("model", "pattern"),
    [
        (chain(node("Tanh", ["h"], ["a"], name="squash")), r"node squash \(Tanh\): Tanh is not supported"),
        (chain(node("Elu", ["h"], ["a"])), "Elu is not supported"),
        (chain(node("Add", ["h", "h"], ["a"])), "joins two values"),
        (chain(node("MatMul", ["h", "h"], ["a"])), "attention or a bilinear layer"),
        (chain(node("Softmax", ["h"], ["a"], axis=1)), "softmax in the middle"),
        (chain(node("Pow", ["h", "three"], ["a"]), constants={"three": np.array(3.0, np.float32)}), "exponent"),
        (chain(node("Relu", ["gone"], ["a"])), "tensor gone is used and made nowhere"),
        (chain(node("Relu", ["a"], ["b"]), node("Relu", ["b"], ["a"])), "cycle"),
        (chain(node("Dropout", ["h", "", "on"], ["a"]), constants={"on": np.array(True)}), "training mode"),
        (chain(node("If", ["h"], ["a"])), "If is not supported"),
        (make([node("Relu", ["x"], ["y"])]), "no affine layer"),
        (make([node("Gemm", ["W", "V"], ["y"])], constants={"W": W, "V": V}), "does not depend on the input"),
        (make([node("MatMul", ["x", "W"], ["y"])], constants={"W": W}), r"\[1, 3\] and \[2, 3\]: 3 is not 2"),
        (chain(RELU, outputs=["y", "h"]), "two outputs that matter, y and h"),
    ],
)
def test_what_is_no_relu_chain_is_refused(model: onnx.ModelProto, pattern: str) -> None:
    with pytest.raises(LoadError, match=pattern):
        deploy.load(model)


def test_a_softmax_over_several_groups_is_refused() -> None:
    nodes = [
        node("MatMul", ["x", "W"], ["h"]),
        node("Reshape", ["h", "shape"], ["pairs"]),
        node("Softmax", ["pairs"], ["y"], axis=2),
    ]
    constants = {"W": np.ones((3, 6), np.float32), "shape": np.array([-1, 3, 2])}
    with pytest.raises(LoadError, match="several groups a row"):
        deploy.load(make(nodes, constants=constants))


def test_a_second_activation_on_one_layer_is_a_branch() -> None:
    with pytest.raises(LoadError, match=r"Abs.*branches off"):
        deploy.load(chain(RELU, node("Abs", ["h"], ["second"]), outputs=["y", "second"]))


def test_a_relayout_takes_the_bias_along() -> None:
    nodes = [
        node("Gemm", ["x", "W", "b"], ["h"], transB=1),
        node("Slice", ["h", "from", "to", "axis", "step"], ["turned"]),
        node("MatMul", ["turned", "U"], ["y"]),
    ]
    numbers = {name: np.array([value]) for name, value in (("from", -1), ("to", -9), ("axis", 1), ("step", -1))}
    bias, last = np.array([1.0, 10.0], np.float32), np.array([[1.0, 3.0], [2.0, -1.0]], np.float32)
    model = deploy.load(make(nodes, constants={"W": W, "b": bias, "U": last, **numbers}))
    expected = (ROWS @ W.T.astype(float) + bias)[:, ::-1] @ last
    np.testing.assert_allclose(model.outputs(ROWS), expected, rtol=1e-12)


def test_two_inputs_that_matter_are_named() -> None:
    model = chain(RELU)
    model.graph.input.append(helper.make_tensor_value_info("W", TensorProto.FLOAT, [2, 3]))
    del model.graph.initializer[0]
    with pytest.raises(LoadError, match="2 inputs that matter: x, W"):
        deploy.load(model)


def test_a_layer_beyond_the_limit_is_refused_with_its_size() -> None:
    with pytest.raises(LoadError, match="would have 6 entries, the limit is 5"):
        deploy.load(chain(RELU), max_parameters=5)


def test_a_relu_on_the_logits_is_kept_and_a_second_one_dropped() -> None:
    nodes = [node("Gemm", ["x", "W"], ["h"], transB=1), node("Relu", ["h"], ["r"]), node("Relu", ["r"], ["y"])]
    model = deploy.load(make(nodes, constants={"W": W}))
    assert model.widths == (3, 2, 2)
    np.testing.assert_allclose(model.outputs(ROWS), np.maximum(ROWS @ W.T.astype(float), 0), rtol=1e-12)


def test_a_relu_in_front_of_the_first_layer_is_kept() -> None:
    model = deploy.load(make([node("Relu", ["x"], ["r"]), node("MatMul", ["r", "W"], ["y"])], constants={"W": W.T}))
    assert model.widths == (3, 3, 2)
    np.testing.assert_allclose(model.outputs(ROWS), np.maximum(ROWS, 0) @ W.T.astype(float), rtol=1e-12)


def test_old_opsets_broadcast_along_an_axis() -> None:
    add = node("Add", ["h", "b"], ["a"], axis=1, broadcast=1)
    model = deploy.load(chain(add, constants={"b": np.array([1.0, -1.0], np.float32)}, opset=6))
    np.testing.assert_allclose(model.outputs(ROWS), (ROWS @ W.T.astype(float) + [1, -1]) @ V.T, rtol=1e-6)


def test_local_functions_are_inlined() -> None:
    body = [node("MatMul", ["v", "w"], ["m"]), node("Relu", ["m"], ["r"])]
    function = helper.make_function("local", "Layer", ["v", "w"], ["r"], body, [helper.make_opsetid("", 13)])
    model = make(
        [node("Layer", ["x", "W"], ["h"], domain="local"), node("MatMul", ["h", "V"], ["y"])],
        constants={"W": W.T, "V": V.T},
    )
    model.opset_import.append(helper.make_opsetid("local", 1))
    model.functions.append(function)
    np.testing.assert_allclose(deploy.load(model).outputs(ROWS), relu_output(), rtol=1e-12)


@pytest.mark.parametrize(("mode", "pads"), [("SAME_UPPER", (0, 1)), ("SAME_LOWER", (1, 0)), ("VALID", (0, 0))])
def test_automatic_padding(mode: str, pads: tuple[int, int]) -> None:
    kernel = np.array([[[1.0, 2.0]]], np.float32)
    model = deploy.load(
        make([node("Conv", ["x", "K"], ["y"], auto_pad=mode)], dims=(1, 1, 3), constants={"K": kernel})
    )
    x = np.array([1.0, 10.0, 100.0])
    padded = np.pad(x, pads)
    np.testing.assert_allclose(model.outputs(x[None])[0], padded[:-1] + 2 * padded[1:], rtol=1e-12)


def test_a_transposed_convolution_equals_the_reference(rng: np.random.Generator) -> None:
    from onnx.reference import ReferenceEvaluator

    kernel, x = rng.normal(size=(2, 3, 2, 2)).astype(np.float32), rng.normal(size=(1, 2, 3, 3)).astype(np.float32)
    convolution = node("ConvTranspose", ["x", "K"], ["y"], strides=[2, 1], pads=[1, 0, 0, 1])
    model = make([convolution], dims=(1, 2, 3, 3), constants={"K": kernel})
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    found = deploy.load(model).outputs(x.reshape(1, -1).astype(float))
    np.testing.assert_allclose(found.ravel(), expected.ravel(), rtol=1e-5, atol=1e-5)  # float32 reference
