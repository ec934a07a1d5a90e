"""Each real ONNX file loads and equals its recorded outputs, or is refused for the reason that the table gives."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import deploy
from deploy.errors import LoadError

REASONS = {
    "activation": "Tanh|Sigmoid",
    "branch or several outputs": "branch|two outputs",
    "activation quantiser": "Quant",
    "MaxPool": "MaxPool",
    "no chain": "attention|branch",
    "no affine layer": "no affine layer|branch",
    "output does not depend on input": "does not depend on the input",
    "tree ensemble": "tree ensemble",
    "training mode": "training mode",
    "branch": "no affine layer|branch",
}


def table(inputs: Path) -> list[dict[str, str]]:
    with (inputs / "onnx" / "expected.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_file_equals_its_outputs_or_is_refused_for_its_reason(inputs: Path) -> None:
    counts = {"load": 0, "refuse": 0}
    for row in table(inputs):
        path = inputs / "onnx" / f"{row['name']}.onnx"
        try:
            model = deploy.load(path)
        except LoadError as error:
            assert row["expect"] in ("refuse", "either"), str(error)
            assert path.name in str(error)
            if row["expect"] == "refuse":
                pattern = REASONS[row["why"]]
                assert any(word in str(error) for word in pattern.split("|")), f"{row['why']}: {error}"
            counts["refuse"] += 1
            continue
        assert row["expect"] in ("load", "either"), row["name"]
        with np.load(path.with_suffix("").with_suffix(".io.npz")) as io:
            arrays = [np.asarray(io[name], dtype=np.float64) for name in io.files]
        x, y = arrays[0], arrays[-1]
        found = model.outputs(x.reshape(-1, model.n_in))
        # float32 arithmetic of the recorded run: 1e-5 relative to the largest output
        np.testing.assert_allclose(
            found.ravel(), y.ravel(), rtol=1e-5, atol=1e-5 * np.abs(y).max(), err_msg=row["name"]
        )
        counts["load"] += 1
    print(counts)
    assert counts["load"] >= 36
    with pytest.raises(LoadError):
        deploy.load(inputs / "onnx" / "expected.csv")
