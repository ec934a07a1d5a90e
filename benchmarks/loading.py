"""Time and peak memory of loading a 784-4096-4096-10 network (80 MB of ONNX), beside onnx's own reading of it.

The peer does what any importer must: ``onnx.load``, then each weight as a float64 array. Each reading runs in a fresh
process, the two in turn; processor time is compared, because other programs may run.

    python benchmarks/loading.py [--rounds 3] [--json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTHS = (784, 4096, 4096, 10)

MEASURE = """
import json, sys, time
start, wall = time.process_time(), time.perf_counter()
{work}
status = open("/proc/self/status").read()
peak = 1024 * int(status.split("VmHWM:")[1].split()[0])
seconds = {{"cpu_seconds": time.process_time() - start, "wall_seconds": time.perf_counter() - wall}}
print(json.dumps({{**seconds, "peak_bytes": peak}}))
"""

OURS = "import deploy; model = deploy.load(sys.argv[1])"
PEER = """
import onnx, numpy as np
from onnx import numpy_helper
model = onnx.load(sys.argv[1])
weights = [numpy_helper.to_array(tensor).astype(np.float64) for tensor in model.graph.initializer]
"""


def write_model(path: Path) -> None:
    """Random weights, Gemm and Relu."""
    rng = np.random.default_rng(0)
    nodes, tensors, value = [], [], "x"
    for index, (n_in, n_out) in enumerate(itertools.pairwise(WIDTHS)):
        weight = rng.standard_normal((n_out, n_in), dtype=np.float32) / np.float32(n_in) ** 0.5
        tensors.append(numpy_helper.from_array(weight.astype(np.float32), f"W{index}"))
        tensors.append(numpy_helper.from_array(np.zeros(n_out, np.float32), f"b{index}"))
        nodes.append(helper.make_node("Gemm", [value, f"W{index}", f"b{index}"], [f"h{index}"], transB=1))
        value = f"h{index}"
        if index < len(WIDTHS) - 2:
            nodes.append(helper.make_node("Relu", [value], [f"a{index}"]))
            value = f"a{index}"
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", WIDTHS[0]])]
    outputs = [helper.make_tensor_value_info(value, TensorProto.FLOAT, ["N", WIDTHS[-1]])]
    graph = helper.make_graph(nodes, "large", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def measure(work: str, path: Path) -> dict[str, float]:
    """One reading in a fresh process."""
    command = [sys.executable, "-c", MEASURE.format(work=work), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.onnx"
        write_model(path)
        size = path.stat().st_size
        runs = {"deploy": [], "onnx": []}  # type: dict[str, list[dict[str, float]]]
        for _ in range(options.rounds):
            runs["deploy"].append(measure(OURS, path))
            runs["onnx"].append(measure(PEER, path))
    best = {
        name: {key: min(run[key] for run in found) for key in found[0]} | {"peak_over_size": 0.0}
        for name, found in runs.items()
    }
    for found in best.values():
        found["peak_over_size"] = found["peak_bytes"] / size
    document = {
        "widths": WIDTHS,
        "file_bytes": size,
        "rounds": options.rounds,
        **best,
        "cpu_ratio": best["deploy"]["cpu_seconds"] / best["onnx"]["cpu_seconds"],
        "peak_ratio": best["deploy"]["peak_bytes"] / best["onnx"]["peak_bytes"],
        "versions": {"python": platform.python_version(), "onnx": onnx.__version__, "numpy": np.__version__},
    }
    if options.json:
        print(json.dumps(document, indent=1))
        return
    for name in ("deploy", "onnx"):
        found = best[name]
        print(
            f"{name:7} {found['cpu_seconds']:.2f} s processor, {found['wall_seconds']:.2f} s wall, "
            f"{found['peak_bytes'] / 1e6:.0f} MB peak ({found['peak_over_size']:.2f} times the file)"
        )
    print(f"ratio   {document['cpu_ratio']:.2f} in time, {document['peak_ratio']:.2f} in memory")


if __name__ == "__main__":
    main()
