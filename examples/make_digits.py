"""Make the model and the rows that ``relu-deploy demo`` ships: scikit-learn's digits and a 64-32-10 network.

Run ``python examples/make_digits.py`` to write ``deploy/demo/digits.onnx`` and ``deploy/demo/digits.npz``. The rows
are permuted, so that any part of them is a fair sample: 0 to 1200 train the network, 0 to 1437 calibrate it, and
1437 to 1797 are held out. scikit-learn is needed here only; the demo reads what is written.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

FOLDER = Path(__file__).resolve().parents[1] / "deploy" / "demo"
TRAINED, CALIBRATED = 1200, 1437


def read_rows() -> tuple[np.ndarray, np.ndarray]:
    """The 1797 digits, permuted: x (rows, 64) in steps of 1/16 from 0 to 1, y (rows,)."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    return (digits.data[order] / 16).astype(np.float32), digits.target[order].astype(np.int8)


def train(x: np.ndarray, y: np.ndarray) -> MLPClassifier:
    """A 64-32-10 ReLU network."""
    network = MLPClassifier(hidden_layer_sizes=(32,), alpha=1e-3, max_iter=400, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return network.fit(x, y)


def as_onnx(network: MLPClassifier) -> onnx.ModelProto:
    """Gemm, Relu, Gemm in single precision; the output is the logits."""
    tensors = []
    for index, (weight, bias) in enumerate(zip(network.coefs_, network.intercepts_, strict=True)):
        tensors.append(numpy_helper.from_array(weight.T.astype(np.float32).copy(), f"W{index}"))
        tensors.append(numpy_helper.from_array(bias.astype(np.float32), f"b{index}"))
    nodes = [
        helper.make_node("Gemm", ["x", "W0", "b0"], ["z0"], name="hidden", transB=1),
        helper.make_node("Relu", ["z0"], ["h0"], name="relu"),
        helper.make_node("Gemm", ["h0", "W1", "b1"], ["logits"], name="readout", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits_64_32_10",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> None:
    """Train, write, and say how good it is."""
    x, y = read_rows()
    network = train(x[:TRAINED], y[:TRAINED])
    model = as_onnx(network)
    onnx.checker.check_model(model)
    FOLDER.mkdir(exist_ok=True)
    onnx.save(model, FOLDER / "digits.onnx")
    np.savez_compressed(FOLDER / "digits.npz", x=x, y=y)
    print(f"accuracy on rows {CALIBRATED} to {len(x)}: {network.score(x[CALIBRATED:], y[CALIBRATED:]):.4f}")


if __name__ == "__main__":
    main()
