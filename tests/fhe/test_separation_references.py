"""The reference networks: what was promised of them, on rows that no conversion has looked at."""

from __future__ import annotations

import numpy as np
import pytest

from deploy.fidelity import compare_paired
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
    """Separate with seed 0: model, calibration rows, separation, and which calibration and held-out rows agree."""
    file, data, split = REFERENCES[name]
    model = load(inputs / "models" / f"{file}.onnx")
    x = np.load(inputs / "data" / f"{data}.npz")["x"].astype(np.float64)
    found = separate(model, x[:split], CkksOptions(**options), rng=np.random.default_rng(0))
    right = [
        model.decision.agree(model.logits(part), found.network.logits(part)) for part in (x[:split], x[split:])
    ]
    return model, x[:split], found, right


LONG = pytest.mark.long

AS_LEAST_SQUARES = None
"""MNIST at degree 6: least squares keeps 7,973 of the 8,000 rows. Keeping more is possible (the exact fit below keeps
all), but not for free: in five folds of the calibration rows the finish loses 5 judgements of 8,000 (±4), more than the one
standard error that the rule of fhe/separation/selection.py allows, and so no share above least squares' own follows from
that rule. The bound is that share, computed here, and the report must show the refusal."""


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
        pytest.param("mnist", {"degree": 6}, AS_LEAST_SQUARES, 0.996, marks=LONG),
        pytest.param("mnist", {"degree": 6, "fit": "exact"}, 1.0, 0.996, marks=LONG),
        pytest.param("mnist_deep", {"fit": "exact"}, 1.0, 0.979, marks=LONG),
        pytest.param("mnist_deep", {}, 0.99, 0.982, marks=LONG),
        pytest.param("shuttle64", {}, 0.998, 0.9984, marks=LONG),
    ],
)
def test_agreement_reaches_what_was_promised(inputs, name, options, calibration, held_out):
    model, x, found, (seen, unseen) = judge(inputs, name, **options)
    assert unseen.mean() >= held_out
    if calibration is not AS_LEAST_SQUARES:
        assert seen.mean() >= calibration
    if options.get("fit") != "exact":
        *_, (least_seen, least_unseen) = judge(inputs, name, **options, fit="least-squares")
        lead = compare_paired(unseen, least_unseen)
        assert lead.difference >= -lead.standard_error
        assert seen.mean() >= least_seen.mean()
        selection = found.report["selection"]
        picked = next(row for row in selection["candidates"] if row["fit"] == selection["picked"])
        refused = not selection["finished"] and selection["finished_agreement"] < picked["agreement"]
        assert refused or calibration is not AS_LEAST_SQUARES
    else:
        assert found.report["separable"] is True
        assert found.report["min_margin"] >= 0.1
        assert check_certificate(found.certificates["feasible.json"], model, x).kind == "feasible"
