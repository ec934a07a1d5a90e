"""Bytes from outside: each damage is refused with a code and a hint before SEAL sees it, and nothing crashes.

What gets past our parser is loaded by SEAL in a child process, so that a crash would be seen as one.
"""

from __future__ import annotations

import multiprocessing
import struct

import numpy as np
import pytest
from polynomials import Session, random_polynomial_network

from deploy.errors import WireError
from fhe.plan import PlanOptions, Ranges, plan_network
from fhe.wire.envelope import Kind, pack
from fhe.wire.sizes import ENVELOPE_BYTES, HEADER_BYTES
from fhe.wire.streams import header

SCALE_AT = HEADER_BYTES + 32 + 1 + 8 * 3
FORM_AT = HEADER_BYTES + 32
DATA_AT = HEADER_BYTES + 73 + HEADER_BYTES + 8


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    rng = np.random.default_rng(11)
    network = random_polynomial_network(rng, (12, 8, 3))
    x = rng.random((40, 12))
    options = PlanOptions(poly_modulus_degree=8192, client_rotations=False)
    plan = plan_network(network, Ranges.seen(network, x), options)
    assert plan.exchange.request_ciphertexts == plan.exchange.answer_ciphertexts == 1
    session = Session(plan, network, tmp_path_factory.mktemp("keys"))
    request = session.client.encrypt(x[:1], session.keys.secret)
    return session, request


def stream_of(request: bytes) -> bytes:
    return request[ENVELOPE_BYTES + 8 :]


def refused(session, stream: bytes) -> WireError:
    """The refusal of a request around this stream."""
    with pytest.raises(WireError) as caught:
        session.server.infer(pack(Kind.REQUEST, session.client.exchange.key_scope, [stream]), session.key)
    assert caught.value.hint and 400 <= caught.value.http_status < 500
    return caught.value


def patched(stream: bytes, at: int, new: bytes) -> bytes:
    return stream[:at] + new + stream[at + len(new) :]


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -1.0, 0.0, 2.0**23, 2.0**25 * (1 + 1e-9), None])
def test_wrong_scale_is_refused(case, scale):
    session, request = case
    if scale is None:  # the nearest number to the right one
        scale = float(np.nextafter(session.client.exchange.input_scale, np.inf))
    stream = patched(stream_of(request), SCALE_AT, struct.pack("<d", scale))
    assert refused(session, stream).code == "ciphertext_scale"


@pytest.mark.parametrize(
    ("at", "new", "code"),
    [
        (0, b"\x00", "stream_magic"),
        (2, b"\x11", "stream_magic"),
        (3, b"\x09", "stream_version"),
        (5, b"\x02", "stream_compressed"),
        (6, b"\x01", "stream_header"),
        (8, struct.pack("<Q", 2**60), "stream_size"),
        (HEADER_BYTES, b"\xff" * 32, "ciphertext_parameters"),
        (FORM_AT, b"\x00", "ciphertext_form"),
        (FORM_AT + 1, struct.pack("<Q", 1), "ciphertext_polynomials"),
        (FORM_AT + 1, struct.pack("<Q", 5000), "ciphertext_polynomials"),
        (FORM_AT + 9, struct.pack("<Q", 4096), "ciphertext_shape"),
        (FORM_AT + 17, struct.pack("<Q", 7), "ciphertext_shape"),
        (FORM_AT + 33, struct.pack("<Q", 3), "ciphertext_correction"),
        (HEADER_BYTES + 73, b"\x00", "stream_magic"),
        (DATA_AT - 8, struct.pack("<Q", 10**9), "ciphertext_residues"),
        (DATA_AT, b"\xff" * 8, "ciphertext_range"),
    ],
)
def test_wrong_field_is_refused(case, at, new, code):
    session, request = case
    assert refused(session, patched(stream_of(request), at, new)).code == code


def test_transparent_ciphertext_is_refused(case):
    session, request = case
    stream = stream_of(request)
    words = len(stream) - DATA_AT - 81
    assert refused(session, patched(stream, DATA_AT, bytes(words))).code == "ciphertext_transparent"


def test_other_random_generator_is_refused(case):
    session, request = case
    stream = stream_of(request)
    assert refused(session, patched(stream, len(stream) - 65, b"\x02")).code == "ciphertext_seed"


@pytest.mark.parametrize("change", ["empty", "shorter", "longer", "bomb", "twice", "garbage"])
def test_wrong_length_is_refused(case, change):
    session, request = case
    damaged = {
        "empty": b"",
        "shorter": request[:-1],
        "longer": request + b"\0",
        "bomb": request + bytes(50_000_000),
        "twice": request + request,
        "garbage": np.random.default_rng(0).bytes(len(request)),
    }[change]
    with pytest.raises(WireError) as caught:
        session.server.infer(damaged, session.key)
    assert caught.value.code in {"envelope_magic", "envelope_size"}
    assert caught.value.http_status == (413 if change in {"longer", "bomb", "twice"} else 422)


def test_many_ciphertexts_in_one_request_are_refused_before_they_are_loaded(case):
    session, request = case
    many = pack(Kind.REQUEST, session.client.exchange.key_scope, [stream_of(request)] * 200)
    with pytest.raises(WireError) as caught:
        session.server.infer(many, session.key)
    assert caught.value.code == "stream_count"


