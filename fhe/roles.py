"""The two sides of an encrypted inference.

The client holds the secret key and knows parameters, packing and input scaling. The server holds the weights and
computes with evaluation keys. Neither can do the other's part with what its archive holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from deploy.arrays import Array
from deploy.errors import DataError, WireError
from deploy.interface import Interface
from deploy.model.mlp import check_rows
from deploy.requirement import Requirement
from deploy.target import KeyPair, Limits, Signature, Tensor
from fhe.network import PolynomialNetwork
from fhe.plan import Exchange, Plan
from fhe.rns.evaluator import load_kernels
from fhe.runtime.answer import trace_slots, trim_answer
from fhe.runtime.backend import Evaluation
from fhe.runtime.program import Program, check_network, input_slots, program_of, read_answer
from fhe.runtime.seal import SealContext, SealEvaluation, load_stream, save_stream
from fhe.runtime.throughput import ThroughputProgram, batch_slots, read_batch
from fhe.wire.envelope import Kind, pack, unpack
from fhe.wire.sizes import (
    answer_bytes,
    evaluation_key_bytes,
    galois_keys_bytes,
    relin_keys_bytes,
    request_bytes,
    secret_key_bytes,
)
from fhe.wire.streams import StreamKind, check_ciphertext, check_key_switching_keys, key_positions

__all__ = ["NUMBA", "CkksClientRole", "CkksServerRole", "limits_of"]

NUMBA = Requirement("numba", 'pip install "relu-deploy[ckks]"', module="numba")
"""The server's own kernels; without it SEAL computes, the same answers several times slower."""


def limits_of(exchange: Exchange) -> Limits:
    """Exact byte caps: a longer request, answer or key file cannot be right."""
    return Limits(
        request_bytes=request_bytes(exchange),
        answer_bytes=answer_bytes(exchange),
        key_bytes=evaluation_key_bytes(exchange),
        key_scope=exchange.key_scope,
        rows_per_request=exchange.rows,
    )


