"""Encrypted inference against its peers, in one interleaved run on one core.

::

    python benchmarks/ckks.py                       # everything below
    python benchmarks/ckks.py single                # one row: ours against naive TenSEAL
    python benchmarks/ckks.py degree                # degree 2 against degree 7, planned the same way
    python benchmarks/ckks.py throughput            # rows a second with one row a slot
    python benchmarks/ckks.py rows --rows 500       # errors and decisions against the bound on real rows
    python benchmarks/ckks.py general --networks 20 # random networks: bound, bytes, seconds, memory
    python benchmarks/ckks.py memory                # resident memory over 1,000 inferences
    python benchmarks/ckks.py prices                # the fixed cost table against this machine
    python benchmarks/ckks.py peers                 # other libraries, each in its own environment

Models and rows come from the folder that RELU_DEPLOY_INPUTS names. Times are CPU seconds of one process with one
thread (wall time besides where nothing else runs); ratios are of medians. Every answer slot holds a full output.
"""

# Thread counts must be set before numpy is imported.
# ruff: noqa: E402

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import deploy
from deploy.arrays import Array
from deploy.interface import Feature, InputGuard, Interface
from deploy.rows import read_rows
from fhe.network import PolynomialNetwork, evaluate_polynomials
from fhe.plan import Plan, PlanOptions, Ranges, plan_network
from fhe.roles import CkksClientRole, CkksServerRole
from fhe.runtime.bounds import logit_bound
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

    def __init__(self, plan: Plan, network: PolynomialNetwork) -> None:
        self.plan = plan
        features = tuple(Feature(f"x{index}", 0.0, 1.0) for index in range(network.n_in))
        guard = InputGuard(features, "stated")
        interface = Interface(network.decision, None, network.n_out, (network.n_in,), "none", guard)
        self.client = CkksClientRole(plan.exchange, interface)
        self.server = CkksServerRole(plan, network)
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


def single(arguments: argparse.Namespace) -> dict[str, Any]:
    """One row at a time, ours against correct naive TenSEAL at the same ring degree."""
    from peers.tenseal_naive import NaiveTenseal

    found = {}
    for name in ("784-128-10", "64-32-10"):
        network, calibration, held_out = least_squares(name)
        options = PlanOptions(poly_modulus_degree=8192)
        plan = plan_network(network, Ranges.seen(network, calibration), options)
        pair, naive = Pair(plan, network), NaiveTenseal(network)
        request, vector = pair.encrypt(held_out[:1]), naive.encrypt(held_out[0])
        medians = interleaved(
            {"ours": partial(pair.infer, request), "naive": partial(naive.infer, vector)},
            arguments.rounds,
            {"ours": 20},
        )
        expected = network.logits(held_out[:1])[0]
        found[name] = {
            "ours_ms": medians["ours"] * 1e3,
            "naive_ms": medians["naive"] * 1e3,
            "ratio": medians["naive"] / medians["ours"],
            "ours_chain": chain(plan),
            "naive_chain": naive.settings,
            "ours_error": float(np.abs(pair.decrypt(pair.infer(request))[0] - expected).max()),
            "naive_error": float(np.abs(naive.decrypt(naive.infer(vector)) - expected).max()),
            "ours_galois_key_MB": plan.expected.galois_key_bytes / 1e6,
            "naive_galois_key_MB": naive.galois_key_bytes / 1e6,
            "evaluation_keys_predicted_over_measured": plan.expected.key_bytes / pair.evaluation_bytes,
            "request_kB": len(request) / 1e3,
        }
    return found


