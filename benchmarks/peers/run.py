"""Run each peer in an environment of its own, made where it is missing, or give the exact reason why it does not run.

A peer is a script that takes the folder of one network (``square.onnx`` and ``square.npz``) and prints one JSON line.
All of them run the network with its squares completed, ``W2' (W1' x + b1')² + b2'``: one product, one square, one
product, which every library can express.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from encrypted.contenders import Pair, cpu_seconds, least_squares

from deploy.arrays import Array
from fhe.network import PolynomialNetwork
from fhe.plan import PlanOptions, Ranges, plan_network

HERE = Path(__file__).parent
LEAST_SQUARE_COEFFICIENT = 0.02
"""Units whose curvature is smaller get this much: completing the square divides by it."""


@dataclass(frozen=True)
class Peer:
    """One library: what to install, with which Python, and the script that runs it."""

    name: str
    packages: tuple[str, ...]
    script: str
    python: str = f"python{sys.version_info.major}.{sys.version_info.minor}"


PEERS = (
    Peer("HElayers", ("pyhelayers==1.5.5.4", "onnx"), "helayers_square.py"),
    # its wheel is tagged for any Python 3 and holds a module for CPython 3.10 only
    Peer("OpenFHE", ("openfhe==1.6.1.0.22.4", "numpy"), "openfhe_square.py", "python3.10"),
    Peer("Orion", ("orion-fhe==1.0.2",), "orion_square.py"),
    Peer("Concrete ML", ("concrete-ml==1.9.0",), "concrete_ml_square.py", "python3.10"),
)

OBJECTIVES: tuple[Literal["latency", "server"], ...] = ("latency", "server")


def square_form(network: PolynomialNetwork) -> dict[str, Array]:
    """Arrays w1, b1, w2, b2 of ``w2 (w1 x + b1)² + b2``; tiny curvatures are raised so that the offset stays bounded."""
    first, last = network.affines
    linear, square = network.coefficients[0][:, 1], network.coefficients[0][:, 2]
    square = np.where(np.abs(square) < LEAST_SQUARE_COEFFICIENT, LEAST_SQUARE_COEFFICIENT, square)
    offset = linear / (2 * square)
    root = np.sqrt(np.abs(square))
    return {
        "w1": first.weight * root[:, None],
        "b1": (first.bias + offset) * root,
        "w2": last.weight * np.sign(square),
        "b2": last.bias - last.weight @ (square * offset**2),
    }


def write_network(folder: Path, network: PolynomialNetwork, x: Array) -> None:
    """``square.npz`` with the arrays and rows, ``square.onnx`` with the same chain."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    arrays = square_form(network)
    np.savez(folder / "square.npz", x=x, **arrays)
    names = {name: numpy_helper.from_array(value.astype(np.float32), name) for name, value in arrays.items()}
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["z"], transB=1),
        helper.make_node("Mul", ["z", "z"], ["h"]),
        helper.make_node("Gemm", ["h", "w2", "b2"], ["logits"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "square",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, x.shape[1]])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, len(arrays["b2"])])],
        list(names.values()),
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), folder / "square.onnx")


def run_peers(arguments: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds, error and settings of each peer on 784-128-10 and 64-32-10, or why there are none.

    The row that is timed is the first; some libraries calibrate on the others. Ours is timed right before and right
    after each peer, from ciphertexts in memory to ciphertexts in memory as the peers are.
    """
    found: dict[str, Any] = {}
    contestants = {name: _Contestant(name) for name in ("784-128-10", "64-32-10")}
    for peer in PEERS:
        if arguments.peer and peer.name not in arguments.peer:
            continue
        try:
            python = _environment(peer)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            found[peer.name] = {"does_not_run": str(error)}
            continue
        for name, ours in contestants.items():
            with tempfile.TemporaryDirectory() as folder:
                write_network(Path(folder), ours.network, ours.rows)
                before = ours.times(arguments.rounds)
                result = _run(python, peer, folder)
                after = ours.times(arguments.rounds)
            for objective in OBJECTIVES:
                ours_ms = statistics.median(before[objective] + after[objective]) * 1e3
                result[f"ours_{objective}_ms"] = ours_ms
                if "ms" in result:
                    result[f"ratio_{objective}"] = result["ms"] / ours_ms
            found[f"{peer.name} {name}"] = result
    return found


class _Contestant:
    """Our side on one network: the plan that counts traffic too, and the one for the server's time alone."""

    def __init__(self, name: str) -> None:
        self.network, seen, held_out = least_squares(name)
        self.rows = held_out[:40]
        self._work = {}
        for objective in OBJECTIVES:
            options = PlanOptions(poly_modulus_degree=8192, objective=objective)
            pair = Pair(plan_network(self.network, Ranges.seen(self.network, seen), options), self.network)
            self._work[objective] = pair.in_memory(pair.encrypt(self.rows[:1]))
            self._work[objective]()

    def times(self, rounds: int) -> dict[str, list[float]]:
        """CPU seconds of 10 runs a round, by what the plan was for."""
        return {
            objective: [cpu_seconds(work) for _ in range(10 * rounds)] for objective, work in self._work.items()
        }


def _environment(peer: Peer) -> Path:
    """The interpreter of the peer's environment; raises RuntimeError with the reason."""
    program = _interpreter(peer.python)
    root = (
        Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        / "relu-deploy-peers"
        / peer.name.lower().replace(" ", "")
    )
    python = root / "bin" / "python"
    ready = root / "ready"
    if not ready.exists():
        for command in (
            [program, "-m", "venv", str(root)],
            [str(python), "-m", "pip", "install", "-q", *peer.packages],
        ):
            done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command[1:4])}: {_last_line(done.stderr)}")
        ready.touch()
    return python


def _interpreter(name: str) -> str:
    """The first interpreter of that name that runs: on the path, or a version that pyenv keeps."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{name.removeprefix('python')}.*/bin/{name}"))
    for program in (shutil.which(name), *map(str, kept)):
        if program and not subprocess.run([program, "-V"], capture_output=True, check=False).returncode:
            return program
    raise RuntimeError(f"{name} is not installed")


def _run(python: Path, peer: Peer, folder: str) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GOMAXPROCS": "1"}
    command = [str(python), str(HERE / peer.script), folder]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment)
    except subprocess.TimeoutExpired:
        return {"does_not_run": "no result within 900 s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return {"does_not_run": _last_line(done.stderr) or f"exit code {done.returncode}"}
    document: dict[str, Any] = json.loads(lines[-1])
    return document


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
