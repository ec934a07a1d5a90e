"""What the service costs and bears, over real ciphertexts: python benchmarks/service.py

Measured in one run, interleaved where two things are compared:

- what the service adds to one request of 784-128-10 over the bare runtime (the same role, in this process);
- capacity with one worker and with two, for 784-128-10 and for the network of ``--widths``, which everything below asks;
- how long health takes to answer while every worker computes;
- latencies at 90 % of capacity, every answer decrypted and compared with the reference.

``--check`` exits with 1 where a figure misses what the project promises. The model is an MNIST one of
RELU_DEPLOY_INPUTS where that is set, otherwise random weights of the same shape: speed does not depend on them.

Callers, server and workers share the processors of one machine. On two of them, two workers cannot reach more than
2 W / (W + S + C) times one, for W, S and C the processor time of a request in a worker, in the server and in its
caller: the three are printed, with the bound.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from loading import Callers, Question, measure_capacity, replay
from networks import random_mlp
from standing import Running, running

import deploy
from deploy.bundle import read_archive
from deploy.client.exchange import split_elements
from deploy.envelope import open_envelope
from deploy.registry import target
from deploy.service.models import ServedModel, open_sources, parse_source

TARGET = "ckks"
SMALL = "784-128-10"


def make_bundle(folder: Path, widths: str) -> tuple[Path, np.ndarray]:
    """A bundle of a network of these widths, and rows to ask it about."""
    inputs = os.environ.get("RELU_DEPLOY_INPUTS")
    if inputs:
        name = f"mnist_{widths.replace('-', '_')}"
        plain = Path(inputs) / f"models/{name}/{name}.legacy.onnx"
        model = deploy.load(plain if plain.exists() else Path(inputs) / f"models/reference/{name}.onnx")
        data = f"{inputs}/data/mnist/mnist_t10k.npz"
        calibration = deploy.Calibration.read(f"{data}[6000:8000]")
        rows = deploy.HeldOut.read(f"{data}[8000:8040]").x
    else:
        rng = np.random.default_rng(0)
        shape = tuple(int(width) for width in widths.split("-"))
        model = random_mlp(rng, shape)
        calibration = deploy.Calibration(rng.random((500, shape[0])))
        rows = rng.random((40, shape[0]))
    path = folder / f"mnist-{widths}.bundle"
    deploy.convert(model, calibration, deploy.parse_options({TARGET: target(TARGET)})).write(path)
    return path, rows


def bare_runtime(model: ServedModel, callers: Callers, folder: Path) -> Any:
    """The server's role in this process: a function of a question."""
    role = target(TARGET).server(read_archive(model.server_archive, role="server").files)
    keys = []
    for number, pair in enumerate(callers.pairs):
        path = folder / f"key-{number}"
        path.write_bytes(pair.evaluation)
        keys.append(role.load_key(path))

    def ask(question: Question) -> None:
        head = int(question.headers["Inference-Header-Content-Length"])
        (element,) = split_elements(question.content[head:])
        role.infer(open_envelope(element, kind="request").payload, keys[question.subject % len(keys)])

    return ask


def measure_overhead(server: Running, callers: Callers, bare: Any, rounds: int) -> dict[str, float]:
    """One request, bare and served by turns, in milliseconds: wall time, and processor time, which a busy machine
    does not stretch. The caller's own HTTP counts as the service's in wall time only.
    """
    times: dict[str, list[float]] = {"bare": [], "served": []}
    processes = [psutil.Process(pid) for pid in (server.process.pid, *server.workers())]

    def spent_s() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    bare_cpu_s = served_cpu_s = 0.0
    with httpx2.Client(base_url=server.url, trust_env=False, timeout=60) as http:
        for turn in range(rounds + 5):
            if turn == 5:
                served_cpu_s = -spent_s()
            question = callers.questions[turn % len(callers.questions)]
            began, cpu = time.perf_counter(), time.process_time()
            bare(question)
            between, cpu = time.perf_counter(), time.process_time() - cpu
            http.post(question.path, content=question.content, headers=question.headers).raise_for_status()
            ended = time.perf_counter()
            if turn >= 5:
                times["bare"].append(1e3 * (between - began))
                times["served"].append(1e3 * (ended - between))
                bare_cpu_s += cpu
    served_cpu_s += spent_s()
    medians = {name: statistics.median(values) for name, values in times.items()}
    smallest = {name: min(values) for name, values in times.items()}
    return {
        "bare_ms": medians["bare"],
        "served_ms": medians["served"],
        "added_ms": medians["served"] - medians["bare"],
        "added_ms_smallest": smallest["served"] - smallest["bare"],
        "bare_cpu_ms": 1e3 * bare_cpu_s / rounds,
        "served_cpu_ms": 1e3 * served_cpu_s / rounds,
        "added_cpu_ms": 1e3 * (served_cpu_s - bare_cpu_s) / rounds,
    }