def degree(arguments: argparse.Namespace) -> dict[str, Any]:
    """Degree 2 against degree 7, both planned by us to the same error budget at the same ring degree."""
    found: dict[str, Any] = {}
    for name in ("784-128-10", "64-32-10"):
        for n in (8192, 16384):
            pairs, requests = {}, {}
            for d in (2, 7):
                network, calibration, held_out = least_squares(name, d)
                options = PlanOptions(poly_modulus_degree=n, logit_error=arguments.logit_error)
                plan = plan_network(network, Ranges.seen(network, calibration), options)
                pairs[d] = Pair(plan, network)
                requests[d] = pairs[d].encrypt(held_out[:1])
            medians = interleaved(
                {str(d): partial(pairs[d].infer, requests[d]) for d in pairs},
                arguments.rounds * 3,
                {},
            )
            found[f"{name} N={n}"] = {
                "degree_2_ms": medians["2"] * 1e3,
                "degree_7_ms": medians["7"] * 1e3,
                "ratio": medians["7"] / medians["2"],
                **{f"degree_{d}_chain": chain(pair.plan) for d, pair in pairs.items()},
                **{f"degree_{d}_sigma": max(pair.plan.sigma) for d, pair in pairs.items()},
            }
    found["activation module alone, one chain"] = activation_module(arguments)
    found["activation module alone, one chain, TenSEAL polyval"] = activation_polyval(arguments)
    return found


def activation_module(arguments: argparse.Namespace) -> dict[str, Any]:
    """Our activation alone, degree 2 and 7 on the chain that degree 7 asks for: the streams of all powers."""
    from fhe.runtime.program import program_of
    from fhe.runtime.seal import SealBackend, SealContext, load_stream

    work: dict[str, Callable[[], Any]] = {}
    bits: tuple[int, ...] | None = None
    for d in (7, 2):
        network, calibration, _ = least_squares("64-32-10", d)
        options = PlanOptions(poly_modulus_degree=16384, coeff_modulus_bits=bits)
        plan = plan_network(network, Ranges.seen(network, calibration), options)
        bits = plan.exchange.parameters.coeff_modulus_bits
        pair, context = Pair(plan, network), SealContext(plan.exchange.parameters)
        levels = plan.exchange.parameters.levels
        z = context.seal.Ciphertext()
        secret = load_stream(context.seal.SecretKey(), context.context, pair.secret_stream)
        plain = context.encode(np.linspace(-1, 1, 8192), levels, 2.0**40)
        context.seal.Encryptor(context.context, secret).encrypt_symmetric(plain, z)
        backend = SealBackend(context, pair.key)
        work[str(d)] = partial(program_of(plan, network).powers, backend, 0, z)
    medians = interleaved(work, arguments.rounds * 5, {})
    return {
        "degree_2_ms": medians["2"] * 1e3,
        "degree_7_ms": medians["7"] * 1e3,
        "ratio": medians["7"] / medians["2"],
        "chain": f"N=16384 {list(bits or ())}",
    }


def activation_polyval(arguments: argparse.Namespace) -> dict[str, Any]:
    """The same in TenSEAL: ``polyval`` of the least-squares fits of the ReLU on [-1, 1]."""
    import tenseal

    context = tenseal.context(
        tenseal.SCHEME_TYPE.CKKS,
        poly_modulus_degree=16384,
        coeff_mod_bit_sizes=[60, 40, 40, 40, 40, 40, 60],
        n_threads=1,
    )
    context.global_scale = 2**40
    context.generate_relin_keys()
    z = tenseal.ckks_vector(context, np.linspace(-1, 1, 128).tolist())
    x = np.linspace(-1, 1, 1001)
    fits = {d: np.polynomial.Polynomial.fit(x, np.maximum(x, 0), d).convert().coef.tolist() for d in (2, 7)}
    medians = interleaved({str(d): partial(z.polyval, fit) for d, fit in fits.items()}, arguments.rounds * 5, {})
    return {
        "degree_2_ms": medians["2"] * 1e3,
        "degree_7_ms": medians["7"] * 1e3,
        "ratio": medians["7"] / medians["2"],
        "chain": "N=16384 [60, 40, 40, 40, 40, 40, 60]",
    }


