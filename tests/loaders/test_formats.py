"""Which format a file is in, and the small formats: safetensors, npz, .nnet, equilibrium networks."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deploy
from deploy.errors import LoadError, UsageError
from deploy.model import Decision, Equilibrium, Mlp


def test_importing_deploy_loads_no_reader() -> None:
    code = (
        "import deploy, sys; print([m for m in ('onnx', 'torch', 'h5py', 'sklearn', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "content", "pattern"),
    [
        ("model.onnx", b"", "the file is empty"),
        ("model.onnx", b"\xff\xff not a model", "not an ONNX model, or damaged"),
        ("model.onnx", b"hello", "not an ONNX model, or damaged|holds no graph"),
        ("model.tflite", b"TFL3....", "export the model as ONNX"),
        ("model.pkl", b"anything", "can run any code"),
        ("anything", b"\x80\x04K\x01.", "can run any code"),
    ],
)
def test_what_is_no_model_is_refused_with_the_file_named(
    name: str, content: bytes, pattern: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LoadError, match=pattern) as caught:
        deploy.load(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert caught.value.exit_code == 4


def test_folders_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no such file"):
        deploy.load(tmp_path / "none.onnx")
    with pytest.raises(LoadError, match="a folder"):
        deploy.load(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"x")
    with pytest.raises(LoadError, match=r"SavedModel.*tf2onnx"):
        deploy.load(tmp_path)
    with pytest.raises(LoadError, match="an object of type int"):
        deploy.load(3)


def test_an_archive_without_a_model_names_its_members(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "odd.zip", "w") as archive:
        archive.writestr("notes.txt", "nothing here")
    with pytest.raises(LoadError, match=r"holds no model.*notes\.txt"):
        deploy.load(tmp_path / "odd.zip")


def test_a_decompression_bomb_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.loaders.archive.LARGE", 1 << 20)
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("W.npy", b"\0" * (64 << 20))
    with pytest.raises(LoadError, match="grows 1000 times"):
        deploy.load(tmp_path / "bomb.npz")


def state(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "first.weight": rng.normal(size=(5, 3)).astype(np.float32),
        "first.bias": rng.normal(size=5).astype(np.float32),
        "second.weight": rng.normal(size=(2, 5)).astype(np.float32),
    }


def expected(tensors: dict[str, Any], x: Any) -> Any:
    wide = {name: np.asarray(array, dtype=np.float64) for name, array in tensors.items()}
    return np.maximum(x @ wide["first.weight"].T + wide["first.bias"], 0) @ wide["second.weight"].T


def test_safetensors_with_and_without_a_layer_list(tmp_path: Path, rng: np.random.Generator) -> None:
    from safetensors.numpy import save_file

    tensors, x = state(rng), rng.normal(size=(4, 3))
    save_file(tensors, tmp_path / "model.safetensors")
    for layers in (None, "first,relu,second", ["first", "second"]):
        model = deploy.load(tmp_path / "model.safetensors", layers=layers)
        np.testing.assert_allclose(model.outputs(x), expected(tensors, x), rtol=1e-12)
    assert any("first - relu - second" in note for note in deploy.load(tmp_path / "model.safetensors").notes)


def test_bfloat16_safetensors_are_cast_exactly(tmp_path: Path) -> None:
    values = np.array([[1.0, -2.5], [0.125, 3.0]], np.float32)
    raw = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    header = json.dumps({"fc.weight": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, len(raw)]}}).encode()
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + raw)
    model = deploy.load(tmp_path / "m.safetensors")
    assert isinstance(model, Mlp)
    assert np.array_equal(model.affines[0].weight, values)


def test_reparametrised_weights_are_made_plain(rng: np.random.Generator) -> None:
    v, g, mask = rng.normal(size=(4, 3)), rng.uniform(1, 2, size=(4, 1)), np.array([[1.0, 0, 1, 1], [0, 1, 1, 0]])
    tensors = {
        "a.weight_g": g,
        "a.weight_v": v,
        "b.weight_orig": np.ones((2, 4)),
        "b.weight_mask": mask,
        "c.kernel": np.ones((2, 3)),
    }
    model = deploy.load(tensors)
    assert isinstance(model, Mlp)
    np.testing.assert_allclose(
        model.affines[0].weight, g * v / np.linalg.norm(v, axis=1, keepdims=True), rtol=1e-12
    )
    assert np.array_equal(model.affines[1].weight, mask)
    assert model.affines[2].weight.shape == (3, 2)


@pytest.mark.parametrize(
    ("tensors", "pattern"),
    [
        ({"conv.weight": np.ones((4, 1, 3, 3))}, "a convolution, whose stride"),
        ({"norm.weight": np.ones(3), "norm.bias": np.ones(3)}, "no known layer"),
        ({"fc.weight": np.ones((2, 3)), "fc.bias": np.array([0.0, np.nan])}, "fc.bias has 1 of 2 entries"),
        (
            {"a.weight": np.ones((2, 3)), "b.weight": np.ones((4, 5))},
            "no order in which the widths fit: a .3 to 2., b",
        ),
        ({}, "no state_dict|no tensors"),
    ],
)
def test_tensors_of_no_chain_are_refused(tensors: dict[str, Any], pattern: str) -> None:
    with pytest.raises(LoadError, match=pattern):
        deploy.load(tensors)


def nnet(path: Path, *, means: str = "1,2,0,10,", ranges: str = "2,4,1,3,", clamp: str = "9,9,9,") -> None:
    text = ["// a comment", "2,3,2,4,", "3,2,2,", "0,", "0,0,0,", clamp, means, ranges]
    text += ["1,0,-1,", "0,1,1,", "0.5,", "-0.5,", "1,1,", "2,-1,", "0.25,", "0,"]
    path.write_text("\n".join(text))


def test_nnet_normalisation_is_folded(tmp_path: Path) -> None:
    nnet(tmp_path / "model.nnet")
    x = np.array([[1.0, 6.0, 2.0], [3.0, -2.0, 0.0]])
    z = (x - [1, 2, 0]) / [2, 4, 1]
    hidden = np.maximum(z @ np.array([[1, 0, -1], [0, 1, 1]]).T + [0.5, -0.5], 0)
    y = (hidden @ np.array([[1, 1], [2, -1]]).T + [0.25, 0]) * 3 + 10
    model = deploy.load(tmp_path / "model.nnet")
    np.testing.assert_allclose(model.outputs(x), y, rtol=1e-12)
    assert any("not clamped" in note for note in model.notes)


def test_a_nnet_file_that_is_cut_off_names_the_row(tmp_path: Path) -> None:
    nnet(tmp_path / "model.nnet")
    lines = (tmp_path / "model.nnet").read_text().splitlines()
    (tmp_path / "model.nnet").write_text("\n".join(lines[:-3]))
    with pytest.raises(LoadError, match="ends before row 1 of layer 1"):
        deploy.load(tmp_path / "model.nnet")
    (tmp_path / "model.nnet").write_text("\n".join([*lines[:8], "1,x,-1,"]))
    with pytest.raises(LoadError, match="line 9: '1,x,-1' is no list of numbers"):
        deploy.load(tmp_path / "model.nnet")


def monotone(rng: np.random.Generator, m: float = 0.4) -> dict[str, Any]:
    A, B = 0.3 * rng.normal(size=(2, 4, 4))
    U, b, V, c = rng.normal(size=(4, 3)), rng.normal(size=4), rng.normal(size=(2, 4)), rng.normal(size=2)
    return {"A": A, "B": B, "m": np.array(m), "U": U, "b": b, "V": V, "c": c}


def solve(arrays: dict[str, Any], m: float, x: Any) -> Any:
    """Plain damped iteration, as slow as it is certain."""
    A, B = arrays["A"], arrays["B"]
    W = (1 - m) * np.eye(4) - A.T @ A + B - B.T
    z = np.zeros((len(x), 4))
    for _ in range(20_000):
        z = z + 0.05 * (np.maximum(z @ W.T + x @ arrays["U"].T + arrays["b"], 0) - z)
    return z @ arrays["V"].T + arrays["c"]


def test_an_equilibrium_network_in_either_spelling(tmp_path: Path, rng: np.random.Generator) -> None:
    arrays, x = monotone(rng), rng.normal(size=(5, 3))
    np.savez(tmp_path / "net.npz", **arrays)
    model = deploy.load(tmp_path / "net.npz")
    assert isinstance(model, Equilibrium)
    np.testing.assert_allclose(model.outputs(x), solve(arrays, 0.4, x), rtol=1e-8, atol=1e-8)  # both iterate
    assert any("well-posed" in note for note in model.notes)
    plain = {"W": model.W, **{name: arrays[name] for name in ("U", "b", "V", "c")}}
    assert deploy.load(plain).sha256 == model.sha256
    wrong = {**arrays, "W": model.W + 0.1}
    with pytest.raises(LoadError, match="W differs from"):
        deploy.load(wrong)


def test_an_equilibrium_state_dict_needs_m(rng: np.random.Generator) -> None:
    arrays, x = monotone(rng, 1.0), rng.normal(size=(5, 3))
    names = {
        "U": "mon.linear_module.U.weight",
        "A": "mon.linear_module.A.weight",
        "B": "mon.linear_module.B.weight",
    }
    names |= {"b": "mon.linear_module.U.bias", "V": "Wout.weight", "c": "Wout.bias"}
    tensors = {stored: arrays[name] for name, stored in names.items()}
    with pytest.raises(LoadError, match=r"m=1\.0"):
        deploy.load(tensors)
    model = deploy.load(tensors, layers="m=1.0")
    np.testing.assert_allclose(model.outputs(x), solve(arrays, 1.0, x), rtol=1e-8, atol=1e-8)  # both iterate


def test_an_equilibrium_network_that_is_not_well_posed_is_refused(rng: np.random.Generator) -> None:
    arrays = {"W": 2 * np.eye(3), "U": np.ones((3, 2)), "V": np.ones((1, 3))}
    with pytest.raises(LoadError, match="not well-posed"):
        deploy.load(arrays, decision="value:0.1")


def test_a_wrong_decision_is_a_usage_error(rng: np.random.Generator) -> None:
    with pytest.raises(UsageError, match="argmix"):
        deploy.load(state(rng), decision="argmix")
    with pytest.raises(UsageError, match="tolerance 'wide'"):
        deploy.load(state(rng), decision="value:wide")


def test_one_output_that_decides_by_value_is_said_unless_it_was_asked_for(rng) -> None:
    arrays = {"0.weight": rng.normal(size=(5, 3)), "0.bias": np.zeros(5)}
    arrays |= {"2.weight": rng.normal(size=(1, 5)), "2.bias": np.zeros(1)}
    assert "give a tolerance" in deploy.load(arrays).notes[-1]
    for asked in (Decision("value", 0.1), Decision("sign")):
        assert not [note for note in deploy.load(arrays, decision=asked).notes if "tolerance" in note]


def test_the_layer_list_that_is_suggested_is_of_the_files_own_names() -> None:
    """It can be given as it stands where the names are in order."""
    tensors = {"enc.0.weight": np.eye(3), "enc.1.running_var": np.ones(3), "out.weight": np.ones((2, 3))}
    with pytest.raises(LoadError, match=r"--layers enc\.0,enc\.1,relu,out,relu,x \(or layers"):
        deploy.load({**tensors, "enc.1.running_mean": np.zeros(3), "x.weight": np.ones((2, 7))})
    numbered = {name.removeprefix("enc.").replace("out", "2"): array for name, array in tensors.items()}
    numbered = {**numbered, "1.running_mean": np.zeros(3)}
    with pytest.raises(LoadError, match=r"--layers 0,1,relu,2 \(or layers"):
        deploy.load(numbered)
    assert deploy.load(numbered, layers="0,1,relu,2").widths == (3, 3, 2)
    many = {f"fc{index}.weight": np.ones((2, 3)) for index in range(40)}
    with pytest.raises(LoadError, match=r"--layers fc0,relu,fc1,.*,fc11,… \(or layers"):
        deploy.load(many)
