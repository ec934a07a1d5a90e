"""Kernels equal SEAL's results bit for bit, at every level, on random residues and on extreme ones."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from fhe.plan.parameters import Parameters
from fhe.rns.evaluator import Evaluator
from fhe.rns.expand import expand_ciphertext, expand_keys, uniform_polynomial
from fhe.rns.tables import galois_permutation, minimal_root, tables_of
from fhe.runtime.seal import SealContext, load_stream, save_stream
from fhe.wire.streams import ciphertext_stream, residues

pytest.importorskip("tenseal")

# the special prime larger than, as long as and shorter than data primes; one to five of these
CHAINS = [
    (4096, (50, 50)),
    (4096, (36, 36, 37)),
    (4096, (40, 30, 20)),
    (8192, (60, 60, 60)),
    (8192, (60, 40, 31, 50)),
    (8192, (54, 30, 23, 30, 23, 57)),
    (16384, (60, 30, 45, 55, 60, 50)),
    (16384, (30,) * 10),
]


class Side:
    """One set of parameters: SEAL with keys, and the same keys in arrays."""

    def __init__(self, n: int, bits: tuple[int, ...]) -> None:
        self.parameters = Parameters(poly_modulus_degree=n, coeff_modulus_bits=bits)
        self.n, self.primes = n, self.parameters.data_primes
        self.context = SealContext(self.parameters)
        self.seal = self.context.seal
        self.generator = self.seal.KeyGenerator(self.context.context)
        galois = save_stream(self.generator.create_galois_keys([3, 2 * n - 1]))
        relin = save_stream(self.generator.create_relin_keys())
        self.galois = load_stream(self.seal.GaloisKeys(), self.context.context, galois)
        self.relin = load_stream(self.seal.RelinKeys(), self.context.context, relin)
        self.galois_arrays = expand_keys(galois, self.parameters.primes, n, n)
        self.relin_array = expand_keys(relin, self.parameters.primes, n, 1)[0]
        self.evaluator, self.ours = self.seal.Evaluator(self.context.context), Evaluator(self.parameters)

    def give(self, words, scale=1.0):
        return self.context.ciphertext(ciphertext_stream(words, self.context.parms_ids[words.shape[1]], scale))

    def read(self, name, *arguments):
        """Residues of what one of SEAL's primitives gives."""
        result = self.seal.Ciphertext()
        getattr(self.evaluator, name)(*arguments, result)
        return self.words(result)

    def words(self, ciphertext):
        """(polynomials, level, n), for two polynomials or three."""
        level = ciphertext.coeff_modulus_size()
        return residues(save_stream(ciphertext), self.n, level)


@pytest.fixture(scope="module", params=CHAINS, ids=lambda chain: f"{chain[0]}-{'-'.join(map(str, chain[1]))}")
def side(request):
    return Side(*request.param)


def _cases(side, rng):
    """Ciphertexts (2, level, n): random residues, then those of 0 and p - 1 only, at each level."""
    for level in range(1, len(side.primes) + 1):
        for extreme in (False, True):
            rows = [
                rng.choice(np.array([0, prime - 1], dtype=np.uint64), (2, side.n))
                if extreme
                else rng.integers(0, prime, (2, side.n), dtype=np.uint64)
                for prime in side.primes[:level]
            ]
            yield np.stack(rows, axis=1)