def throughput(arguments: argparse.Namespace) -> dict[str, Any]:
    """Rows a second of one core with one row in each slot and part."""
    found = {}
    for name in ("64-32-10", "784-128-10"):
        network, calibration, _ = least_squares(name)
        plan = plan_network(network, Ranges.seen(network, calibration), PlanOptions(packing="throughput"))
        pair = Pair(plan, network)
        rows = np.resize(calibration, (plan.exchange.rows, network.n_in))
        request = pair.encrypt(rows)
        answer = pair.infer(request)
        seconds = interleaved({"ours": partial(pair.infer, request)}, arguments.rounds, {})["ours"]
        logits, expected = pair.decrypt(answer), network.logits(rows)
        found[name] = {
            "rows": len(rows),
            "seconds": seconds,
            "rows_per_second": len(rows) / seconds,
            "chain": chain(plan),
            "max_error": float(np.abs(logits - expected).max()),
            "bound": max(plan.bound),
            "agreement": float(network.decision.agree(expected, logits).mean()),
            "request_kB_per_row": len(request) / 1e3 / len(rows),
            "seconds_predicted_over_measured": plan.expected.server_seconds / seconds,
        }
    return found


def rows(arguments: argparse.Namespace) -> dict[str, Any]:
    """Errors and decisions on held-out rows, against the bound of each row."""
    found = {}
    for name in MODELS:
        network, calibration, held_out = least_squares(name)
        count = min(len(held_out), arguments.rows if name in ("784-128-10", "64-32-10") else 100)
        plan = plan_network(network, Ranges.seen(network, calibration), PlanOptions())
        pair = Pair(plan, network)
        x = held_out[:count]
        start = time.process_time()
        answers = [pair.infer(pair.encrypt(row[None])) for row in x]
        seconds = (time.process_time() - start) / count
        logits = np.concatenate([pair.decrypt(answer) for answer in answers])
        expected = network.logits(x)
        bound = logit_bound(plan, network, x)
        errors = np.abs(logits - expected)
        agree = network.decision.agree(expected, logits)
        above = network.decision.margins(expected) > 2 * bound.max(axis=1)
        found[name] = {
            "rows": count,
            "chain": chain(plan),
            "max_error": float(errors.max()),
            "rms_error": float(np.sqrt((errors**2).mean())),
            "largest_error_over_bound": float((errors / bound).max()),
            "bound_median": float(np.median(bound)),
            "flips_above_bound": int((~agree & above).sum()),
            "flips_below_bound": int((~agree & ~above).sum()),
            "rows_below_bound": int((~above).sum()),
            "seconds_per_row": seconds,
            "key_MB": plan.expected.key_bytes / 1e6,
        }
    return found


def random_network(rng: np.random.Generator) -> PolynomialNetwork:
    """Widths 3 to 3,000, one to four hidden layers, 1 to 200 outputs; some units dead, some passing on."""
    from deploy.model import Affine, Decision

    hidden = int(rng.integers(1, 5))
    largest = 3000 if hidden == 1 else 400
    widths = [int(np.exp(rng.uniform(np.log(3), np.log(limit)))) for limit in (3000, *[largest] * hidden)]
    widths.append(int(np.exp(rng.uniform(0, np.log(200)))))
    affines, tables = [], []
    for n_in, n_out in pairwise(widths):
        affines.append(Affine(rng.normal(size=(n_out, n_in)) / np.sqrt(n_in), rng.normal(size=n_out) * 0.1))
    for units in widths[1:-1]:
        table = np.zeros((units, 3))
        table[:, 1:] = rng.normal(size=(units, 2)) * [1.0, 0.5]
        table[rng.random(units) < 0.1] = 0.0
        table[rng.random(units) < 0.1] = [0.0, 1.0, 0.0]
        tables.append(table)
    return PolynomialNetwork(tuple(affines), tuple(tables), Decision("argmax" if widths[-1] > 1 else "sign"))


