"""Fidelity, optimality, exactness, speed and size of the ternary target, against the rules and runtimes of others.

Models and data come from RELU_DEPLOY_INPUTS. Every conversion is the target's own, with seed 0 and the options
named; held-out rows are read once, at the end. Seconds are processor seconds on one thread.

    python benchmarks/ternary.py                       # every table; about half an hour, eight ninths of fidelity for spreads
    python benchmarks/ternary.py fidelity --models mnist digits_deep
    python benchmarks/ternary.py optimal exact speed alternatives latency size sensitivity theory
"""

from __future__ import annotations

import argparse
import itertools
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from separation_cases import REFERENCES as SHARED
from threadpoolctl import threadpool_limits

from deploy.dataset import Calibration
from deploy.fidelity import agreement_interval
from deploy.model import Affine, Decision, Mlp
from deploy.progress import SILENT
from quantization import target
from quantization.evidence import Evidence, decision_loss
from quantization.integer import calibrate_grids, compile_integer, run_int64
from quantization.latency import float32_runner
from quantization.layerwise import quantize_network
from quantization.network import Plane, QuantizedLayer, QuantizedMlp
from quantization.problem import pose_problem
from quantization.recipe import Recipe, quantize_rows
from quantization.selection import BASELINES
from quantization.sensitivity import measure_sensitivity
from quantization.sign_theory import measure_transverse_ratio, transverse_ratio, transverse_ratio_asymptotic

REFERENCES = {
    "mnist": SHARED["mnist_256"],
    "mnist_small": SHARED["mnist_deep"],
    "mnist_six": SHARED["mnist_six"],
    "digits": SHARED["digits"],
    "digits_deep": SHARED["digits_deep"],
    "shuttle": replace(SHARED["shuttle64"], calibration=(0, 8000)),
    "shuttle_wide": replace(SHARED["shuttle256"], calibration=(0, 8000)),
    "breast_cancer": SHARED["breast_cancer"],
}


def judge(model: Mlp, logits: np.ndarray, x: np.ndarray) -> tuple[float, float]:
    """KL and agreement on rows x."""
    original = model.logits(x)
    return decision_loss(model.decision, original, logits), float(model.decision.agree(original, logits).mean())


def convert(model: Mlp, x: np.ndarray, **options: Any) -> tuple[Any, float, str]:
    """A deployment, its processor seconds, and its sizes in words."""
    started = time.process_time()
    found = target.convert(
        model, Calibration(x), target.options(**options), rng=np.random.default_rng(0), progress=SILENT
    )
    seconds = time.process_time() - started
    notes = f"bits {found.bits_per_weight:.2f} int{found.report['integer']['activation_bits']} "
    return found, seconds, notes


def plain_feedback(model: Mlp, x: np.ndarray) -> tuple[Any, float, str]:
    """GPTQ as published: one scale, every row alike, no selection."""
    started = time.process_time()
    recipe = Recipe(weighting="uniform", damping=0.01, grid=1, descent=0)
    found = QuantizedMlp.of(quantize_network(Evidence(model, x), [recipe] * len(model.affines)))
    return found, time.process_time() - started, ""


def trained(model: Mlp, x: np.ndarray) -> tuple[Any, float, str]:
    """Straight-through training for ten epochs, without labels; needs torch."""
    import torch

    from quantization.straight_through import train_straight_through

    torch.set_num_threads(1)
    started = time.process_time()
    found = train_straight_through(Evidence(model, x), rng=np.random.default_rng(0), epochs=10)
    return found, time.process_time() - started, ""


METHODS: dict[str, Callable[[Mlp, np.ndarray], tuple[Any, float, str]]] = {
    "absmean": partial(convert, method="absmean"),
    "twn": partial(convert, method="twn"),
    "exact row": partial(convert, method="exact"),
    "feedback, 1 scale": plain_feedback,
    "QAT, 10 epochs": trained,
    "auto, no beam": partial(convert, beam=0),
    "auto": convert,
    "auto, 7 levels": partial(convert, levels=7),
    "auto, 15 levels": partial(convert, levels=15),
    "auto, two planes": partial(convert, planes=2),
    "auto, 10 % int8": partial(convert, int8_columns=0.1),
    "auto, int8 last": partial(convert, int8_last_layer=True),
}

