"""Client and server: what each holds, what each refuses."""

from __future__ import annotations

import numpy as np
import pytest
from polynomials import interface_for, planned_session, random_polynomial_network

from deploy.errors import DataError, WireError
from fhe.plan import Exchange, PlanOptions, Ranges, plan_network
from fhe.roles import CkksClientRole, CkksServerRole
from fhe.runtime.answer import trace_slots, trimmed
from fhe.runtime.cleartext import Cleartext
from fhe.runtime.engine import CkksEngine
from fhe.runtime.program import input_slots, program_of
from fhe.wire.envelope import Kind, unpack
from fhe.wire.sizes import ciphertext_bytes
from fhe.wire.streams import RESIDUES_AT


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    options = PlanOptions(poly_modulus_degree=8192)
    return planned_session(np.random.default_rng(5), (12, 8, 3), 40, tmp_path_factory.mktemp("keys"), options)


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


def _seen_slots(session, answer):
    """The slots that whoever holds the secret key reads in each ciphertext of an answer."""
    exchange, context = session.client.exchange, session.client._context
    decryptor = context.seal.Decryptor(context.context, session.client._secret(session.keys.secret))
    seen = []
    for stream in unpack(answer, Kind.ANSWER, exchange.key_scope, _answer_sizes(exchange)):
        ciphertext, plain = context.ciphertext(stream), context.seal.Plaintext()
        context.seal.Evaluator(context.context).transform_to_ntt_inplace(ciphertext)
        decryptor.decrypt(ciphertext, plain)
        seen.append(np.array(context.encoder.decode_complex(plain)))
    return seen


def _answer_sizes(exchange):
    return [
        ciphertext_bytes(exchange.parameters.poly_modulus_degree, 1, seeded=False)
    ] * exchange.answer_ciphertexts


def test_partial_sums_are_not_in_what_leaves_the_server(case, monkeypatch):
    """Untrimmed, every slot tells a partial sum over the owner's weights; what is sent tells the logits alone."""
    network, x, plan, session = case
    backend = Cleartext(plan.exchange.parameters)
    inputs = [backend.fresh(slots, plan.exchange.input_scale) for slots in input_slots(plan.exchange, x[:1])]
    sums = [answer.slots for answer in program_of(plan, network).run(backend, inputs)]
    request = session.client.encrypt(x[:1], session.keys.secret)
    with monkeypatch.context() as patched:
        patched.setattr("fhe.roles.trim_answer", lambda exchange, stream: stream)
        told = _seen_slots(session, session.server.infer(request, session.key))
    seen = _seen_slots(session, session.server.infer(request, session.key))
    for one, whole, sent in zip(sums, told, seen, strict=True):
        # a slot's own noise is not averaged: up to the square root of the number of replicas more than the mean's
        assert np.abs(whole - one).max() < 8 * max(plan.bound)
        means = one.reshape(-1, plan.exchange.answer_period).mean(axis=0).real
        hidden = one - np.tile(means, len(one) // plan.exchange.answer_period)
        # of 4,096 slots: five standard deviations of the correlation of independent numbers
        for part in (np.real, np.imag):
            assert abs(np.corrcoef(part(sent), part(hidden))[0, 1]) < 5 / 64
        assert np.abs(sent - one).mean() > 100 * np.abs(hidden).max()


def test_first_polynomial_of_an_answer_holds_one_number_for_each_output(case):
    _, x, plan, session = case
    exchange = plan.exchange
    n, prime = exchange.parameters.poly_modulus_degree, exchange.parameters.data_primes[0]
    answer = session.server.infer(session.client.encrypt(x[:1], session.keys.secret), session.key)
    for stream in unpack(answer, Kind.ANSWER, exchange.key_scope, _answer_sizes(exchange)):
        first = np.frombuffer(stream, "<u8", count=n, offset=RESIDUES_AT)
        places = np.flatnonzero(first)
        assert (places % (n // (2 * exchange.answer_period)) == 0).all()
        mirrored = places[places > 0]
        assert (first[mirrored] + first[n - mirrored] == prime).all()
        assert len(mirrored) // 2 + 1 == exchange.answer_period


@pytest.mark.parametrize("period", [1, 2, 4, 8])
def test_trimming_keeps_the_sum_of_an_outputs_slots_and_nothing_else(period):
    """On 16 coefficients, with slots as values at the powers of a root: exact up to the rounding of the roots."""
    rng = np.random.default_rng(period)
    prime, n = 1009, 16
    words = rng.integers(0, 40, size=n).astype(np.uint64)
    roots = np.exp(1j * np.pi / n * np.array([pow(3, slot, 2 * n) for slot in range(n // 2)]))
    slots = roots[:, None] ** np.arange(n) @ words.astype(float)
    means = slots.reshape(-1, period).mean(axis=0).real
    assert trace_slots(words, period, prime) == pytest.approx(np.tile(means, n // 2 // period), abs=1e-9)
    assert np.flatnonzero(trimmed(words, period, prime)).size <= 2 * period - 1


@pytest.mark.parametrize("period", [1, 2, 4, 8])
def test_what_decryption_adds_elsewhere_and_alike_does_not_move_an_output(period):
    """Numbers up to the prime at dropped coefficients, and the same one at a coefficient and its mirror image."""
    rng = np.random.default_rng(period)
    prime, n = 1009, 16
    words = rng.integers(0, prime, size=n).astype(np.uint64)
    sent = trimmed(words, period, prime)
    for _ in range(20):
        noise = rng.integers(0, prime, size=n).astype(np.uint64)
        step = n // (2 * period)
        noise[0] = 0
        noise[n // 2 + step :: step] = noise[n // 2 - step : 0 : -step]
        received = (sent + noise) % np.uint64(prime)
        assert trace_slots(received, period, prime) == pytest.approx(trace_slots(words, period, prime), abs=1e-9)