def test_rotation_and_conjugation_equal_seal(side, rng):
    for words in _cases(side, rng):
        for element in (3, 2 * side.n - 1):
            key = side.galois_arrays[(element - 1) // 2]
            expected = side.read("apply_galois", side.give(words), element, side.galois)
            assert np.array_equal(side.ours.apply_galois(words, element, key), expected)


def test_square_relinearisation_and_product_equal_seal(side, rng):
    for words in _cases(side, rng):
        other = words[:, :, ::-1].copy()
        square, product = side.seal.Ciphertext(), side.seal.Ciphertext()
        side.evaluator.square(side.give(words), square)
        side.evaluator.multiply(side.give(words), side.give(other), product)
        for theirs, ours in (
            (square, side.ours.multiply(words, words)),
            (product, side.ours.multiply(words, other)),
        ):
            expected = side.read("relinearize", theirs, side.relin)
            assert np.array_equal(side.ours.relinearize(ours, side.relin_array), expected)


def test_rescale_of_two_and_of_three_polynomials_equals_seal(side, rng):
    for words in _cases(side, rng):
        if words.shape[1] == 1:
            continue
        assert np.array_equal(side.ours.rescale(words), side.read("rescale_to_next", side.give(words)))
        square = side.seal.Ciphertext()
        side.evaluator.square(side.give(words), square)
        side.evaluator.rescale_to_next_inplace(square)
        if words.shape[1] > 2:
            ours = side.ours.rescale(side.ours.multiply(words, words))
            expected = side.read("relinearize", square, side.relin)
            assert np.array_equal(side.ours.relinearize(ours, side.relin_array), expected)


def test_sums_and_transforms_equal_seal(side, rng):
    for words in _cases(side, rng):
        other = words[:, :, ::-1].copy()
        assert np.array_equal(side.ours.add(words, other), side.read("add", side.give(words), side.give(other)))
        assert np.array_equal(
            side.ours.subtract(words, other), side.read("sub", side.give(words), side.give(other))
        )
        level = words.shape[1]
        coefficients = words.copy()
        side.ours.inverse(coefficients, level)
        theirs = side.give(words)
        side.evaluator.transform_from_ntt_inplace(theirs)
        assert np.array_equal(coefficients, side.words(theirs))
        side.ours.forward(coefficients, level)
        assert np.array_equal(coefficients, words)


@pytest.mark.parametrize("terms", [1, 2, 3, 4, 5, 8, 11])
def test_sum_of_plaintext_products_is_exact(side, rng, terms):
    cases = list(_cases(side, rng))[-2:]
    for words in cases:
        level = words.shape[1]
        values = [np.roll(words, shift, axis=2) for shift in range(terms)]
        plaintexts = [np.roll(words[1], 7 * shift, axis=1) for shift in range(terms)]
        found = side.ours.dot(values, plaintexts)
        for row, prime in enumerate(side.primes[:level]):
            for place in (0, 1, side.n - 1):
                for polynomial in range(2):
                    exact = sum(
                        int(value[polynomial, row, place]) * int(plain[row, place])
                        for value, plain in zip(values, plaintexts, strict=True)
                    )
                    assert int(found[polynomial, row, place]) == exact % prime


def test_product_with_a_plaintext_equals_seal(side, rng):
    for words in _cases(side, rng):
        level = words.shape[1]
        plain = side.context.encode(rng.normal(size=side.n // 2), level, 2.0**10)
        expected = side.read("multiply_plain", side.give(words), plain)
        assert np.array_equal(side.ours.dot([words], [side.context.plain_words(plain, level).copy()]), expected)


def test_request_and_every_key_expand_as_seal_loads_them(side):
    encryptor = side.seal.Encryptor(side.context.context, side.generator.secret_key())
    plain = side.context.encode(np.ones(5), len(side.primes), 2.0**20)
    stream = save_stream(encryptor.encrypt_symmetric(plain))
    words = np.empty((2, len(side.primes), side.n), dtype=np.uint64)
    expand_ciphertext(stream, side.primes, side.n, words)
    assert np.array_equal(words, side.words(side.context.ciphertext(stream)))
    # SEAL writes loaded keys whole: entries of two polynomials, in the order of places and digits
    whole = save_stream(side.galois)
    for place in (1, side.n - 1):
        for digit in range(len(side.primes)):
            for polynomial in range(2):
                row = side.galois_arrays[place][polynomial, :, digit].tobytes()
                assert row in whole


def test_words_that_are_too_large_are_drawn_again_as_seal_does():
    """Primes far below a power of two: up to one word in nine is refused, so the spare words run over a block too."""
    n, primes = 8192, []
    candidate = (1 << 60) * 5 // 9 // (2 * n) * 2 * n + 1
    from fhe.plan.parameters import _is_prime

    while len(primes) < 3:
        if _is_prime(candidate):
            primes.append(candidate)
        candidate += 2 * n
    context = SealContext.__new__(SealContext)
    context.parameters = Parameters(poly_modulus_degree=n, coeff_modulus_bits=(60, 60, 60))
    import tenseal.sealapi as seal

    values = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
    values.set_poly_modulus_degree(n)
    values.set_coeff_modulus([seal.Modulus(prime) for prime in primes])
    context.seal, context.context = seal, seal.SEALContext(values, True, seal.SEC_LEVEL_TYPE.TC128)
    encryptor = seal.Encryptor(context.context, seal.KeyGenerator(context.context).secret_key())
    plain = seal.Plaintext()
    seal.CKKSEncoder(context.context).encode(1.0, 2.0**20, plain)
    stream = save_stream(encryptor.encrypt_symmetric(plain))
    expected = residues(save_stream(context.ciphertext(stream)), n, 2)[1]
    seed = stream[-64:]
    assert np.array_equal(uniform_polynomial(seed, primes[:2], n), expected)


def test_tables_use_the_least_root_and_the_galois_permutation_is_one():
    tables = tables_of(Parameters(poly_modulus_degree=2048, coeff_modulus_bits=(25, 27)))
    for prime in tables.primes:
        root = minimal_root(2048, prime)
        assert pow(root, 2048, prime) == prime - 1
        assert root == min(pow(root, odd, prime) for odd in range(1, 4096, 2))
    assert sorted(galois_permutation(2048, 3).tolist()) == list(range(2048))


GENERIC = """
import numpy as np
from fhe.plan.parameters import Parameters
from fhe.rns.evaluator import Evaluator
from fhe.rns.expand import uniform_polynomial
parameters = Parameters(poly_modulus_degree=4096, coeff_modulus_bits=(50, 30, 29))
rng = np.random.default_rng(5)
primes, ours = parameters.primes, Evaluator(parameters)
words = np.stack([rng.integers(0, p, (2, 4096), dtype=np.uint64) for p in primes[:2]], axis=1)
key = np.stack([rng.integers(0, p, (2, 2, 4096), dtype=np.uint64) for p in primes], axis=1)
found = ours.rescale(ours.relinearize(ours.multiply(words, words), key))
found = np.concatenate([found, ours.apply_galois(found, 3, key)])
import hashlib
print(hashlib.sha256(found.tobytes() + uniform_polynomial(bytes(64), primes, 4096).tobytes()).hexdigest())
"""


def test_a_plain_processor_computes_the_same(tmp_path):
    """The kernels lean on how LLVM vectorises; without wide vectors they are slower and right."""
    found = set()
    plain = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    for cpu in ({}, plain):
        environment = {**os.environ, **cpu}
        done = subprocess.run(
            [sys.executable, "-c", GENERIC], capture_output=True, text=True, env=environment, check=True
        )
        found.add(done.stdout)
    assert len(found) == 1