def general(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Random networks: do they run, stay within their bound, and need what was foretold?

    The cost table is calibrated once, here and now; each server runs in a process of its own, so that its peak memory
    is its own.
    """
    measured, found = calibration(arguments), []
    for seed in range(arguments.networks):
        found.append(one_random_network(seed, measured))
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    return found


def calibration(arguments: argparse.Namespace) -> dict[tuple[str, int, int], float]:
    """What each primitive takes here over what the table says, by name, data primes and ring degree."""
    from fhe.plan.prices import price

    found = {}
    for n, most in ((8192, 4), (16384, 8), (32768, 12)):
        for levels in (1, 2, 3, 4, 6, 8, 10, 12):
            if levels <= most:
                medians = interleaved(primitives(n, levels), arguments.rounds, {})
                found.update({(name, levels, n): s / price(name, levels, n) for name, s in medians.items()})
    return found


def calibrated_seconds(plan: Plan, measured: dict[tuple[str, int, int], float]) -> float:
    """Server seconds of a plan by the calibrated table; primitives that were not measured cost what the table says."""
    from fhe.plan.prices import price

    n, total = plan.exchange.parameters.poly_modulus_degree, 0.0
    for operation, count in plan.expected.operations.items():
        name, _, level_text = operation.partition("@")
        level = int(level_text)
        if name == "encode":
            continue
        known = {key[1]: ratio for key, ratio in measured.items() if key[0] == name and key[2] == n}
        ratio = known[min(known, key=lambda at: abs(at - level))] if known else 1.0
        total += count * price(name, level, n) * ratio
    return total


def one_random_network(seed: int, measured: dict[tuple[str, int, int], float]) -> dict[str, Any]:
    """Plan, encrypt here, compute in another process, decrypt here."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    rng = np.random.default_rng(seed)
    network = random_network(rng)
    x = rng.random((64, network.n_in))
    plan = plan_network(network, Ranges.seen(network, x), PlanOptions())
    features = tuple(Feature(f"x{index}", 0.0, 1.0) for index in range(network.n_in))
    guard = InputGuard(features, "stated")
    client = CkksClientRole(
        plan.exchange, Interface(network.decision, None, network.n_out, (network.n_in,), "none", guard)
    )
    keys = client.generate_keys()
    request = client.encrypt(x[:1], keys.secret)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys"
        path.write_bytes(keys.evaluation)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            served = pool.submit(serve, plan.to_bytes(), network.to_bytes(), path, request).result()
    errors = np.abs(client.decrypt(served["answer"], keys.secret) - network.logits(x[:1]))
    expected = plan.expected
    return {
        "widths": list(network.widths),
        "planned": list(plan.widths),
        "chain": chain(plan),
        "error": float(errors.max()),
        "bound": max(plan.bound),
        "within": bool((errors <= plan.bound).all()),
        "key_bytes_ratio": expected.key_bytes / len(keys.evaluation),
        "request_bytes_ratio": expected.request_bytes / len(request),
        "answer_bytes_ratio": expected.answer_bytes / len(served["answer"]),
        "peak_memory_MB": served["peak"] / 1e6,
        "peak_memory_ratio": expected.peak_memory_bytes / served["peak"],
        "seconds": served["seconds"],
        "seconds_ratio": calibrated_seconds(plan, measured) / served["seconds"],
        "seconds_ratio_of_the_table": expected.server_seconds / served["seconds"],
    }


def serve(plan: bytes, network: bytes, keys: Path, request: bytes) -> dict[str, Any]:
    """A server's life: load plan, network and keys, answer; its seconds for one answer and its peak memory."""
    server = CkksServerRole(Plan.from_bytes(plan), PolynomialNetwork.from_bytes(network))
    server.check_key(keys)
    key = server.load_key(keys)
    answer = server.infer(request, key)
    seconds = min(cpu_seconds(lambda: server.infer(request, key)) for _ in range(3))
    # the kernel's figure of this program alone: that of getrusage starts with the parent's
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) * 1024
    return {"answer": answer, "seconds": seconds, "peak": peak}


