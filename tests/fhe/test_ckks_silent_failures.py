"""What TenSEAL and SEAL get silently wrong, shown wrong there, and refused or right here."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
from polynomials import Session, planned_session, random_polynomial_network

from deploy.errors import PlanError, WireError
from deploy.model import Affine, Decision
from deploy.ranges import Box
from fhe.network import PolynomialNetwork
from fhe.plan import Parameters, PlanOptions, Ranges, plan_network
from fhe.runtime.seal import SealContext
from fhe.wire.sizes import ciphertext_bytes

tenseal = pytest.importorskip("tenseal")


@pytest.fixture(scope="module")
def textbook():
    context = tenseal.context(
        tenseal.SCHEME_TYPE.CKKS, poly_modulus_degree=8192, coeff_mod_bit_sizes=[60, 40, 40, 60]
    )
    context.global_scale = 2**40
    context.generate_galois_keys()
    return context


def test_textbook_product_add_product_is_wrong_and_ours_is_right(textbook, tmp_path):
    """``vector.mm(W1) + b1`` touches the first slots only, the next ``mm`` reads replicas that lack the bias."""
    first, bias, second = np.ones((3, 2)), np.array([10.0, 20.0]), np.ones((2, 2))
    x = np.array([1.0, 2.0, 3.0])
    right = (x @ first + bias) @ second - 0.0
    vector = tenseal.ckks_vector(textbook, x.tolist())
    wrong = np.array((vector.mm(first.tolist()) + bias.tolist()).mm(second.tolist()).decrypt())
    assert np.abs(wrong - right).max() > 5
    network = PolynomialNetwork(
        (Affine(first.T, bias), Affine(second.T, np.zeros(2))),
        (np.array([[0.0, 1.0, 0.01], [0.0, 1.0, 0.01]]),),
        Decision("argmax"),
    )
    rows = np.array([x, [0.0, 0.0, 0.0], [3.0, 3.0, 3.0]])
    plan = plan_network(network, Ranges.seen(network, rows))
    session = Session(plan, network, tmp_path)
    assert (np.abs(session.logits(x[None]) - network.logits(x[None])) <= plan.bound).all()


def test_values_beyond_the_last_prime_wrap_around_there_and_are_planned_for_here(tmp_path):
    context = SealContext(Parameters(poly_modulus_degree=8192, coeff_modulus_bits=(60, 60, 60)))
    seal = context.seal
    secret = seal.KeyGenerator(context.context).secret_key()
    cipher, last, plain = seal.Ciphertext(), seal.Ciphertext(), seal.Plaintext()
    seal.Encryptor(context.context, secret).encrypt_symmetric(context.encode(1e9, 2, 2.0**40), cipher)
    seal.Evaluator(context.context).mod_switch_to_next(cipher, last)
    seal.Decryptor(context.context, secret).decrypt(last, plain)
    assert abs(context.encoder.decode_double(plain)[0] - 1e9) > 1e8
    network = PolynomialNetwork(
        (Affine(np.full((2, 39), 1.0), np.zeros(2)), Affine(np.array([[1e3, -1e3]]), np.zeros(1))),
        (np.array([[0.0, 1.0, 0.5], [0.0, 1.0, -0.5]]),),
        Decision("sign"),
    )
    x = np.random.default_rng(0).random((20, 39)) * 39
    plan = plan_network(network, Ranges.seen(network, x))
    assert plan.logit_range >= 2 * np.abs(network.logits(x)).max()
    session = Session(plan, network, tmp_path)
    assert (np.abs(session.logits(x[:1]) - network.logits(x[:1])) <= plan.bound).all()


def test_odd_free_polynomial_costs_no_transparent_product(tmp_path):
    """The degree-6 fit of an even function has zero odd coefficients: nothing is multiplied by zero."""
    rng = np.random.default_rng(2)
    table = np.zeros((5, 7))
    table[:, [2, 4, 6]] = rng.normal(size=(5, 3)) / [1, 4, 16]
    network = PolynomialNetwork(
        (Affine(rng.normal(size=(5, 6)) / 3, np.zeros(5)), Affine(rng.normal(size=(2, 5)), np.zeros(2))),
        (table,),
        Decision("argmax"),
    )
    x = rng.random((30, 6))
    plan = plan_network(network, Ranges.seen(network, x))
    assert not plan.stages[0].odd
    session = Session(plan, network, tmp_path)
    assert (np.abs(session.logits(x[:2]) - network.logits(x[:2])) <= plan.bound).all()


def test_constant_and_linear_polynomials_never_raise(tmp_path):
    rng = np.random.default_rng(2)
    table = np.array([[1.5, 0.0, 0.0], [0.25, 1.0, 0.0], [0.0, 0.5, 1e-17], [0.0, 0.0, 0.0]])
    network = PolynomialNetwork(
        (Affine(rng.normal(size=(4, 6)) / 3, np.zeros(4)), Affine(rng.normal(size=(2, 4)), np.zeros(2))),
        (table,),
        Decision("argmax"),
    )
    x = rng.random((30, 6))
    plan = plan_network(network, Ranges.seen(network, x))
    session = Session(plan, network, tmp_path)
    assert (np.abs(session.logits(x[:2]) - network.logits(x[:2])) <= plan.bound).all()


def test_a_chain_that_is_too_short_is_refused_with_the_numbers():
    rng = np.random.default_rng(0)
    network = random_polynomial_network(rng, (8, 8, 8, 8, 8, 3), dead=0.0, linear=0.0)
    ranges = Ranges.seen(network, rng.random((30, 8)))
    with pytest.raises(
        PlanError, match=r"4 hidden layers need 4 levels, the chain \[60, 40, 40, 60\] at N=8192 has 2"
    ):
        plan_network(network, ranges, PlanOptions(poly_modulus_degree=8192, coeff_modulus_bits=(60, 40, 40, 60)))
    assert len(plan_network(network, ranges).exchange.parameters.coeff_modulus_bits) >= 6


@pytest.mark.parametrize(("reach", "where"), [(1e31, "the inputs"), (1e29, "layer 1"), (1e14, "layer 2")])
def test_values_that_no_exponent_holds_are_refused_with_their_layer(reach, where):
    """The exponent of a hidden value is at most 100: beyond, values would leave [-1, 1] and wrap around."""
    rng = np.random.default_rng(0)
    network = random_polynomial_network(rng, (8, 30, 30, 3), dead=0.0, linear=0.0)
    network = PolynomialNetwork(
        (Affine(20 * network.affines[0].weight, network.affines[0].bias), *network.affines[1:]),
        network.coefficients,
        network.decision,
    )
    ends = np.full(8, reach)
    for ranges in (
        lambda: Ranges.proved(network, Box(-ends, ends, "proved")),
        lambda: Ranges.seen(network, np.stack([-ends, ends])),
    ):
        with pytest.raises(PlanError, match=rf"{where} may reach .*, ciphertexts hold values up to 2\*\*100"):
            ranges()


@pytest.mark.parametrize(
    ("n", "bits", "limit"),
    [(8192, (60, 60, 60, 60), 218), (16384, (60,) * 8, 438), (32768, (60,) * 15, 881), (65536, (60, 60), None)],
)
def test_parameters_outside_the_table_are_refused_with_the_numbers(n, bits, limit):
    with pytest.raises(PlanError) as caught:
        Parameters(poly_modulus_degree=n, coeff_modulus_bits=bits)
    text = str(caught.value)
    assert f"N={n}" in text and (limit is None or (str(limit) in text and str(sum(bits)) in text))


def test_primes_are_the_ones_that_seal_finds():
    from tenseal import sealapi

    for n, bits in ((8192, [60, 60, 60]), (8192, [54, 29, 24, 29, 24, 57]), (16384, [60, 40, 50, 40, 60])):
        found = [prime.value() for prime in sealapi.CoeffModulus.Create(n, bits)]
        assert Parameters(poly_modulus_degree=n, coeff_modulus_bits=tuple(bits)).primes == tuple(found)


def test_the_table_is_the_one_that_seal_enforces():
    from tenseal import sealapi

    from fhe.plan import MAX_MODULUS_BITS

    for n, bits in MAX_MODULUS_BITS.items():
        assert sealapi.CoeffModulus.MaxBitCount(n, sealapi.SEC_LEVEL_TYPE.TC128) == bits


@pytest.mark.parametrize(("widths", "ciphertexts"), [((2, 5000, 1), 2), ((3, 5, 4100), 2)])
def test_layer_wider_than_the_slots_travels_in_several_ciphertexts(widths, ciphertexts, tmp_path):
    """More than N / 2 values: TenSEAL prints a warning and computes with the first ones."""
    network = random_polynomial_network(np.random.default_rng(0), widths, dead=0.0, linear=0.0)
    x = np.random.default_rng(1).random((20, widths[0]))
    plan = plan_network(network, Ranges.seen(network, x), PlanOptions(poly_modulus_degree=8192))
    wide = int(np.argmax(widths[1:]))
    assert -(-widths[wide + 1] // plan.stages[wide].row_tile) >= ciphertexts
    session = Session(plan, network, tmp_path)
    assert (np.abs(session.logits(x[:1]) - network.logits(x[:1])) <= plan.bound).all()


def test_interleaving_more_rows_than_slots_is_refused_with_the_numbers():
    network = random_polynomial_network(np.random.default_rng(0), (4, 3, 2))
    ranges = Ranges.seen(network, np.random.default_rng(1).random((20, 4)))
    options = PlanOptions(poly_modulus_degree=8192, packing="interleaved", rows=8192)
    with pytest.raises(PlanError, match="8192 rows are interleaved, N=8192 has 4096 slots"):
        plan_network(network, ranges, options)


@pytest.mark.long
def test_product_with_matrices_beyond_the_slots_is_wrong_there_and_right_here(textbook, tmp_path):
    """TenSEAL's ``mm`` is silently wrong once inputs + outputs exceed the slots by more than one."""
    rng = np.random.default_rng(1)
    weight = rng.normal(size=(784, 3400)) / 28
    x = rng.random(784)
    wrong = np.array(tenseal.ckks_vector(textbook, x.tolist()).mm(weight.tolist()).decrypt())
    assert np.abs(wrong - x @ weight).max() > 1e-2
    network = PolynomialNetwork((Affine(weight.T, np.zeros(3400)),), (), Decision("argmax"))
    plan = plan_network(network, Ranges.seen(network, np.stack([x, 1 - x])), PlanOptions(poly_modulus_degree=8192))
    session = Session(plan, network, tmp_path)
    assert (np.abs(session.logits(x[None]) - network.logits(x[None])) <= plan.bound).all()