def test_compressed_stream_is_refused(case):
    import zstandard

    session, request = case
    stream = stream_of(request)
    body = zstandard.ZstdCompressor().compress(bytes(256_000_000)[:4_000_000])
    bomb = patched(header(HEADER_BYTES + len(body)), 5, b"\x02") + body
    assert refused_size(session, bomb) and len(bomb) < len(stream)


def refused_size(session, stream: bytes) -> bool:
    with pytest.raises(WireError) as caught:
        session.server.infer(pack(Kind.REQUEST, session.client.exchange.key_scope, [stream]), session.key)
    return caught.value.code == "envelope_size"


def test_bit_flips_on_the_way_are_noticed(case):
    session, request = case
    rng = np.random.default_rng(3)
    for at in rng.integers(0, len(request), 60):
        damaged = bytearray(request)
        damaged[at] ^= 1 << int(rng.integers(8))
        with pytest.raises(WireError):
            session.server.infer(bytes(damaged), session.key)


def test_answer_is_checked_by_the_client_too(case):
    session, request = case
    answer = session.server.infer(request, session.key)
    at = ENVELOPE_BYTES + 8
    scaled = patched(answer[at:], SCALE_AT, struct.pack("<d", session.client.exchange.answer_scale / 2))
    with pytest.raises(WireError) as caught:
        session.client.decrypt(pack(Kind.ANSWER, session.client.exchange.key_scope, [scaled]), session.keys.secret)
    assert caught.value.code == "ciphertext_scale"
    with pytest.raises(WireError) as caught:
        session.client.decrypt(request, session.keys.secret)
    assert caught.value.code == "envelope_kind"


@pytest.mark.parametrize("cut", [0, 1, 79, 80, 100, 1000, 100_000])
def test_damaged_key_files_are_refused(case, tmp_path, cut):
    session, _ = case
    path = tmp_path / "keys"
    path.write_bytes(session.keys.evaluation[:cut])
    with pytest.raises(WireError):
        session.server.check_key(path)


def test_keys_with_a_wrong_structure_are_refused(case, tmp_path):
    session, _ = case
    path = tmp_path / "keys"
    exchange = session.client.exchange
    body = session.keys.evaluation[ENVELOPE_BYTES + 16 :]
    sizes = struct.unpack_from("<2Q", session.keys.evaluation, ENVELOPE_BYTES)
    galois, relin = body[: sizes[0]], body[sizes[0] :]
    for at, new, code in (
        (HEADER_BYTES, b"\0" * 32, "key_parameters"),
        (HEADER_BYTES + 32, struct.pack("<Q", 2**40), "key_structure"),
        (HEADER_BYTES + 40, struct.pack("<Q", 9), "key_structure"),
    ):
        path.write_bytes(pack(Kind.EVALUATION_KEYS, exchange.key_scope, [patched(galois, at, new), relin]))
        with pytest.raises(WireError) as caught:
            session.server.check_key(path)
        assert caught.value.code == code
    path.write_bytes(
        pack(Kind.EVALUATION_KEYS, exchange.key_scope, [galois, patched(relin, len(relin) - 500, b"\xff" * 8)])
    )
    with pytest.raises(WireError) as caught:
        session.server.check_key(path)
    assert caught.value.code == "ciphertext_range"


def _survives(session_keys, plan_bytes, network_bytes, damaged, results) -> None:
    """In a child: a server that meets damaged but well-formed requests and must answer or refuse, never crash."""
    import tempfile
    from pathlib import Path

    from fhe.network import PolynomialNetwork
    from fhe.plan import Plan
    from fhe.roles import CkksServerRole

    server = CkksServerRole(Plan.from_bytes(plan_bytes), PolynomialNetwork.from_bytes(network_bytes))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys"
        path.write_bytes(session_keys)
        key = server.load_key(path)
    for request in damaged:
        try:
            server.infer(request, key)
            results.put("answered")
        except WireError:
            results.put("refused")


def test_random_damage_under_a_right_digest_never_crashes_the_server(tmp_path):
    rng = np.random.default_rng(4)
    network = random_polynomial_network(rng, (12, 8, 3))
    x = rng.random((20, 12))
    options = PlanOptions(poly_modulus_degree=8192, client_rotations=False)
    plan = plan_network(network, Ranges.seen(network, x), options)
    assert plan.exchange.request_ciphertexts == plan.exchange.answer_ciphertexts == 1
    session = Session(plan, network, tmp_path)
    stream = stream_of(session.client.encrypt(x[:1], session.keys.secret))
    damaged = []
    for _ in range(40):
        broken = bytearray(stream)
        for at in rng.integers(0, DATA_AT + 64 if rng.random() < 0.7 else len(stream), 3):
            broken[at] = rng.integers(256)
        damaged.append(pack(Kind.REQUEST, plan.exchange.key_scope, [bytes(broken)]))
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    arguments = (session.keys.evaluation, plan.to_bytes(), network.to_bytes(), damaged, results)
    child = context.Process(target=_survives, args=arguments)
    child.start()
    outcomes = [results.get(timeout=120) for _ in damaged]
    child.join(timeout=60)
    assert child.exitcode == 0
    assert "refused" in outcomes
