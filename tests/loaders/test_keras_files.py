"""Keras archives and HDF5 files, written by hand, against PyTorch's functional operators as the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras_files import KerasLayer, write_h5, write_keras

import deploy
from deploy.errors import LoadError

pytest.importorskip("h5py")
torch = pytest.importorskip("torch")
F = torch.nn.functional

WAYS = ("sequential", "functional", "renamed", "h5", "h5 functional")


def load(way: str, folder: Path, layers: Sequence[KerasLayer], shape: Sequence[int]) -> Any:
    if way.startswith("h5"):
        write_h5(folder / "model.h5", layers, shape, functional="functional" in way)
        return deploy.load(folder / "model.h5")
    write_keras(
        folder / "model.keras", layers, shape, offset=7 if way == "renamed" else 0, functional=way == "functional"
    )
    return deploy.load(folder / "model.keras")


def tensor(array: Any) -> Any:
    return torch.from_numpy(np.asarray(array, dtype=np.float64))


@pytest.mark.parametrize("way", WAYS)
def test_dense_layers_with_normalisation_and_tails(way: str, tmp_path: Path, rng: np.random.Generator) -> None:
    W, b, V, c = rng.normal(size=(6, 5)), rng.normal(size=5), rng.normal(size=(5, 3)), rng.normal(size=3)
    gamma, beta, mean, variance = rng.normal(size=5), rng.normal(size=5), rng.normal(size=5), rng.uniform(0.5, 2, 5)
    layers = [
        KerasLayer("Rescaling", {"scale": 0.5, "offset": -1.0}),
        KerasLayer("Flatten"),
        KerasLayer("Dense", {"activation": "relu"}, (W, b)),
        KerasLayer("BatchNormalization", {"epsilon": 1e-3}, (gamma, beta, mean, variance)),
        KerasLayer("Dropout", {"rate": 0.5}),
        KerasLayer("Dense", {"activation": {"class_name": "function", "config": "softmax"}}, (V, c)),
    ]
    model = load(way, tmp_path, layers, (2, 3))
    x = rng.normal(size=(7, 2, 3))
    hidden = np.maximum((0.5 * x - 1).reshape(7, -1) @ W + b, 0)
    logits = ((hidden - mean) / np.sqrt(variance + 1e-3) * gamma + beta) @ V + c
    expected = torch.softmax(tensor(logits), dim=1).numpy()
    np.testing.assert_allclose(model.outputs(model.check_rows(x)), expected, rtol=1e-12, atol=1e-12)
    assert model.input_shape == (2, 3)
    assert model.decision.rule == "argmax"


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_with_channels_last(
    padding: str, stride: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    K, b = rng.normal(size=(3, 2, 2, 4)), rng.normal(size=4)
    size = {("same", 1): 5, ("same", 2): 3, ("valid", 1): 3, ("valid", 2): 2}[padding, stride]
    columns = {("same", 1): 4, ("same", 2): 2, ("valid", 1): 3, ("valid", 2): 2}[padding, stride]
    W = rng.normal(size=(size * columns * 4, 3))
    layers = [
        KerasLayer("Conv2D", {"padding": padding, "strides": [stride, stride], "activation": "relu"}, (K, b)),
        KerasLayer("Flatten"),
        KerasLayer("Dense", {"use_bias": False}, (W,)),
    ]
    model = load("sequential", tmp_path, layers, (5, 4, 2))
    x = rng.normal(size=(3, 5, 4, 2))
    image = tensor(x).permute(0, 3, 1, 2)
    if padding == "same":
        totals = [max(0, (-(-n // stride) - 1) * stride + k - n) for n, k in ((5, 3), (4, 2))]
        image = F.pad(
            image, (totals[1] // 2, totals[1] - totals[1] // 2, totals[0] // 2, totals[0] - totals[0] // 2)
        )
    hidden = torch.relu(F.conv2d(image, tensor(K).permute(3, 2, 0, 1), tensor(b), stride=stride)).permute(
        0, 2, 3, 1
    )
    expected = hidden.reshape(3, -1).numpy() @ W
    np.testing.assert_allclose(model.outputs(model.check_rows(x)), expected, rtol=1e-12, atol=1e-12)


def test_pooling_padding_and_depthwise_convolution(tmp_path: Path, rng: np.random.Generator) -> None:
    K = rng.normal(size=(2, 2, 2, 3))
    layers = [
        KerasLayer("ZeroPadding2D", {"padding": [[1, 0], [0, 2]]}),
        KerasLayer("DepthwiseConv2D", {"use_bias": False}, (K,)),
        KerasLayer("AveragePooling2D", {"pool_size": [2, 2]}),
        KerasLayer("ReLU", {"max_value": 0.75, "negative_slope": 0.25}),
        KerasLayer("GlobalAveragePooling2D"),
    ]
    model = load("sequential", tmp_path, layers, (4, 3, 2))
    x = rng.normal(size=(3, 4, 3, 2))
    image = F.pad(tensor(x).permute(0, 3, 1, 2), (0, 2, 1, 0))
    weight = tensor(K).permute(2, 3, 0, 1).reshape(6, 1, 2, 2)
    hidden = F.avg_pool2d(F.conv2d(image, weight, groups=2), 2)
    expected = torch.clamp(F.leaky_relu(hidden, 0.25), max=0.75).mean(dim=(2, 3)).numpy()
    np.testing.assert_allclose(model.outputs(model.check_rows(x)), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (KerasLayer("LeakyReLU", {"negative_slope": 0.1}), lambda z: F.leaky_relu(z, 0.1)),
        (KerasLayer("LeakyReLU", {"alpha": 0.2}), lambda z: F.leaky_relu(z, 0.2)),
        (KerasLayer("ReLU", {"max_value": 2.0}), lambda z: torch.clamp(z, 0, 2)),
        (KerasLayer("Activation", {"activation": "relu6"}), lambda z: torch.clamp(z, 0, 6)),
        (KerasLayer("PReLU", {}, (np.array([0.1, -0.2, 0.3]),)), lambda z: F.prelu(z, tensor([0.1, -0.2, 0.3]))),
        (KerasLayer("Softmax"), lambda z: torch.softmax(z, dim=1)),
        (KerasLayer("Activation", {"activation": "sigmoid"}), torch.sigmoid),
    ],
)
def test_activations(layer: KerasLayer, expected: Any, tmp_path: Path, rng: np.random.Generator) -> None:
    W, b = rng.normal(size=(4, 3)), rng.normal(size=3)
    model = load("sequential", tmp_path, [KerasLayer("Dense", {}, (W, b)), layer], (4,))
    x = 3 * rng.normal(size=(6, 4))
    np.testing.assert_allclose(model.outputs(x), expected(tensor(x @ W + b)).numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("layers", "pattern"),
    [
        ([KerasLayer("Dense", {"activation": "tanh"}, (np.eye(2), np.zeros(2)))], "activation tanh"),
        ([KerasLayer("LSTM")], "LSTM is not supported"),
        ([KerasLayer("Dense", {}, (np.eye(2), np.array([0, np.nan])))], "NaN"),
        ([KerasLayer("Dense", {}, (np.eye(3), np.zeros(3)))], "2 is not 3"),
        ([KerasLayer("Dense", {})], "0 arrays of weights"),
        ([KerasLayer("Flatten")], "no affine layer"),
        ([KerasLayer("Softmax"), KerasLayer("Dense", {}, (np.eye(2), np.zeros(2)))], "softmax in the middle"),
    ],
)
def test_what_is_no_relu_network_is_refused(layers: list[KerasLayer], pattern: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=pattern):
        load("sequential", tmp_path, layers, (2,))


def test_weights_without_a_configuration_are_refused(tmp_path: Path) -> None:
    import h5py

    with h5py.File(tmp_path / "weights.h5", "w") as file:
        file.create_dataset("kernel", data=np.eye(2))
    with pytest.raises(LoadError, match="save the whole model"):
        deploy.load(tmp_path / "weights.h5")
