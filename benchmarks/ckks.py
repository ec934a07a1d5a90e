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
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from encrypted.degree import degree
from encrypted.general import general
from encrypted.primitives import prices
from encrypted.rows import memory, rows, throughput
from encrypted.single import single


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
    parser.add_argument("--peer", action="append", help="only this library of the peers; may be given again")
    arguments = parser.parse_args()
    document: dict[str, Any] = {
        "machine": {"processor": platform.processor() or platform.machine(), "python": platform.python_version()},
        "versions": {name: version(name) for name in ("tenseal", "numba", "numpy", "relu-deploy")},
    }
    for name in arguments.sections or SECTIONS:
        document[name] = SECTIONS[name](arguments)
        print(json.dumps({name: document[name]}, indent=1), file=sys.stderr, flush=True)
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
