"""Damaged and hostile files end in a model or a LoadError, within 5 s and 1 GB, in every format."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import damaged_files
import numpy as np
import onnx
import pytest
from keras_files import KerasLayer, write_h5, write_keras
from onnx import TensorProto, helper, numpy_helper

QUICK, LONG = 1000, 10_000


def write_onnx(folder: Path) -> None:
    """Three small models that between them use most of the reader."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)

    def save(name: str, nodes: list[onnx.NodeProto], dims: list[object], tensors: list[onnx.TensorProto]) -> None:
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        graph = helper.make_graph(nodes, name, inputs, outputs, tensors)
        opsets = [helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx.ml", 2)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())

    node = helper.make_node
    save(
        "gemms",
        [
            node("Sub", ["x", "m"], ["s"]),
            node("Gemm", ["s", "W", "b"], ["h"], transB=1, alpha=0.5),
            node("LeakyRelu", ["h"], ["a"], alpha=0.1),
            node("Dropout", ["a"], ["d"]),
            node("MatMul", ["d", "V"], ["z"]),
            node("Softmax", ["z"], ["y"], axis=1),
        ],
        ["batch", 4],
        [weight("m", 4), weight("W", 5, 4), weight("b", 5), weight("V", 5, 3)],
    )
    save(
        "windows",
        [
            node("Conv", ["x", "K"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2], group=1, dilations=[1, 1]),
            node("Relu", ["c"], ["r"]),
            node("AveragePool", ["r"], ["p"], kernel_shape=[2, 2]),
            node("Shape", ["p"], ["shape"]),
            node("Gather", ["shape", "zero"], ["n"], axis=0),
            node("Unsqueeze", ["n", "axes"], ["u"]),
            node("Concat", ["u", "rest"], ["target"], axis=0),
            node("Reshape", ["p", "target"], ["flat"]),
            node("Gemm", ["flat", "W"], ["y"]),
        ],
        ["N", 1, 6, 6],
        [
            weight("K", 2, 1, 3, 3),
            numpy_helper.from_array(np.array(0), "zero"),
            numpy_helper.from_array(np.array([0]), "axes"),
            numpy_helper.from_array(np.array([-1]), "rest"),
            weight("W", 8, 2),
        ],
    )
    save(
        "folded",
        [
            node("ConstantOfShape", ["two"], ["ones"], value=helper.make_tensor("v", 1, [1], [1.0])),
            node("Tile", ["ones", "two"], ["tiled"]),
            node("Transpose", ["W"], ["Wt"], perm=[1, 0]),
            node("MatMul", ["x", "Wt"], ["h"]),
            node("Clip", ["h", "low", "high"], ["a"]),
            node("MatMul", ["a", "tiled"], ["y"]),
        ],
        [1, 3],
        [
            numpy_helper.from_array(np.array([2, 2]), "two"),
            weight("W", 4, 3),
            numpy_helper.from_array(np.array(0, np.float32), "low"),
            numpy_helper.from_array(np.array(6, np.float32), "high"),
        ],
    )


def write_arrays(folder: Path) -> None:
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    state = {"a.weight": rng.normal(size=(5, 3)), "a.bias": rng.normal(size=5), "b.weight": rng.normal(size=(2, 5))}
    save_file(state, folder / "plain.safetensors")
    A, B, U, V = (rng.normal(size=shape) for shape in ((4, 4), (4, 4), (4, 3), (2, 4)))
    np.savez(folder / "equilibrium.npz", A=A, B=B, m=0.5, U=U, b=np.zeros(4), V=V, c=np.zeros(2))
    lines = ["// comment", "2,3,2,4,", "3,4,2,", "0,", "0,0,0,", "1,1,1,", "0,0,0,0,", "1,1,1,1,"]
    for n_out, n_in in ((4, 3), (2, 4)):
        lines += [",".join(f"{w:.3f}" for w in row) + "," for row in rng.normal(size=(n_out, n_in))]
        lines += [f"{b:.3f}," for b in rng.normal(size=n_out)]
    (folder / "small.nnet").write_text("\n".join(lines) + "\n")


def write_hdf5(folder: Path) -> None:
    pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    layers = [
        KerasLayer("Dense", {"activation": "relu"}, (rng.normal(size=(3, 4)), np.zeros(4))),
        KerasLayer("BatchNormalization", {}, tuple(rng.uniform(0.5, 1, size=(4, 4)))),
        KerasLayer("Dense", {"activation": "softmax"}, (rng.normal(size=(4, 2)), np.zeros(2))),
    ]
    write_keras(folder / "model.keras", layers, (3,))
    write_h5(folder / "model.h5", layers, (3,))


def write_torch(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    torch.save(module.state_dict(), folder / "state.pt")
    torch.save(module.state_dict(), folder / "older.pt", _use_new_zipfile_serialization=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module, (torch.zeros(1, 3),)), folder / "exported.pt2")


def write_script(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(module, torch.zeros(1, 3)), folder / "script.pt")


WRITERS: dict[str, Callable[[Path], None]] = {
    "onnx": write_onnx,
    "detached": write_onnx,
    "arrays": write_arrays,
    "hdf5": write_hdf5,
    "torch": write_torch,
    "script": write_script,
}


def run_worker(kind: str, folder: Path, count: int, seed: int) -> None:
    WRITERS[kind](folder)
    command = [sys.executable, damaged_files.__file__, str(folder), str(count), str(seed), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    findings = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, f"the worker ended with {done.returncode}: {done.stderr[-2000:]}"
    assert findings, done.stderr[-2000:]
    assert findings[-1].get("done") == count
    assert findings[:-1] == []
    print(kind, findings[-1])


# of 1,000: more where more of the parser is ours
SHARES = {"onnx": 0.5, "detached": 0.15, "arrays": 0.15, "hdf5": 0.05, "torch": 0.1, "script": 0.05}


@pytest.mark.parametrize("kind", WRITERS)
def test_damage_ends_in_a_model_or_a_named_error(kind: str, tmp_path: Path) -> None:
    run_worker(kind, tmp_path, round(QUICK * SHARES[kind]), seed=1)


@pytest.mark.long
@pytest.mark.parametrize("kind", WRITERS)
def test_damage_ends_in_a_model_or_a_named_error_at_length(kind: str, tmp_path: Path) -> None:
    run_worker(kind, tmp_path, round(LONG * SHARES[kind]), seed=2)
