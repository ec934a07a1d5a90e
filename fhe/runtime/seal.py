"""The program on ciphertexts: Microsoft SEAL through ``tenseal.sealapi``.

Objects go in and out of SEAL through anonymous files in memory: its Python bindings read and write paths only.
SEAL never releases the interpreter's lock: use processes for more than one core (:mod:`fhe.runtime.pool`).
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from deploy.arrays import Array
from deploy.errors import PlanError, WireError
from deploy.requirement import require
from fhe.plan.parameters import Parameters
from fhe.runtime.backend import Operand, sum_of_products
from fhe.wire.sizes import PLAINTEXT_DATA_AT
from fhe.wire.streams import ParmsId, ciphertext_stream, residues, uncompressed

__all__ = ["EvaluationKeys", "SealBackend", "SealContext", "SealEvaluation", "load_stream", "save_stream"]


def save_stream(value: Any) -> bytes:
    """The uncompressed stream of a SEAL object."""
    file = os.memfd_create("seal")
    try:
        value.save(f"/proc/self/fd/{file}")
        size = os.lseek(file, 0, os.SEEK_END)
        os.lseek(file, 0, os.SEEK_SET)
        parts = []
        while size > 0:
            part = os.read(file, size)
            parts.append(part)
            size -= len(part)
    finally:
        os.close(file)
    return uncompressed(b"".join(parts))


def load_stream(empty: Any, context: Any, stream: bytes | memoryview) -> Any:
    """Load a checked stream into an empty SEAL object, which is returned."""
    file = os.memfd_create("seal")
    try:
        view = memoryview(stream)
        while view:
            view = view[os.write(file, view) :]
        os.lseek(file, 0, os.SEEK_SET)
        try:
            empty.load(context, f"/proc/self/fd/{file}")
        except (ValueError, RuntimeError) as error:
            raise WireError(
                f"SEAL refuses the stream: {error}",
                code="seal_refused",
                hint="send what the client wrote, unchanged",
            ) from None
    finally:
        os.close(file)
    return empty


@dataclass(frozen=True, eq=False)
class EvaluationKeys:
    """What the server computes with; None where the plan needs none."""

    galois: Any
    relin: Any


class SealContext:
    """SEAL's context for given parameters, at 128 bits of security."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.seal = require("tenseal.sealapi", extra="ckks")
        values = self.seal.EncryptionParameters(self.seal.SCHEME_TYPE.CKKS)
        values.set_poly_modulus_degree(parameters.poly_modulus_degree)
        values.set_coeff_modulus([self.seal.Modulus(prime) for prime in parameters.primes])
        self.context = self.seal.SEALContext(values, True, self.seal.SEC_LEVEL_TYPE.TC128)
        if not self.context.parameters_set():
            raise PlanError(f"SEAL refuses the parameters: {self.context.parameters_error_message()}")
        self.encoder = self.seal.CKKSEncoder(self.context)

    @cached_property
    def parms_ids(self) -> dict[int, ParmsId]:
        """parms_id by number of data primes left."""
        found, data = {}, self.context.first_context_data()
        for level in range(self.parameters.levels, 0, -1):
            a, b, c, d = data.parms_id()
            found[level] = (a, b, c, d)
            data = data.next_context_data()
        return found

    @cached_property
    def key_parms_id(self) -> ParmsId:
        """parms_id of keys."""
        a, b, c, d = self.context.key_parms_id()
        return (a, b, c, d)

    def ciphertext(self, stream: bytes | memoryview) -> Any:
        """Load a checked ciphertext stream."""
        return load_stream(self.seal.Ciphertext(), self.context, stream)

    def coefficients(self, plain: Any) -> Array:
        """(n,) coefficients, modulo the first prime, of a plaintext at the last level.

        SEAL transforms ciphertexts only: the plaintext goes through one as both of its polynomials.
        """
        n = self.parameters.poly_modulus_degree
        words = self.plain_words(plain, 1)
        pair = self.ciphertext(ciphertext_stream(np.stack([words, words]), self.parms_ids[1], 1.0))
        self.seal.Evaluator(self.context).transform_from_ntt_inplace(pair)
        return np.asarray(residues(save_stream(pair), n, 1)[0, 0])

    def plain_words(self, plain: Any, level: int) -> Array:
        """Residues (level, n) of a plaintext."""
        n = self.parameters.poly_modulus_degree
        words = np.frombuffer(save_stream(plain), "<u8", count=level * n, offset=PLAINTEXT_DATA_AT)
        return words.reshape(level, n)

    def encode(self, values: Array | complex, level: int, scale: float) -> Any:
        """Encode slots (slots,) or one number for all of them."""
        plain = self.seal.Plaintext()
        parms_id = list(self.parms_ids[level])
        numbers: Any = values.tolist() if isinstance(values, np.ndarray) else values
        self.encoder.encode(numbers, parms_id, scale, plain)
        return plain