def memory(arguments: argparse.Namespace) -> dict[str, Any]:
    """Resident memory over many inferences, every answer decrypted."""
    import psutil

    network, calibration, held_out = least_squares("64-32-10")
    plan = plan_network(network, Ranges.seen(network, calibration), PlanOptions())
    pair = Pair(plan, network)
    process = psutil.Process()
    resident = {}
    for index in range(arguments.inferences + 1):
        row = held_out[index % len(held_out)][None]
        pair.decrypt(pair.infer(pair.encrypt(row)))
        if index in (20, arguments.inferences // 2, arguments.inferences):
            resident[index] = process.memory_info().rss
    first, last = resident[20], resident[arguments.inferences]
    return {"resident_MB": {k: v / 1e6 for k, v in resident.items()}, "growth": last / first - 1}


def primitives(n: int, levels: int) -> dict[str, Callable[[], Any]]:
    """Primitives of the cost table as something to time; a result is a new object each time, as in a run."""
    from fhe.plan import Parameters
    from fhe.runtime.seal import SealContext

    context = SealContext(Parameters(poly_modulus_degree=n, coeff_modulus_bits=(40,) * (levels + 1)))
    seal = context.seal
    generator = seal.KeyGenerator(context.context)
    galois = seal.GaloisKeys()
    generator.create_galois_keys([3], galois)
    evaluator = seal.Evaluator(context.context)
    slots = np.random.default_rng(0).random(n // 2)
    plain = context.encode(slots, levels, 2.0**12)
    a = seal.Ciphertext()
    seal.Encryptor(context.context, generator.secret_key()).encrypt_symmetric(plain, a)
    work: dict[str, Callable[[], Any]] = {
        "rotate": lambda: evaluator.apply_galois(a, 3, galois, seal.Ciphertext()),
        "multiply_plain": lambda: evaluator.multiply_plain(a, plain, seal.Ciphertext()),
        "multiply": lambda: evaluator.square(a, seal.Ciphertext()),
        "add": lambda: evaluator.add(a, a, seal.Ciphertext()),
        "encode": lambda: context.encode(slots, levels, 2.0**15),
    }
    if levels > 1:
        work["rescale"] = lambda: evaluator.rescale_to_next(a, seal.Ciphertext())
    return work


def prices(arguments: argparse.Namespace) -> dict[str, Any]:
    """Each primitive of the cost table, measured here."""
    from fhe.plan.prices import price

    found = {}
    for n, levels in ((8192, 2), (8192, 3), (16384, 4)):
        work = primitives(n, levels)
        medians = interleaved(work, arguments.rounds * 10, {})
        for name, seconds in medians.items():
            found[f"{name}@{levels} N={n}"] = {"us": seconds * 1e6, "table_us": price(name, levels, n) * 1e6}
    return found


def peers(arguments: argparse.Namespace) -> dict[str, Any]:
    """Other libraries, each run by a script that makes its own environment."""
    from peers.run import run_peers

    return run_peers(arguments)


SECTIONS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "single": single,
    "degree": degree,
    "throughput": throughput,
    "rows": rows,
    "general": general,
    "memory": memory,
    "prices": prices,
    "peers": peers,
}


def main() -> None:
    """Run the sections that were named and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], help="all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--networks", type=int, default=20)
    parser.add_argument("--inferences", type=int, default=1000)
    parser.add_argument("--logit-error", type=float, default=0.02)
    arguments = parser.parse_args()
    document: dict[str, Any] = {
        "machine": {"processor": platform.processor() or platform.machine(), "python": platform.python_version()},
        "versions": {name: version(name) for name in ("tenseal", "numpy", "relu-deploy")},
    }
    for name in arguments.sections or SECTIONS:
        document[name] = SECTIONS[name](arguments)
        print(json.dumps({name: document[name]}, indent=1), file=sys.stderr, flush=True)
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