def test_keys_of_another_client_give_numbers_that_cannot_be_logits(tmp_path):
    """SEAL computes and decrypts with the wrong key without a word: the answer is far outside the plan's range."""
    network, x, plan, session = planned_session(np.random.default_rng(1), (6, 5, 3), 20, tmp_path)
    other = session.client.generate_keys()
    answer = session.server.infer(session.client.encrypt(x[:1], other.secret), session.key)
    assert np.abs(session.client.decrypt(answer, other.secret) - network.logits(x[:1])).max() > max(plan.bound)


def test_a_scale_set_by_hand_changes_numbers_there_and_is_refused_here(tmp_path):
    """SEAL takes any scale that is written into a ciphertext: half of it doubles the numbers, without a word."""
    _, x, session = _small_session(tmp_path)
    context = session.client._context
    secret = session.client._secret(session.keys.secret)
    cipher, plain = context.seal.Ciphertext(), context.seal.Plaintext()
    context.seal.Encryptor(context.context, secret).encrypt_symmetric(context.encode(3.0, 2, 2.0**40), cipher)
    cipher.scale = 2.0**39
    context.seal.Decryptor(context.context, secret).decrypt(cipher, plain)
    assert context.encoder.decode_double(plain)[0] == pytest.approx(6.0, abs=1e-6)
    request = bytearray(session.client.encrypt(x[:1], session.keys.secret))
    exchange = session.client.exchange
    first = len(request) - exchange.request_ciphertexts * ciphertext_bytes(
        exchange.parameters.poly_modulus_degree, exchange.parameters.levels, seeded=True
    )
    at = request.index(struct.pack("<d", exchange.input_scale), first)
    request[at : at + 8] = struct.pack("<d", exchange.input_scale / 2)
    request[48:80] = hashlib.sha256(request[first:]).digest()
    with pytest.raises(WireError) as caught:
        session.server.infer(bytes(request), session.key)
    assert caught.value.code == "ciphertext_scale"