class SealEvaluation:
    """What a server computes with: keys and requests loaded by SEAL, and the program's backend.

    Parameters
    ----------
    context : parameters.
    kept_bytes : once so many bytes of plaintexts are kept, further ones are encoded at each use.
    """

    def __init__(self, context: SealContext, *, kept_bytes: int = 2_000_000_000) -> None:
        self._context = context
        self._plaintexts: dict[Hashable, Any] = {}
        self._kept_bytes = kept_bytes

    def load_keys(self, galois: memoryview | None, relin: memoryview | None) -> EvaluationKeys:
        """Load checked key streams into SEAL."""
        seal, context = self._context.seal, self._context.context
        return EvaluationKeys(
            None if galois is None else load_stream(seal.GaloisKeys(), context, galois),
            None if relin is None else load_stream(seal.RelinKeys(), context, relin),
        )

    def load(self, streams: Sequence[memoryview], scale: float) -> list[Any]:
        """Load the checked streams of a request, which say their scale."""
        return [self._context.ciphertext(stream) for stream in streams]

    def backend(self, keys: object) -> SealBackend:
        """The primitives with one client's keys."""
        if not isinstance(keys, EvaluationKeys):
            raise TypeError("keys that another evaluation loaded")
        return SealBackend(self._context, keys, self._plaintexts, kept_bytes=self._kept_bytes)


class SealBackend:
    """A backend (:class:`fhe.runtime.backend.CiphertextBackend`) on ciphertexts of SEAL.

    Parameters
    ----------
    context : parameters.
    keys : of the client whose ciphertexts are computed on.
    plaintexts : encoded operands by name, kept from call to call.
    kept_bytes : once so many bytes of plaintexts are kept, further ones are encoded at each use.
    """

    def __init__(
        self,
        context: SealContext,
        keys: EvaluationKeys,
        plaintexts: dict[Hashable, Any] | None = None,
        *,
        kept_bytes: int = 2_000_000_000,
    ) -> None:
        self._context = context
        self._seal = context.seal
        self._evaluator = context.seal.Evaluator(context.context)
        self._keys = keys
        self._plaintexts: dict[Hashable, Any] = {} if plaintexts is None else plaintexts
        self._kept_bytes = kept_bytes
        self._order = 2 * context.parameters.poly_modulus_degree

    def level(self, a: Any) -> int:
        return int(a.coeff_modulus_size())

    def scale(self, a: Any) -> float:
        return float(a.scale)

    def rotate(self, a: Any, steps: int) -> Any:
        return self._galois(a, pow(3, steps % (self._order // 4), self._order))

    def conjugate(self, a: Any) -> Any:
        return self._galois(a, self._order - 1)

    def add(self, a: Any, b: Any) -> Any:
        result = self._seal.Ciphertext()
        self._evaluator.add(a, b, result)
        return result

    def subtract(self, a: Any, b: Any) -> Any:
        result = self._seal.Ciphertext()
        self._evaluator.sub(a, b, result)
        return result

    def add_plain(self, a: Any, b: Operand) -> Any:
        result = self._seal.Ciphertext()
        self._evaluator.add_plain(a, self._plaintext(b), result)
        return result

    def is_zero(self, b: Operand) -> bool:
        return self._plaintext(b) is None

    def multiply_plain(self, a: Any, b: Operand) -> Any:
        result = self._seal.Ciphertext()
        self._evaluator.multiply_plain(a, self._plaintext(b), result)
        return result

    def dot(self, values: Sequence[Any], operands: Sequence[Operand]) -> Any:
        return sum_of_products(self, values, operands)

    def multiply(self, a: Any, b: Any) -> Any:
        result = self._seal.Ciphertext()
        if a is b:
            self._evaluator.square(a, result)
        else:
            self._evaluator.multiply(a, b, result)
        return result

    def relinearize(self, a: Any) -> Any:
        result = self._seal.Ciphertext()
        self._evaluator.relinearize(a, self._keys.relin, result)
        return result

    def rescale(self, a: Any) -> Any:
        result = self._seal.Ciphertext()
        self._evaluator.rescale_to_next(a, result)
        return result

    def lower(self, a: Any, level: int) -> Any:
        if level == self.level(a):
            return a
        result = self._seal.Ciphertext()
        self._evaluator.mod_switch_to(a, list(self._context.parms_ids[level]), result)
        return result

    def words(self, a: Any) -> Array:
        return residues(save_stream(a), self._order // 2, self.level(a))

    def value(self, words: Array, scale: float) -> Any:
        return self._context.ciphertext(ciphertext_stream(words, self._context.parms_ids[words.shape[1]], scale))

    def stream(self, a: Any) -> bytes:
        return save_stream(a)

    def coefficients(self, a: Any) -> bytes:
        self._evaluator.transform_from_ntt_inplace(a)
        return save_stream(a)

    def _galois(self, a: Any, element: int) -> Any:
        result = self._seal.Ciphertext()
        self._evaluator.apply_galois(a, element, self._keys.galois, result)
        return result

    def _plaintext(self, operand: Operand) -> Any:
        if operand.name in self._plaintexts:
            return self._plaintexts[operand.name]
        values = operand.slots()
        plain = None if values is None else self._context.encode(values, operand.level, operand.scale)
        size = len(self._plaintexts) * 8 * self._order // 2 * operand.level
        if plain is None or (size < self._kept_bytes and not isinstance(values, float)):
            self._plaintexts[operand.name] = plain
        return plain
