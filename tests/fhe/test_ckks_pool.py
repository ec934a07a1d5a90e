"""Worker processes answer as the role does, and pass its refusals on."""

from __future__ import annotations

import numpy as np
import pytest
from polynomials import planned_session, random_polynomial_network

from deploy.errors import UsageError, WireError
from fhe.plan import PlanOptions, Ranges, plan_network
from fhe.runtime.pool import WorkerPool


def test_two_processes_answer_every_request_in_order(rng, tmp_path):
    network, x, plan, session = planned_session(
        rng, (10, 6, 3), 30, tmp_path, PlanOptions(poly_modulus_degree=8192)
    )
    keys = tmp_path / "evaluation.keys"
    requests = [session.client.encrypt(row[None], session.keys.secret) for row in x[:5]]
    with WorkerPool(plan, network, workers=2) as pool:
        answers = pool.infer(requests, keys)
        with pytest.raises(WireError) as caught:
            pool.submit(requests[0][:-1], keys).result()
    assert caught.value.code == "envelope_size" and caught.value.hint
    logits = np.concatenate([session.client.decrypt(answer, session.keys.secret) for answer in answers])
    assert (np.abs(logits - network.logits(x[:5])) <= plan.bound).all()


def test_a_pool_without_workers_is_refused(rng):
    network = random_polynomial_network(rng, (4, 3, 2))
    plan = plan_network(network, Ranges.seen(network, rng.random((9, 4))))
    with pytest.raises(UsageError):
        WorkerPool(plan, network, workers=0)