def measure_scaling(one: Running, two: Running, callers: Callers) -> dict[str, float]:
    """Answers a second of one worker and of two, by turns, and where two spend processor time, in milliseconds."""
    singles, doubles, answers = [], [], 0
    spent_s = dict.fromkeys(("worker", "server", "caller"), 0.0)
    for _ in range(4):
        singles.append(measure_capacity(one.url, callers.questions, seconds=4, callers=4).rate_per_s)
        before = _processor_seconds(two)
        load = measure_capacity(two.url, callers.questions, seconds=4, callers=4)
        doubles.append(load.rate_per_s)
        answers += len(load.seconds)
        for place, seconds in _processor_seconds(two).items():
            spent_s[place] += seconds - before[place]
    single, double = statistics.median(singles), statistics.median(doubles)
    cost = {f"{place}_ms": 1e3 * seconds / answers for place, seconds in spent_s.items()}
    bound = (os.cpu_count() or 1) * cost["worker_ms"] / sum(cost.values())
    return {
        "one": single,
        "two": double,
        "ratio": double / single,
        **cost,
        "bound_on_this_machine": min(2.0, bound),
    }


def _processor_seconds(server: Running) -> dict[str, float]:
    def spent(pid: int) -> float:
        return float(sum(psutil.Process(pid).cpu_times()[:2]))

    workers = sum(spent(pid) for pid in server.workers())
    return {"worker": workers, "server": spent(server.process.pid), "caller": time.process_time()}


def poll_health(url: str) -> None:
    """Ask for health until standard input closes, then print every time in milliseconds as JSON; runs in a process of
    its own, because pauses of whoever makes the load are none of the service's.
    """
    done = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
    times: list[float] = []
    with httpx2.Client(base_url=url, trust_env=False, timeout=60) as http:
        while not done.wait(0.02):
            for path in ("/v2/health/live", "/v2/health/ready"):
                began = time.perf_counter()
                http.get(path).raise_for_status()
                times.append(1e3 * (time.perf_counter() - began))
    print(json.dumps(times))


def measure_health(url: str, callers: Callers, seconds: float) -> dict[str, float]:
    """How long health takes while every worker computes, in milliseconds."""
    command = [sys.executable, __file__, "--poll-health", url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as poller:
        measure_capacity(url, callers.questions, seconds=seconds, callers=8)
        output, _ = poller.communicate()
    times = sorted(json.loads(output))
    return {
        "polls": len(times),
        "median_ms": statistics.median(times),
        "p99_ms": times[int(0.99 * len(times))],
        "largest_ms": times[-1],
    }


def main() -> int:
    """Run everything and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="load at 90 %% of capacity")
    parser.add_argument("--rounds", type=int, default=150, help="requests for the overhead")
    parser.add_argument("--keys", type=int, default=8, help="distinct keys")
    parser.add_argument(
        "--widths", default=SMALL, help="an MNIST network of RELU_DEPLOY_INPUTS for scaling and load"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 where a promise is missed")
    parser.add_argument("--poll-health", metavar="URL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.poll_health:
        poll_health(arguments.poll_health)
        return 0
    with tempfile.TemporaryDirectory(prefix="relu-deploy-bench-") as name:
        folder = Path(name)
        models, callers = [], {}
        for widths in dict.fromkeys((SMALL, arguments.widths)):
            path, rows = make_bundle(folder, widths)
            models += open_sources([parse_source(str(path))])
            deployment = deploy.Bundle.read(path).deployment(TARGET)
            callers[widths] = Callers(models[-1], deployment, rows, keys=arguments.keys)
        asked = callers[arguments.widths]
        shared = {"queue": 10_000, "worker_nice": 5}
        with (
            running(models, folder / "one", workers=1, **shared) as one,
            running(models, folder / "two", workers=2, **shared) as two,
        ):
            for server in (one, two):
                for each in callers.values():
                    each.upload(server.url)  # and then every worker loads every key
                    measure_capacity(server.url, each.questions, seconds=4, callers=16)
            bare = bare_runtime(models[0], callers[SMALL], folder)
            overhead = measure_overhead(one, callers[SMALL], bare, arguments.rounds)
            capacity = {widths: measure_scaling(one, two, each) for widths, each in callers.items()}
            two_per_s = capacity[arguments.widths]["two"]
            health = measure_health(two.url, asked, 12)
            load = replay(two.url, asked.questions, seconds=arguments.seconds, rate_per_s=0.9 * two_per_s)
        wrong = asked.wrong(load)
    median, p99 = load.quantile_s(0.5), load.quantile_s(0.99)
    document = {
        "machine": {"processors": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]},
        "versions": {each: version(each) for each in ("tenseal", "fastapi", "uvicorn", "httpx2")},
        "overhead": overhead,
        "capacity_per_s": capacity,
        "health_under_full_load": health,
        "load_at_90_percent": {
            "requests": len(load.seconds),
            "statuses": load.statuses,
            "wrong_answers": len(wrong),
            "median_ms": 1e3 * median,
            "p99_ms": 1e3 * p99,
            "p99_over_median": p99 / median,
        },
    }
    promises = {
        "the service adds under 10 ms": max(overhead["added_ms"], overhead["added_cpu_ms"]) < 10,
        "two workers reach 1.6 times one": capacity[arguments.widths]["ratio"] >= 1.6,
        "health answers within 100 ms": health["largest_ms"] < 100,
        "no error and no wrong answer": set(load.statuses) == {200} and not wrong,
        "p99 is under 3 times the median": p99 < 3 * median,
    }
    print(json.dumps({**document, "promises": promises}, indent=1))
    return int(arguments.check and not all(promises.values()))


if __name__ == "__main__":
    sys.exit(main())
