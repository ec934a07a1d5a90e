"""The same quadratic network in plain TenSEAL, written as one would and made right.

TenSEAL's ``vector + bias`` and ``vector * plain`` touch the first slots only, so the next ``mm`` reads wrong replicas:
the bias travels as one more input that is 1, and z² and z each go through a weight matrix of their own.
"""

from __future__ import annotations

import numpy as np
import tenseal

from deploy.arrays import Array
from fhe.network import PolynomialNetwork

POLY_MODULUS_DEGREE = 8192
COEFF_MODULUS_BITS = [50, 40, 40, 40, 48]
SCALE_BITS = 40


class NaiveTenseal:
    """One hidden layer of degree 2."""

    name = "TenSEAL, naive and correct"
    settings = f"N={POLY_MODULUS_DEGREE}, primes {COEFF_MODULUS_BITS}, scale 2^{SCALE_BITS}, one thread"

    def __init__(self, network: PolynomialNetwork) -> None:
        self.context = tenseal.context(
            tenseal.SCHEME_TYPE.CKKS,
            poly_modulus_degree=POLY_MODULUS_DEGREE,
            coeff_mod_bit_sizes=COEFF_MODULUS_BITS,
            n_threads=1,
        )
        self.context.global_scale = 2**SCALE_BITS
        self.context.generate_galois_keys()
        self.context.generate_relin_keys()
        first, last = network.affines
        linear, square = network.power_weights(0)
        self.first = np.vstack([first.weight.T, first.bias]).tolist()
        self.square, self.linear = square.T.tolist(), linear.T.tolist()
        self.bias = last.bias.tolist()

    @property
    def galois_key_bytes(self) -> int:
        """Bytes of the Galois keys that TenSEAL makes by default."""
        without = self.context.serialize(save_galois_keys=False, save_relin_keys=False)
        return len(self.context.serialize(save_galois_keys=True, save_relin_keys=False)) - len(without)

    def encrypt(self, x: Array) -> tenseal.CKKSVector:
        """One row (n_in,)."""
        return tenseal.ckks_vector(self.context, [*x.tolist(), 1.0])

    def infer(self, request: tenseal.CKKSVector) -> tenseal.CKKSVector:
        """The server's work."""
        z = request.mm(self.first)
        return z.square().mm(self.square) + z.mm(self.linear) + self.bias

    def decrypt(self, answer: tenseal.CKKSVector) -> Array:
        """Logits (n_out,)."""
        return np.array(answer.decrypt())
