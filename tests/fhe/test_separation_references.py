"""The reference networks: what was promised of them, on rows that no conversion has looked at."""

from __future__ import annotations

import numpy as np
import pytest

from deploy.loaders import load
from fhe.certificate_checker import check_certificate
from fhe.options import CkksOptions
from fhe.separation import separate

REFERENCES = {
    "digits": ("reference/digits_64_32_10", "digits", 1437),
    "digits_deep": ("reference/digits_64_32_32_10", "digits", 1437),
    "breast_cancer": ("reference/breast_cancer_30_16_2", "breast_cancer", 455),
    "mnist": ("mnist_784_128_10/mnist_784_128_10.legacy", "mnist/mnist_t10k", 8000),
    "mnist_deep": ("reference/mnist_784_128_64_10", "mnist/mnist_t10k", 8000),
    "shuttle64": ("reference/shuttle_9_64_7", "shuttle/shuttle", 46400),
}


def judge(inputs, name, **options):
    """Separate with seed 0; the separation, and agreement on calibration and held-out rows."""
    file, data, split = REFERENCES[name]
    model = load(inputs / "models" / f"{file}.onnx")
    x = np.load(inputs / "data" / f"{data}.npz")["x"].astype(np.float64)
    found = separate(model, x[:split], CkksOptions(**options), rng=np.random.default_rng(0))
    shares = [
        float(model.decision.agree(model.logits(part), found.network.logits(part)).mean())
        for part in (x[:split], x[split:])
    ]
    return model, x[:split], found, shares


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "name,options,calibration,held_out",
    [
        ("digits", {}, 0.999, 0.994),
        ("digits_deep", {}, 0.999, 0.991),
        ("breast_cancer", {}, 0.99, 0.98),
        ("digits", {"fit": "exact"}, 1.0, 0.994),
        ("breast_cancer", {"fit": "exact"}, 1.0, 0.98),
        ("mnist", {"fit": "exact"}, 1.0, 0.988),
        pytest.param("mnist", {}, 0.999, 0.989, marks=LONG),
        pytest.param("mnist", {"degree": 6}, 0.996, 0.996, marks=LONG),
        pytest.param("mnist_deep", {"fit": "exact"}, 1.0, 0.979, marks=LONG),
        pytest.param("mnist_deep", {}, 0.99, 0.982, marks=LONG),
        pytest.param("shuttle64", {}, 0.998, 0.9984, marks=LONG),
    ],
)
def test_agreement_reaches_what_was_promised(inputs, name, options, calibration, held_out):
    model, x, found, shares = judge(inputs, name, **options)
    assert shares[0] >= calibration
    assert shares[1] >= held_out
    if options.get("fit") == "exact":
        assert found.report["separable"] is True
        assert found.report["min_margin"] >= 0.1
        assert check_certificate(found.certificates["feasible.json"], model, x).kind == "feasible"
