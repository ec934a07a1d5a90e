"""Networks, rows, our two roles with keys, and how times are taken."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import deploy
from deploy.arrays import Array
from deploy.interface import Feature, InputGuard, Interface
from deploy.rows import read_rows
from fhe.network import PolynomialNetwork, evaluate_polynomials
from fhe.plan import Plan
from fhe.roles import CkksClientRole, CkksServerRole
from fhe.wire.sizes import ENVELOPE_BYTES

MODELS = {
    "784-128-10": ("models/mnist_784_128_10/mnist_784_128_10.legacy.onnx", "data/mnist/mnist_t10k.npz", 8000),
    "64-32-10": ("models/reference/digits_64_32_10.onnx", "data/digits.npz", 1437),
    "784-128-64-10": ("models/reference/mnist_784_128_64_10.onnx", "data/mnist/mnist_t10k.npz", 8000),
    "784-256-256-10": ("models/reference/mnist_784_256_256_10.onnx", "data/mnist/mnist_t10k.npz", 8000),
}


def inputs() -> Path:
    """The folder of real models and rows."""
    folder = os.environ.get("RELU_DEPLOY_INPUTS")
    if not folder:
        raise SystemExit("set RELU_DEPLOY_INPUTS to the folder of models and data")
    return Path(folder)


def least_squares(name: str, degree: int = 2) -> tuple[PolynomialNetwork, Array, Array]:
    """A network with per-unit least-squares polynomials, its calibration rows and its held-out rows."""
    model_file, data_file, split = MODELS[name]
    model = deploy.load(inputs() / model_file)
    x = model.check_rows(read_rows(inputs() / data_file).x)
    h, tables = x[:split], []
    for layer in model.affines[:-1]:
        z = layer(h)
        table = np.zeros((layer.n_out, degree + 1))
        for unit in range(layer.n_out):
            if (z[:, unit] > 0).any():
                fit = np.polynomial.Polynomial.fit(z[:, unit], np.maximum(z[:, unit], 0), degree)
                coefficients = fit.convert().coef
                table[unit, : len(coefficients)] = coefficients
        tables.append(table)
        h = evaluate_polynomials(table, z)
    return PolynomialNetwork(model.affines, tuple(tables), model.decision), x[:split], x[split:]


class Pair:
    """A client with keys and a server that holds them."""

    def __init__(self, plan: Plan, network: PolynomialNetwork, *, kernels: bool | None = None) -> None:
        self.plan = plan
        features = tuple(Feature(f"x{index}", 0.0, 1.0) for index in range(network.n_in))
        guard = InputGuard(features, "stated")
        interface = Interface(network.decision, None, network.n_out, (network.n_in,), "none", guard)
        self.client = CkksClientRole(plan.exchange, interface)
        self.server = CkksServerRole(plan, network, kernels=kernels)
        keys = self.client.generate_keys()
        self.secret, self.evaluation_bytes = keys.secret, len(keys.evaluation)
        self.secret_stream = keys.secret[ENVELOPE_BYTES + 8 :]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "keys"
            path.write_bytes(keys.evaluation)
            self.server.check_key(path)
            self.key = self.server.load_key(path)

    def encrypt(self, x: Array) -> bytes:
        return self.client.encrypt(x, self.secret)

    def infer(self, request: bytes) -> bytes:
        return self.server.infer(request, self.key)

    def in_memory(self, request: bytes) -> Callable[[], Any]:
        """From the ciphertexts of a request to those of its answer, without reading and writing."""
        return partial(self.server.compute, self.server.read_request(request), self.key)

    def decrypt(self, answer: bytes) -> Array:
        return self.client.decrypt(answer, self.secret)


def cpu_seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def interleaved(contenders: dict[str, Callable[[], Any]], rounds: int, weights: dict[str, int]) -> dict[str, float]:
    """Median CPU seconds of each; every round runs each contender `weights` times, in turn."""
    for work in contenders.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, work in contenders.items():
            times[name] += [cpu_seconds(work) for _ in range(weights.get(name, 1))]
    return {name: statistics.median(values) for name, values in times.items()}


def chain(plan: Plan) -> str:
    parameters = plan.exchange.parameters
    return f"N={parameters.poly_modulus_degree} {list(parameters.coeff_modulus_bits)}"
