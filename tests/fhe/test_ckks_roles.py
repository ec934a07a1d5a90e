"""Client and server: what each holds, what each refuses."""

from __future__ import annotations

import numpy as np
import pytest
from polynomials import Session, interface_for, random_polynomial_network

from deploy.errors import DataError, WireError
from fhe.plan import Exchange, PlanOptions, Ranges, plan_network
from fhe.roles import CkksClientRole, CkksServerRole
from fhe.runtime.engine import CkksEngine


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    rng = np.random.default_rng(5)
    network = random_polynomial_network(rng, (12, 8, 3))
    x = rng.random((40, 12))
    plan = plan_network(network, Ranges.seen(network, x), PlanOptions(poly_modulus_degree=8192))
    return network, x, plan, Session(plan, network, tmp_path_factory.mktemp("keys"))


def test_sizes_on_the_wire_are_the_predicted_ones(case):
    _, x, plan, session = case
    request = session.client.encrypt(x[:1], session.keys.secret)
    answer = session.server.infer(request, session.key)
    assert len(session.keys.evaluation) == plan.expected.key_bytes == session.server.limits.key_bytes
    assert len(request) == plan.expected.request_bytes == session.client.limits.request_bytes
    assert len(answer) == plan.expected.answer_bytes == session.client.limits.answer_bytes


def test_two_encryptions_of_one_row_differ(case):
    _, x, _, session = case
    assert session.client.encrypt(x[:1], session.keys.secret) != session.client.encrypt(x[:1], session.keys.secret)


def test_two_key_generations_differ(case):
    _, _, _, session = case
    assert session.client.generate_keys().secret != session.keys.secret


def test_what_the_client_is_given_holds_no_weight(case):
    network, _, plan, _ = case
    archive = plan.exchange.to_bytes() + interface_for(network).to_bytes()
    text = archive.decode()
    for layer in network.affines:
        for value in layer.weight.ravel():
            assert np.float64(value).tobytes() not in archive
            assert np.float32(value).tobytes() not in archive
            assert repr(float(value)) not in text
    again = Exchange.from_bytes(plan.exchange.to_bytes())
    assert again == plan.exchange


def test_secret_key_is_refused_by_the_server(case, tmp_path):
    _, _, _, session = case
    path = tmp_path / "keys"
    for data in (session.keys.secret, session.keys.secret[88:]):
        path.write_bytes(data)
        with pytest.raises(WireError) as caught:
            session.server.check_key(path)
        assert caught.value.code == "secret_key" and "keep it" in caught.value.hint


def test_keys_of_another_rotation_set_are_refused(case, tmp_path):
    _, _, _, session = case
    rng = np.random.default_rng(1)
    other = random_polynomial_network(rng, (200, 50, 3))
    plan = plan_network(other, Ranges.seen(other, rng.random((20, 200))), PlanOptions(poly_modulus_degree=8192))
    keys = CkksClientRole(plan.exchange, interface_for(other)).generate_keys()
    path = tmp_path / "keys"
    path.write_bytes(keys.evaluation[: session.server.limits.key_bytes])
    with pytest.raises(WireError) as caught:
        session.server.check_key(path)
    assert caught.value.code == "key_scope"


def test_two_models_of_one_shape_share_keys(case, tmp_path):
    _, x, _, session = case
    rng = np.random.default_rng(77)
    update = random_polynomial_network(rng, (12, 8, 3), dead=0.0, linear=0.0)
    plan = plan_network(update, Ranges.seen(update, x), PlanOptions(poly_modulus_degree=8192))
    if plan.exchange.key_scope != session.keys.scope:
        pytest.skip("the two networks were planned with different parameters")
    path = tmp_path / "keys"
    path.write_bytes(session.keys.evaluation)
    server = CkksServerRole(plan, update)
    answer = server.infer(
        CkksClientRole(plan.exchange, interface_for(update)).encrypt(x[:1], session.keys.secret),
        server.load_key(path),
    )
    assert len(answer) == plan.expected.answer_bytes


def test_answer_needs_a_key(case):
    _, x, _, session = case
    with pytest.raises(WireError) as caught:
        session.server.infer(session.client.encrypt(x[:1], session.keys.secret), None)
    assert caught.value.code == "key_missing" and caught.value.http_status == 404


def test_rows_beyond_a_request_are_refused_with_numbers(case):
    _, x, _, session = case
    with pytest.raises(DataError, match="2 rows, a request carries 1 to 1"):
        session.client.encrypt(x[:2], session.keys.secret)


def test_engine_reports_logits_and_both_times(case):
    network, x, plan, _ = case
    with CkksEngine(plan, network, interface_for(network)) as engine:
        run = engine.run(x[:3])
    assert run.failures == {} and run.seconds["client"] > 0 and run.seconds["server"] > 0
    assert (np.abs(run.logits - network.logits(x[:3])) <= plan.bound).all()


def test_every_slot_of_an_answer_is_a_full_output(case):
    """Nobody reads a partial sum: each slot's number is one of the logits, imaginary parts are zero."""
    network, x, plan, session = case
    answer = session.server.infer(session.client.encrypt(x[:1], session.keys.secret), session.key)
    seen = []
    session.client._logits = lambda slots: seen.append(slots[0])  # type: ignore[method-assign]
    try:
        session.client.decrypt(answer, session.keys.secret)
    finally:
        del session.client._logits
    logits = network.logits(x[:1])[0]
    outputs = np.arange(plan.exchange.positions) % plan.exchange.answer_period % plan.exchange.n_out
    # a slot's own noise is not averaged: up to the square root of the number of replicas more than the mean's
    slack = 8 * max(plan.bound)
    assert np.abs(seen[0].real - logits[outputs]).max() < slack
    assert np.abs(seen[0].imag).max() < slack