SPREAD = (
    "absmean",
    "twn",
    "exact row",
    "feedback, 1 scale",
    "QAT, 10 epochs",
    "auto, no beam",
    "auto",
    "auto, 7 levels",
)
"""Methods that are run on subsets of the calibration rows too."""


def subsets(rows: int) -> Iterator[np.ndarray]:
    """Eight random subsets of nine tenths of the rows."""
    rng = np.random.default_rng(1)
    for _ in range(8):
        yield np.sort(rng.permutation(rows)[: rows * 9 // 10])


def table_fidelity(arguments: argparse.Namespace) -> None:
    """KL and agreement on held-out rows, calibrated on all rows and, below it, on eight subsets of nine tenths."""
    for name in arguments.models:
        model, x, held_out = REFERENCES[name].read()
        print(f"{name}: {'-'.join(map(str, model.widths))}, {len(x)} calibration rows, {len(held_out)} held out")
        for label in arguments.methods:
            found, seconds, notes = METHODS[label](model, x)
            kl, agreement = judge(model, found.logits(held_out), held_out)
            low, high = agreement_interval(round(agreement * len(held_out)), len(held_out))
            print(
                f"  {label:18s} KL {kl:.5f} agreement {agreement:.4f} [{low:.4f}, {high:.4f}] {notes}{seconds:.1f} s",
                flush=True,
            )
            if label not in SPREAD:
                continue
            spread = []
            for rows in subsets(len(x)):
                spread.append(judge(model, METHODS[label](model, x[rows])[0].logits(held_out), held_out))
            kls, agreements = np.array(spread).T
            print(
                f"  {'':18s} {len(spread)} subsets: KL mean {kls.mean():.5f} sd {kls.std():.5f} max {kls.max():.5f}, "
                f"agreement mean {agreements.mean():.4f} min {agreements.min():.4f}",
                flush=True,
            )


def table_floor(arguments: argparse.Namespace) -> None:
    """Loss on the calibration rows over that of the best weight-only rule, over 200 random networks (1 or less:
    holds)."""
    from quantization.selection import select

    worst = 0.0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        widths = tuple(int(n) for n in rng.integers(2, 12, size=rng.integers(2, 5)))
        layers = tuple(
            Affine(rng.normal(size=(b, a)) * np.sqrt(2 / a), rng.normal(size=b) * 0.1)
            for a, b in itertools.pairwise(widths)
        )
        model = Mlp(layers, ("relu",) * (len(layers) - 1), Decision("argmax"))
        evidence = Evidence(model, rng.normal(size=(int(rng.integers(8, 100)), widths[0])))
        ours = select(evidence, rng=rng, beam=4).best.loss
        rules = [
            evidence.loss(QuantizedMlp.of(quantize_network(evidence, [recipe] * len(layers), bias=bias)).layers)
            for recipe in BASELINES
            for bias in ("keep", "repair")
        ]
        worst = max(worst, ours / max(min(rules), 1e-300))
    print(f"  200 networks: largest ratio {worst:.4f}")


def table_optimal(arguments: argparse.Namespace) -> None:
    """Share of globally optimal rows and gap to the optimum, by brute force over all ternary rows."""
    rng = np.random.default_rng(0)
    for n in (4, 6, 8, 10, 12):
        codes = np.array(list(itertools.product((-1, 0, 1), repeat=n)), dtype=np.float64)[: (3**n) // 2]
        ratios = []
        for _ in range(4):
            x = np.maximum(rng.normal(size=(500, n)) @ rng.normal(size=(n, n)), 0)
            weight = rng.normal(size=(10, n))
            problem = pose_problem(weight, x, x)
            (plane,) = quantize_rows(Recipe(beam=32, weighting="uniform"), weight, x, x, row_weights=None)
            found = problem.error(plane.weight)
            energy = np.einsum("ij,ij->i", codes @ problem.hessian, codes)
            for row in range(10):
                least = problem.energy[row] - ((codes @ problem.pull[:, row]) ** 2 / energy).max()
                ratios.append(found[row] / least)
        found = np.array(ratios)
        print(
            f"  n {n:2d}: optimal {np.mean(found < 1 + 1e-6):.3f}, median gap {np.median(found):.4f}, "
            f"largest {found.max():.3f}"
        )


def table_exact(arguments: argparse.Namespace) -> None:
    """Rows on which five run times give the int64 reference's bits, worst-case activations among them."""
    from quantization import engines

    rng = np.random.default_rng(0)
    for name in ("mnist", "digits_deep"):
        model, x, _ = REFERENCES[name].read()
        network = QuantizedMlp.of(quantize_network(Evidence(model, x[:2000]), [Recipe()] * len(model.affines)))
        for bits in (8, 16):
            program = compile_integer(network, calibrate_grids(network, x, bits=bits))
            kind = np.int8 if bits == 8 else np.int16
            q = rng.integers(program.low, program.high + 1, size=(arguments.rows, program.n_in)).astype(kind)
            codes = program.layers[0].terms[0].codes
            q[: len(codes)] = np.where(codes > 0, program.high, program.low)
            q[len(codes) : 2 * len(codes)] = np.where(codes > 0, program.low, program.high)
            for at, value in enumerate((program.low, program.high, 0)):
                q[2 * len(codes) + at] = value
            expected = run_int64(program, q)
            for label, opener in {
                "numpy": engines.open_numpy,
                "jit": engines.open_jit,
                "torch": engines.open_torch,
                "onnxruntime": engines.open_onnxruntime,
                "onnx reference": engines.open_evaluator,
            }.items():
                runner, kernel = opener(program)
                same = int((runner(q) == expected).all(axis=1).sum())
                print(f"  {name} int{bits} {label:14s} {same} of {len(q)} rows equal ({kernel})", flush=True)


def table_speed(arguments: argparse.Namespace) -> None:
    """Least time of a call among runs of twenty, in turns with float32 in numpy, onnxruntime and torch in one process;
    every one of them on one thread."""
    from quantization.engines import open_session
    from quantization.jit import TwoBitKernel, available_forms, compile_kernel
    from quantization.kernel_codes import address, pack_codes
    from quantization.onnx_weights import build_weight_model

    rng = np.random.default_rng(0)
    for n_out, n_in in ((4096, 4096), (256, 784)):
        codes = rng.integers(-1, 2, size=(n_out, n_in)).astype(np.int8)
        layer = QuantizedLayer((Plane(codes, rng.uniform(0.5, 1, size=(n_out, 1))),), np.zeros(n_out))
        network = QuantizedMlp.of([layer])
        dense = network.layers[0].weight.astype(np.float32)
        plain, packed, kept = float_model(dense), pack_codes(codes), []
        sessions = {form: open_session(build_weight_model(network, form)) for form in ("dequantize", "nbits")}
        float_session = open_session(plain)[0]
        kernels: list[TwoBitKernel] = [compile_kernel(form) for form in available_forms()]
        for batch in (1, 256) if n_in == 784 else (1,):
            x = rng.normal(size=(batch, n_in)).astype(np.float32)
            q = rng.integers(-128, 128, size=(batch, n_in)).astype(np.int8)
            calls: dict[str, Callable[[], Any]] = {
                "float32 numpy": lambda x=x, dense=dense: x @ dense.T,
                "float32 onnxruntime": lambda x=x, s=float_session: s.run(None, {"x": x}),
                **float_torch(x, dense),
            }
            rivals = list(calls)
            for form, (session, _) in sessions.items():
                calls[f"onnxruntime {form}"] = lambda x=x, s=session: s.run(None, {"x": x})
            for kernel in kernels:
                calls[f"two-bit {kernel.form}"] = partial(kernel.accumulate, packed, q)
                rows = np.zeros((batch, packed.width), dtype=np.int8)
                rows[:, :n_in] = q
                into = np.empty((batch, packed.rows), dtype=np.int32)
                calls[f"  on buffers {kernel.form}"] = partial(
                    kernel.sum_into, packed, address(rows), address(into), batch
                )
                kept += [rows, into]
            least, median = interleave(calls, arguments.repeats)
            best, middle = (min(times[label] for label in rivals) for times in (least, median))
            for label in calls:
                print(
                    f"  {n_out} x {n_in}, batch {batch:3d}: {label:24s} {least[label] * 1e6:9.1f} us "
                    f"{best / least[label]:6.1f} times float32 (medians {median[label] * 1e6:9.1f} us, "
                    f"{middle / median[label]:5.1f} times)"
                )
        print(f"  operators that ran: {', '.join(f'{form} {dict(ops)}' for form, (_, ops) in sessions.items())}")


def table_alternatives(arguments: argparse.Namespace) -> None:
    """Other ways to have onnxruntime do it: least and median time of a call on 4096 x 4096 at batch 1, in turns with
    the fastest float32, and the largest deviation from exact integers over the largest sum."""
    from ternary_alternatives import profiled_us, reference, ways

    from quantization.engines import open_session

    rng = np.random.default_rng(0)
    codes = rng.integers(-1, 2, size=(4096, 4096)).astype(np.int8)
    x = rng.normal(size=(1, 4096)).astype(np.float32)
    dense = codes.astype(np.float32)
    plain = open_session(float_model(dense))[0]
    rivals: dict[str, Callable[[], Any]] = {
        "float32 numpy": lambda: x @ dense.T,
        "float32 onnxruntime": lambda: plain.run(None, {"x": x}),
        **float_torch(x, dense),
    }
    calls, notes = dict(rivals), {}
    for label, row, opener in ways(codes, x):
        way = opener()
        expected = reference(codes, row)
        notes[label] = (
            f"deviation {np.abs(way.read() - expected).max() / np.abs(expected).max():.1e} ({way.operators})"
        )
        calls[label] = way.call
    slow = [label for label, call in calls.items() if interleave({label: call}, 1, calls=2)[0][label] > 0.01]
    least, median = interleave({k: v for k, v in calls.items() if k not in slow}, arguments.repeats)
    for label in slow:
        for table, found in zip((least, median), interleave({label: calls[label]}, 1, calls=3), strict=True):
            table.update(found)
    best, middle = (min(times[label] for label in rivals) for times in (least, median))
    for label in calls:
        print(
            f"  {label:38s} {least[label] * 1e6:9.1f} us {best / least[label]:6.2f} times float32 "
            f"(medians {median[label] * 1e6:9.1f} us, {middle / median[label]:5.2f} times) {notes.get(label, '')}"
        )
    kernel, run = profiled_us(codes, x)
    print(
        f"  onnxruntime's own profile of MatMulNBits, least times: operator {kernel:.0f} us, whole run {run:.0f} us"
    )


def table_latency(arguments: argparse.Namespace) -> None:
    """Least time of a call of each run time on the wide MNIST network, in turns with float32 in numpy."""
    model, x, held_out = REFERENCES["mnist"].read()
    found, *_ = convert(model, x[:2000], beam=0)
    for batch in (1, 256):
        rows = held_out[:batch]
        baseline = float32_runner(model, rows)
        calls = {"float32 numpy": baseline}
        opened = {}
        for label, engine in found.engines().items():
            if label in ("integer-onnx-reference", "integer-torch"):
                continue
            opened[label] = engine.__enter__()
            calls[label] = lambda engine=opened[label], rows=rows: engine.run(rows).seconds["server"]
        least = {label: float("inf") for label in calls}
        for _ in range(10 * arguments.repeats):
            for label, call in calls.items():
                started = time.perf_counter()
                own = call()
                least[label] = min(least[label], own if isinstance(own, float) else time.perf_counter() - started)
        for label in calls:
            print(
                f"  mnist, batch {batch:3d}: {label:24s} {least[label] * 1e6:9.1f} us, {least['float32 numpy'] / least[label]:.2f} times float32"
            )


def interleave(
    functions: dict[str, Callable[[], Any]], repeats: int, *, calls: int = 20
) -> tuple[dict[str, float], dict[str, float]]:
    """Least and median seconds of each function. In its turn each is called twenty times, so that every one of them
    is seen with its own weights, not its rivals', in the caches."""
    times: dict[str, list[float]] = {label: [] for label in functions}
    for _ in range(repeats):
        for label, call in functions.items():
            for _ in range(calls):
                started = time.perf_counter()
                call()
                times[label].append(time.perf_counter() - started)
    return {k: min(v) for k, v in times.items()}, {k: float(np.median(v)) for k, v in times.items()}


def float_torch(x: np.ndarray, dense: np.ndarray) -> dict[str, Callable[[], Any]]:
    """x @ dense' in float32 in torch, where it is installed."""
    try:
        import torch
    except ModuleNotFoundError:
        return {}
    torch.set_num_threads(1)
    rows, weight = torch.from_numpy(x), torch.from_numpy(dense)
    return {"float32 torch": lambda: torch.nn.functional.linear(rows, weight)}


def float_model(dense: np.ndarray) -> bytes:
    """x @ dense' in float32 as ONNX."""
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "float",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", dense.shape[1]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", dense.shape[0]])],
        [numpy_helper.from_array(np.ascontiguousarray(dense.T), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return bytes(model.SerializeToString())


def table_size(arguments: argparse.Namespace) -> None:
    """Bytes of each file against float32."""
    for name in arguments.models:
        model, x, _ = REFERENCES[name].read()
        found, *_ = convert(model, x[:1000], beam=0)
        sizes = {file: len(data) for file, data in found.files().items()}
        weights = found.arithmetic.network.weights
        print(
            f"  {name}: float32 {4 * model.parameters} B; codes {8 * sizes['codes.bin'] / weights:.3f} bits a weight, "
            f"with scales and exponents {found.bits_per_weight:.3f}; all that counts {found.stored_bytes} B, "
            f"{4 * model.parameters / found.stored_bytes:.1f} times smaller; {sizes}"
        )


def table_sensitivity(arguments: argparse.Namespace) -> None:
    """Spearman's correlation of predicted and measured KL of sign flips, and measured over predicted."""
    for name in ("digits", "digits_deep", "mnist"):
        model, x, held_out = REFERENCES[name].read()
        first, second = (x[6000:8000], held_out) if name == "mnist" else (x, held_out)
        for layer in measure_sensitivity(
            model, first, second, rng=np.random.default_rng(0), weights=200, columns=100
        ):
            weights, columns, (ratio, low, high) = layer.weight_spearman, layer.column_spearman, layer.weight_ratio
            print(
                f"  {name} {layer.name}: weights {weights['gauss_newton']:.3f} (alpha² {weights['alpha_squared']:.3f}), "
                f"columns {columns['gauss_newton']:.3f} (alpha² {columns['alpha_squared']:.3f}); "
                f"measured over predicted {ratio:.2f} [{low:.2f}, {high:.2f}]",
                flush=True,
            )


def table_theory(arguments: argparse.Namespace) -> None:
    """c(p) measured at two widths and extrapolated in 1/n, against our exact form and the paper's asymptotic
    one."""
    rng = np.random.default_rng(0)
    for p in (0.005, 0.01, 0.02, 0.05, 0.1):
        (small, small_error), (large, large_error) = (
            measure_transverse_ratio(rng, n=n, p=p, trials=trials) for n, trials in ((256, 40), (512, 16))
        )
        error = np.hypot(small_error, 2 * large_error)
        print(
            f"  p {p}: measured {2 * large - small:.3f} +- {error:.3f}, exact {transverse_ratio(p):.4f}, "
            f"asymptotic {transverse_ratio_asymptotic(p):.4f}",
            flush=True,
        )


TABLES: dict[str, Callable[[argparse.Namespace], None]] = {
    "fidelity": table_fidelity,
    "floor": table_floor,
    "optimal": table_optimal,
    "exact": table_exact,
    "speed": table_speed,
    "alternatives": table_alternatives,
    "latency": table_latency,
    "size": table_size,
    "sensitivity": table_sensitivity,
    "theory": table_theory,
}


def main() -> None:
    """Run the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], default=list(TABLES))
    parser.add_argument("--models", nargs="*", choices=list(REFERENCES), default=list(REFERENCES))
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--rows", type=int, default=10_000, help="of the exactness table")
    parser.add_argument("--repeats", type=int, default=10, help="turns of the speed table")
    arguments = parser.parse_args()
    print(
        f"# {platform.processor() or platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}"
    )
    with threadpool_limits(limits=1):
        for table in arguments.tables:
            print(f"# {table}: {TABLES[table].__doc__}", flush=True)
            TABLES[table](arguments)


if __name__ == "__main__":
    main()
