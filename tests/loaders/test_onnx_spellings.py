"""Property: whatever the spelling, the loaded network computes what onnxruntime computes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from onnx_chains import Chain, chains

import deploy
from deploy.model import Mlp

ort = pytest.importorskip("onnxruntime")

QUICK, LONG = 300, 2000


def check(chain: Chain) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    # as written: the optimiser fuses dequantised weights into kernels that round the activations
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(chain.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001 (the runtime does not implement this spelling)
        assume(False)
    model = deploy.load(chain.model)
    assert isinstance(model, Mlp)
    for row in chain.calls:
        expected = session.run(None, {"x": row})[0]
        rows = row.reshape(-1, model.n_in).astype(np.float64)
        found = model.outputs(rows)
        # float32 arithmetic in the runtime: 1e-5 of the largest value on the way; double: 1e-9
        largest = max(float(np.abs(z).max()) for z in [rows, *model.preactivations(rows)])
        relative = 1e-9 if chain.dtype is np.float64 else 1e-5
        np.testing.assert_allclose(
            found.ravel(), expected.ravel(), atol=relative * max(1.0, largest), rtol=relative
        )


@settings(max_examples=QUICK, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(chains())
def test_any_spelling_equals_the_runtime(chain: Chain) -> None:
    check(chain)


@pytest.mark.long
@settings(max_examples=LONG, deadline=None, suppress_health_check=list(HealthCheck))
@given(chains())
def test_any_spelling_equals_the_runtime_at_length(chain: Chain) -> None:
    check(chain)
