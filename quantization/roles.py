"""Both sides of a keyless service: rows in the clear go up, logits come down, as little-endian float64.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from deploy.arrays import Array
from deploy.errors import BundleError, WireError
from deploy.interface import INTERFACE_FILE, Feature, InputGuard, Interface
from deploy.model import Decision
from deploy.target import KeyPair, Limits, Signature, Tensor
from quantization.arithmetic import read_arithmetic

__all__ = ["TernaryClient", "TernaryServer", "open_client", "open_server"]

ROWS_PER_REQUEST = 1024


class TernaryServer:
    """Evaluates the reference on rows that it is sent; it holds codes and scales and no key."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._reference = read_arithmetic(files)
        n_in, n_out = self._reference.network.n_in, self._reference.network.n_out
        self._n_in = n_in
        self.signature = Signature(Tensor("x", "FP64", (-1, n_in)), Tensor("logits", "FP64", (-1, n_out)))
        self.limits = Limits(
            request_bytes=8 * n_in * ROWS_PER_REQUEST,
            answer_bytes=8 * n_out * ROWS_PER_REQUEST,
            rows_per_request=ROWS_PER_REQUEST,
        )

    def check_key(self, path: Path) -> None:
        """Refuse: there are no keys."""
        raise WireError("a ternary model takes no keys", code="key_refused", hint="send the rows alone")

    def load_key(self, path: Path) -> object:
        """Refuse: there are no keys."""
        self.check_key(path)
        return None

    def infer(self, request: bytes, key: object | None) -> bytes:
        """Answer rows (batch, n_in) with logits (batch, n_out).

        Raises
        ------
        WireError : no whole number of rows, too many of them, or a value that is not finite.
        """
        row_bytes = 8 * self._n_in
        if not request or len(request) % row_bytes:
            raise WireError(
                f"{len(request)} bytes are no whole rows of {row_bytes}",
                code="bad_tensor",
                http_status=400,
                hint=f"send float64 rows of {self._n_in} values",
            )
        if len(request) > self.limits.request_bytes:
            raise WireError(
                f"{len(request) // row_bytes} rows, the limit is {ROWS_PER_REQUEST}",
                code="body_too_large",
                http_status=413,
                hint="send fewer rows in one request",
            )
        rows = np.frombuffer(request, dtype="<f8").reshape(-1, self._n_in)
        if not np.isfinite(rows).all():
            row = int(np.argmin(np.isfinite(rows).all(axis=1)))
            raise WireError(f"row {row} is not finite", code="not_finite", hint="send numbers")
        return np.asarray(self._reference.logits(rows), dtype="<f8").tobytes()


class TernaryClient:
    """Knows what a client may know: names, guard and decision rule; there is nothing to encrypt with."""

    guard: InputGuard
    decision: Decision
    features: tuple[Feature, ...]

    def __init__(self, interface: Interface) -> None:
        self.guard, self.decision, self.features = interface.guard, interface.decision, interface.guard.features
        self._n_out = interface.n_out

    def generate_keys(self) -> KeyPair | None:
        """None: keyless."""
        return None

    def encrypt(self, x: Array, secret: bytes | None) -> bytes:
        """Lay rows (batch, n_in) out as bytes; they travel in the clear."""
        return np.ascontiguousarray(x, dtype="<f8").tobytes()

    def decrypt(self, answer: bytes, secret: bytes | None) -> Array:
        """Read logits (batch, n_out) from an answer; raises :class:`WireError` where it holds no whole rows."""
        if not answer or len(answer) % (8 * self._n_out):
            raise WireError(
                f"an answer of {len(answer)} bytes holds no whole rows of {self._n_out} logits", code="bad_answer"
            )
        return np.frombuffer(answer, dtype="<f8").reshape(-1, self._n_out).astype(np.float64)


def open_server(files: Mapping[str, bytes]) -> TernaryServer:
    """Open the server's side from the server archive's files."""
    return TernaryServer(files)


def open_client(files: Mapping[str, bytes]) -> TernaryClient:
    """Open the client's side from the client archive's files."""
    if INTERFACE_FILE not in files:
        raise BundleError(f"{INTERFACE_FILE} is missing")
    return TernaryClient(Interface.from_bytes(files[INTERFACE_FILE]))