class _Side:
    """What both sides derive from the exchange."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.limits = limits_of(exchange)

    @cached_property
    def _context(self) -> SealContext:
        return SealContext(self.exchange.parameters)

    @property
    def _request_kind(self) -> StreamKind:
        parameters = self.exchange.parameters
        return StreamKind(
            parameters.poly_modulus_degree,
            parameters.data_primes,
            self._context.parms_ids[parameters.levels],
            self.exchange.input_scale,
            seeded=True,
        )

    @property
    def _answer_kind(self) -> StreamKind:
        parameters = self.exchange.parameters
        return StreamKind(
            parameters.poly_modulus_degree,
            parameters.data_primes[:1],
            self._context.parms_ids[1],
            self.exchange.answer_scale,
            seeded=False,
            transformed=self.exchange.packing == "throughput",
        )


class CkksServerRole(_Side):
    """Computes on ciphertexts (:class:`deploy.target.ServerRole`).

    Parameters
    ----------
    plan, network : what the server archive holds.
    kept_bytes : plaintexts beyond so many bytes are encoded at each use.
    kernels : compute with our own kernels, which need numba, or with SEAL; by default with kernels where numba is
        installed. Answers are the same, byte for byte.

    Raises
    ------
    RequirementMissing : kernels were asked for and numba is not installed.
    """

    def __init__(
        self,
        plan: Plan,
        network: PolynomialNetwork,
        *,
        kept_bytes: int = 2_000_000_000,
        kernels: bool | None = None,
    ) -> None:
        super().__init__(plan.exchange)
        self.plan = plan
        self.signature = Signature(Tensor("request", "BYTES", (1,)), Tensor("answer", "BYTES", (1,)))
        self._network = network
        check_network(plan, network)
        self._kept_bytes = kept_bytes
        self._kernels = NUMBA.is_met() if kernels is None else kernels
        if self._kernels:
            # here, not at the first request: a worker that is ready has compiled what it runs
            load_kernels()

    def check_key(self, path: Path) -> None:
        """Check an uploaded key file: exact size, structure, every residue; no SEAL call."""
        size = path.stat().st_size
        if size > self.limits.key_bytes:
            raise WireError(
                f"{size} bytes of keys, {self.limits.key_bytes} expected",
                code="envelope_size",
                hint="upload the evaluation keys that keygen wrote, for this model",
                http_status=413,
            )
        self._key_streams(path.read_bytes())

    def load_key(self, path: Path) -> object:
        """Check once more and load as the backend wants them."""
        return self._evaluation.load_keys(*self._key_streams(path.read_bytes()))

    def infer(self, request: bytes, key: object | None) -> bytes:
        """Answer one request."""
        if key is None:
            raise WireError("no evaluation keys", code="key_missing", hint="upload keys first", http_status=404)
        return self.write_answer(self.compute(self.read_request(request), key), key)

    def read_request(self, request: bytes) -> Sequence[Any]:
        """Check a request and load its ciphertexts."""
        kind = self._request_kind
        count = self.exchange.request_ciphertexts
        streams = unpack(request, Kind.REQUEST, self.exchange.key_scope, [kind.size] * count)
        for index, stream in enumerate(streams):
            check_ciphertext(stream, kind, what=f"ciphertext {index}")
        return self._evaluation.load(streams, kind.scale)

    def compute(self, inputs: Sequence[Any], key: object) -> list[Any]:
        """From the ciphertexts of a request to those of its answer, in memory; partial sums are still in them."""
        return self._program.run(self._evaluation.backend(key), inputs)

    def write_answer(self, found: Sequence[Any], key: object) -> bytes:
        """Trim what :meth:`compute` gave to what leaves the server, and pack it."""
        backend = self._evaluation.backend(key)
        if self.exchange.packing == "throughput":
            answers = [backend.stream(answer) for answer in found]
        else:
            answers = [trim_answer(self.exchange, backend.coefficients(answer)) for answer in found]
        return pack(Kind.ANSWER, self.exchange.key_scope, answers)

    @cached_property
    def _program(self) -> Program | ThroughputProgram:
        if self.exchange.packing == "throughput":
            return ThroughputProgram(self.plan, self._network, self._context)
        return program_of(self.plan, self._network)

    @cached_property
    def _evaluation(self) -> Evaluation:
        if not self._kernels:
            return SealEvaluation(self._context, kept_bytes=self._kept_bytes)
        from fhe.rns.backend import RnsEvaluation

        return RnsEvaluation(self._context, kept_bytes=self._kept_bytes)

    def _key_streams(self, data: bytes) -> tuple[memoryview | None, memoryview | None]:
        exchange = self.exchange
        parameters = exchange.parameters
        self._refuse_secrets(data)
        sizes = [size for size in (galois_keys_bytes(exchange), relin_keys_bytes(exchange)) if size]
        streams = unpack(data, Kind.EVALUATION_KEYS, exchange.key_scope, sizes)
        galois = streams.pop(0) if exchange.galois_elements else None
        relin = streams.pop(0) if exchange.relinearization else None
        common: dict[str, Any] = {
            "n": parameters.poly_modulus_degree,
            "primes": parameters.primes,
            "parms_id": self._context.key_parms_id,
        }
        if galois is not None:
            positions = key_positions(exchange.galois_elements)
            check_key_switching_keys(
                galois, **common, index=parameters.poly_modulus_degree, positions=positions, what="Galois keys"
            )
        if relin is not None:
            check_key_switching_keys(relin, **common, index=1, positions=[0], what="relinearisation key")
        return galois, relin

    def _refuse_secrets(self, data: bytes) -> None:
        """A bare SEAL secret key, in any envelope or none, is named as what it is."""
        parameters = self.exchange.parameters
        size = secret_key_bytes(parameters.poly_modulus_degree, len(parameters.primes))
        key_id = np.array(self._context.key_parms_id, dtype="<u8").tobytes()
        if len(data) == size and data[16:48] == key_id:
            raise WireError(
                "this is a secret key", code="secret_key", hint="keep it; upload the evaluation keys instead"
            )


class CkksClientRole(_Side):
    """Encrypts rows and decrypts answers (:class:`deploy.target.ClientRole`).

    Parameters
    ----------
    exchange : what the client archive holds.
    interface : guard, decision rule and names.
    """

    def __init__(self, exchange: Exchange, interface: Interface) -> None:
        super().__init__(exchange)
        self.interface = interface
        self.guard = interface.guard
        self.decision = interface.decision
        self.features = interface.guard.features

    def generate_keys(self) -> KeyPair:
        """Make a secret key and just the evaluation keys that the plan needs, from the system's randomness."""
        seal = self._context.seal
        generator = seal.KeyGenerator(self._context.context)
        streams = []
        if self.exchange.galois_elements:
            streams.append(save_stream(generator.create_galois_keys(list(self.exchange.galois_elements))))
        if self.exchange.relinearization:
            streams.append(save_stream(generator.create_relin_keys()))
        scope = self.exchange.key_scope
        secret = save_stream(generator.secret_key())
        return KeyPair(pack(Kind.SECRET_KEY, scope, [secret]), pack(Kind.EVALUATION_KEYS, scope, streams), scope)

    def encrypt(self, x: Array, secret: bytes | None) -> bytes:
        """Encrypt up to `rows_per_request` rows (batch, n_in) into one request."""
        exchange = self.exchange
        rows = check_rows(x, exchange.n_in, self.interface.input_shape)
        if not 1 <= len(rows) <= exchange.rows:
            raise DataError(
                f"{len(rows)} rows, a request carries 1 to {exchange.rows}",
                remedy="split them over several requests",
            )
        encryptor = self._context.seal.Encryptor(self._context.context, self._secret(secret))
        level, scale = exchange.parameters.levels, exchange.input_scale
        streams = []
        for slots in self._slots(rows):
            plain = self._context.encode(slots, level, scale)
            streams.append(save_stream(encryptor.encrypt_symmetric(plain)))
        return pack(Kind.REQUEST, exchange.key_scope, streams)

    def decrypt(self, answer: bytes, secret: bytes | None) -> Array:
        """Logits (rows, n_out) of every row that a request carries; rows that were not sent are meaningless."""
        exchange = self.exchange
        kind = self._answer_kind
        streams = unpack(answer, Kind.ANSWER, exchange.key_scope, [kind.size] * exchange.answer_ciphertexts)
        decryptor = self._context.seal.Decryptor(self._context.context, self._secret(secret))
        evaluator = self._context.seal.Evaluator(self._context.context)
        found = []
        for index, stream in enumerate(streams):
            check_ciphertext(stream, kind, what=f"answer {index}")
            plain = self._context.seal.Plaintext()
            ciphertext = self._context.ciphertext(stream)
            if kind.transformed:
                decryptor.decrypt(ciphertext, plain)
                found.append(np.array(self._context.encoder.decode_complex(plain)))
            else:
                evaluator.transform_to_ntt_inplace(ciphertext)
                decryptor.decrypt(ciphertext, plain)
                found.append(self._trace(plain))
        return self._logits(found)

    def _trace(self, plain: Any) -> Array:
        """Slots of the sums that a decrypted answer holds."""
        exchange = self.exchange
        words = self._context.coefficients(plain)
        slots = trace_slots(words, exchange.answer_period * exchange.rows, exchange.parameters.data_primes[0])
        return slots / exchange.answer_scale

    def _slots(self, rows: Array) -> list[Array]:
        return (batch_slots if self.exchange.packing == "throughput" else input_slots)(self.exchange, rows)

    def _logits(self, slots: list[Array]) -> Array:
        return read_batch(slots) if self.exchange.packing == "throughput" else read_answer(self.exchange, slots)

    def _secret(self, secret: bytes | None) -> Any:
        if secret is None:
            raise DataError("no secret key", remedy="make one with keygen and pass it")
        parameters = self.exchange.parameters
        size = secret_key_bytes(parameters.poly_modulus_degree, len(parameters.primes))
        (stream,) = unpack(secret, Kind.SECRET_KEY, self.exchange.key_scope, [size])
        return load_stream(self._context.seal.SecretKey(), self._context.context, stream)