def test_an_input_beyond_the_slots_is_cut_there_and_computed_with_here(textbook, tmp_path, capfd):
    """TenSEAL prints a warning and replaces the vector by chunks that its matrix product then refuses or misreads."""
    rng = np.random.default_rng(4)
    network = random_polynomial_network(rng, (4200, 2), dead=0.0, linear=0.0)
    x = rng.random((20, 4200))
    vector = tenseal.ckks_vector(textbook, x[0].tolist())
    assert "WARNING" in "".join(capfd.readouterr())
    with pytest.raises((ValueError, RuntimeError)):
        vector.mm(network.affines[0].weight.T.tolist())
    options = PlanOptions(poly_modulus_degree=8192, pairs=False, client_rotations=False)
    plan = plan_network(network, Ranges.seen(network, x), options)
    assert plan.exchange.request_ciphertexts == 2
    session = Session(plan, network, tmp_path)
    assert (np.abs(session.logits(x[:1]) - network.logits(x[:1])) <= plan.bound).all()


def test_a_request_without_its_context_is_an_empty_vector_there_and_is_refused_here(textbook, tmp_path):
    """A lazily read TenSEAL vector that was never linked has size 0, and squares without complaint."""
    lazy = tenseal.lazy_ckks_vector_from(tenseal.ckks_vector(textbook, [1.0, 2.0]).serialize())
    assert lazy.size() == 0
    lazy.square()
    _, x, session = _small_session(tmp_path)
    request = session.client.encrypt(x[:1], session.keys.secret)
    with pytest.raises(WireError) as caught:
        session.server.infer(request, None)
    assert caught.value.code == "key_missing"


def _small_session(folder):
    network, x, _, session = planned_session(np.random.default_rng(1), (6, 5, 3), 20, folder)
    return network, x, session
