"""A server on kernels answers as one on SEAL does, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
from polynomials import Session, random_polynomial_network

from deploy.errors import RequirementMissing
from fhe.plan import Parameters, PlanOptions, Ranges, plan_network
from fhe.rns.backend import constant_words
from fhe.roles import CkksServerRole
from fhe.runtime.seal import SealContext

pytest.importorskip("tenseal")

THROUGHPUT = PlanOptions(packing="throughput")
CASES = {
    "wide": ((784, 128, 10), 2, PlanOptions(poly_modulus_degree=8192)),
    "server rotates": ((100, 20, 4), 2, PlanOptions(client_rotations=False)),
    "deep": ((20, 12, 9, 7, 3), 2, PlanOptions()),
    "tiled": ((5000, 6, 2), 2, PlanOptions(poly_modulus_degree=8192)),
    "degree 3": ((12, 8, 3), 3, PlanOptions()),
    "degree 4": ((12, 8, 3), 4, PlanOptions()),
    "degree 7": ((12, 8, 3), 7, PlanOptions()),
    "interleaved": ((30, 10, 4), 2, PlanOptions(packing="interleaved")),
    "linear": ((9, 4), 2, PlanOptions()),
    "throughput": ((9, 7, 4), 2, THROUGHPUT),
    "deep throughput": ((8, 6, 5, 3), 2, THROUGHPUT),
}


@pytest.mark.parametrize("case", CASES)
def test_answers_equal_seals_byte_for_byte(rng, tmp_path, case):
    widths, degree, options = CASES[case]
    network = random_polynomial_network(rng, widths, degree=degree)
    x = rng.random((40, widths[0]))
    plan = plan_network(network, Ranges.seen(network, x), options)
    session = Session(plan, network, tmp_path, kernels=True)
    seal = CkksServerRole(plan, network, kernels=False)
    key = seal.load_key(tmp_path / "evaluation.keys")
    for row in range(2):
        rows = x[row : row + 1]
        request = session.client.encrypt(rows, session.keys.secret)
        answer = session.server.infer(request, session.key)
        assert answer == seal.infer(request, key)
        errors = session.client.decrypt(answer, session.keys.secret)[:1] - network.logits(rows)
        assert np.abs(errors).max() <= max(plan.bound)


@pytest.mark.parametrize("value", [0.5, -0.5, 1.5, -2.5, 0.49999999999999994, 1e9 + 0.5, -3e17, 1e20, -4e21, 0.0])
def test_numbers_are_encoded_as_seal_does(value):
    context = SealContext(Parameters(poly_modulus_degree=4096, coeff_modulus_bits=(40, 35, 34)))
    plain = context.plain_words(context.encode(value, 2, 1.0), 2) if value else np.zeros((2, 4096))
    assert np.array_equal(constant_words(value, context.parameters.data_primes, 4096), plain)


def test_plaintexts_that_are_not_kept_are_encoded_again_with_the_same_answer(rng, tmp_path):
    network = random_polynomial_network(rng, (20, 9, 3))
    x = rng.random((40, 20))
    session = Session(plan := plan_network(network, Ranges.seen(network, x), PlanOptions()), network, tmp_path)
    request = session.client.encrypt(x[:1], session.keys.secret)
    frugal = CkksServerRole(plan, network, kept_bytes=0, kernels=True)
    assert frugal.infer(request, session.key) == session.server.infer(request, session.key)


def test_keys_of_one_backend_are_no_keys_of_the_other(rng, tmp_path):
    network = random_polynomial_network(rng, (20, 9, 3))
    x = rng.random((40, 20))
    plan = plan_network(network, Ranges.seen(network, x), PlanOptions())
    session = Session(plan, network, tmp_path, kernels=True)
    request = session.client.encrypt(x[:1], session.keys.secret)
    with pytest.raises(TypeError, match="another evaluation"):
        CkksServerRole(plan, network, kernels=False).infer(request, session.key)
    with pytest.raises(TypeError, match="another evaluation"):
        session.server.infer(request, object())


def test_without_numba_seal_computes_and_kernels_asked_for_are_refused(rng, tmp_path, monkeypatch):
    network = random_polynomial_network(rng, (20, 9, 3))
    x = rng.random((40, 20))
    plan = plan_network(network, Ranges.seen(network, x), PlanOptions())
    session = Session(plan, network, tmp_path, kernels=True)
    request = session.client.encrypt(x[:1], session.keys.secret)
    answer = session.server.infer(request, session.key)
    monkeypatch.setattr("deploy.requirement.Requirement.is_met", lambda self: self.module != "numba")
    plain = CkksServerRole(plan, network)
    assert plain.infer(request, plain.load_key(tmp_path / "evaluation.keys")) == answer
    monkeypatch.setitem(__import__("sys").modules, "numba", None)
    with pytest.raises(RequirementMissing, match="numba is not installed"):
        CkksServerRole(plan, network, kernels=True).infer(request, session.key)
