"""Agreement, speed and certainty of the separation on the reference networks, against least squares and the usual.

Settings, seeds and the rule of selection are fixed here and in fhe/separation/selection.py before a held-out row is
read: seed 0, the default candidates, the one-standard-error rule. Models and data come from RELU_DEPLOY_INPUTS;
Fashion-MNIST from Debian's package dataset-fashion-mnist (--fashion says where).

    python benchmarks/separation.py                      # every table but the slow ones
    python benchmarks/separation.py agreement --models mnist shuttle256 --degrees 2 6
    python benchmarks/separation.py exact speed fashion shared pools baselines deep
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from deploy.fidelity import agreement_interval, compare_paired
from deploy.loaders import load
from deploy.model import Mlp
from deploy.progress import SILENT
from fhe.certificate_checker import check_certificate
from fhe.network import PolynomialNetwork
from fhe.options import CkksOptions
from fhe.separation import LastLayer, Separation, separate
from fhe.separation.baselines import BASELINES, replace_layerwise
from fhe.separation.candidates import climb
from fhe.separation.exact import closest_separating, decide_separability
from fhe.separation.targets import Targets


@dataclass(frozen=True)
class Reference:
    """A reference network: file, rows, which rows are calibrated on and held out, and which it was trained on."""

    model: str
    data: str
    calibration: tuple[int, int]
    held_out: tuple[int, int]
    unseen: str | None = None


REFERENCES = {
    "digits": Reference("reference/digits_64_32_10", "digits", (0, 1437), (1437, 1797)),
    "digits_deep": Reference("reference/digits_64_32_32_10", "digits", (0, 1437), (1437, 1797)),
    "breast_cancer": Reference("reference/breast_cancer_30_16_2", "breast_cancer", (0, 455), (455, 569)),
    "mnist": Reference("mnist_784_128_10/mnist_784_128_10.legacy", "mnist/mnist_t10k", (0, 8000), (8000, 10000)),
    "mnist_deep": Reference(
        "reference/mnist_784_128_64_10", "mnist/mnist_t10k", (0, 8000), (8000, 10000), "6000:8000"
    ),
    "mnist_256": Reference(
        "reference/mnist_784_256_256_10", "mnist/mnist_t10k", (0, 8000), (8000, 10000), "6000:8000"
    ),
    "mnist_six": Reference(
        "reference/mnist_784_64x6_10", "mnist/mnist_t10k", (0, 8000), (8000, 10000), "6000:8000"
    ),
    "shuttle64": Reference("reference/shuttle_9_64_7", "shuttle/shuttle", (0, 46400), (46400, 58000)),
    "shuttle256": Reference("reference/shuttle_9_256_7", "shuttle/shuttle", (0, 46400), (46400, 58000)),
}


def read_case(name: str) -> tuple[Mlp, np.ndarray, np.ndarray]:
    """Model, calibration rows and held-out rows."""
    folder = Path(os.environ["RELU_DEPLOY_INPUTS"])
    reference = REFERENCES[name]
    model = load(folder / "models" / f"{reference.model}.onnx")
    assert isinstance(model, Mlp)
    x = np.load(folder / "data" / f"{reference.data}.npz")["x"].astype(np.float64)
    return model, x[slice(*reference.calibration)], x[slice(*reference.held_out)]


def read_fashion(folder: Path) -> tuple[Mlp, np.ndarray, np.ndarray]:
    """Model, train file and t10k file, divided by 255."""
    model = load(Path(os.environ["RELU_DEPLOY_INPUTS"]) / "models/reference/fashion60k_784_128_10.onnx")
    assert isinstance(model, Mlp)
    rows = []
    for part in ("train", "t10k"):
        with gzip.open(folder / f"{part}-images-idx3-ubyte.gz") as file:
            rows.append(np.frombuffer(file.read()[16:], np.uint8).reshape(-1, 784) / 255)
    train, test = rows
    return model, train, test


def run(model: Mlp, x: np.ndarray, **options: Any) -> tuple[Separation, float, float]:
    """Separate with seed 0; the separation, CPU seconds and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    found = separate(model, x, CkksOptions(**options), rng=np.random.default_rng(0))
    return found, time.process_time() - cpu, time.perf_counter() - wall


def right(model: Mlp, network: PolynomialNetwork, x: np.ndarray) -> np.ndarray:
    """Rows decided as the original does."""
    with np.errstate(all="ignore"):
        logits = network.logits(x)
    return np.isfinite(logits).all(axis=1) & model.decision.agree(model.logits(x), np.nan_to_num(logits))


def peak_mb() -> int:
    """Peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def report(line: dict[str, Any]) -> None:
    """One JSON line for a result."""
    print(json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in line.items()}), flush=True)


def against_least_squares(
    name: str, model: Mlp, x: np.ndarray, held: np.ndarray, least: np.ndarray, **options: Any
) -> None:
    """One line: a fit against per-unit least squares on the same held-out rows."""
    found, cpu, wall = run(model, x, **options)
    ours = right(model, found.network, held)
    paired = compare_paired(ours, least)
    low, high = agreement_interval(int(ours.sum()), len(ours))
    report(
        {
            "model": name,
            **options,
            "fit": found.fit,
            "calibration": float(right(model, found.network, x).mean()),
            "held_out": float(ours.mean()),
            "interval": [round(low, 4), round(high, 4)],
            "wrong": int((~ours).sum()),
            "least_squares_wrong": int((~least).sum()),
            "difference": paired.difference,
            "standard_error": paired.standard_error,
            "not_below": paired.difference >= -paired.standard_error,
            "separable": found.report["separable"],
            "min_margin": found.report["min_margin"],
            "cpu_s": cpu,
            "wall_s": wall,
            "peak_mb": peak_mb(),
        }
    )


def table_agreement(arguments: argparse.Namespace) -> None:
    """fit=auto at each degree, paired with least squares."""
    for name in arguments.models or REFERENCES:
        model, x, held = read_case(name)
        unseen = REFERENCES[name].unseen
        for degree in arguments.degrees:
            least = right(model, run(model, x, fit="least-squares", degree=degree)[0].network, held)
            against_least_squares(name, model, x, held, least, degree=degree)
            if unseen:
                against_least_squares(name, model, x, held, least, degree=degree, selection_rows=unseen)


def table_exact(arguments: argparse.Namespace) -> None:
    """fit=exact: calibration 1.0 at margin .1, or what is true."""
    for name in arguments.models or ("digits", "breast_cancer", "mnist", "mnist_deep", "shuttle64", "shuttle256"):
        model, x, held = read_case(name)
        least = right(model, run(model, x, fit="least-squares")[0].network, held)
        against_least_squares(name, model, x, held, least, fit="exact")


def table_shared(arguments: argparse.Namespace) -> None:
    """The paper's one polynomial for a layer, beside per-unit."""
    for name in arguments.models or ("digits", "breast_cancer", "mnist", "shuttle64", "shuttle256"):
        model, x, held = read_case(name)
        least = right(model, run(model, x, fit="least-squares")[0].network, held)
        for options in ({}, {"family": "shared"}, {"family": "shared", "fit": "anchored", "gamma": 1.0}):
            against_least_squares(name, model, x, held, least, **options)


def table_pools(arguments: argparse.Namespace) -> None:
    """Few calibration rows: 1, 5, 10 and 20 % of them."""
    for name in arguments.models or ("digits", "mnist", "shuttle64"):
        model, x, held = read_case(name)
        for share in (0.01, 0.05, 0.1, 0.2):
            pool = x[: max(2, int(len(x) * share))]
            least = right(model, run(model, pool, fit="least-squares")[0].network, held)
            against_least_squares(f"{name} {share:.0%}", model, pool, held, least)


def table_baselines(arguments: argparse.Namespace) -> None:
    """Every usual replacement on the same held-out rows."""
    for name in arguments.models or ("digits", "mnist", "shuttle64"):
        model, x, held = read_case(name)
        ours = right(model, run(model, x)[0].network, held)
        report({"model": name, "replacement": "separation", "held_out": float(ours.mean())})
        for label, replacement in BASELINES.items():
            theirs = right(model, replace_layerwise(model, x, replacement), held)
            low, high = agreement_interval(int(theirs.sum()), len(theirs))
            paired = compare_paired(ours, theirs)
            report(
                {
                    "model": name,
                    "replacement": label,
                    "held_out": float(theirs.mean()),
                    "interval": [round(low, 4), round(high, 4)],
                    "separation_minus_this": paired.difference,
                    "standard_error": paired.standard_error,
                }
            )


def table_speed(arguments: argparse.Namespace) -> None:
    """The exact program on 10,000 MNIST rows: working set against cvxpy + Clarabel over all constraints, one run."""
    import cvxpy

    folder = Path(os.environ["RELU_DEPLOY_INPUTS"])
    model = load(folder / "models/mnist_784_128_10/mnist_784_128_10.legacy.onnx")
    assert isinstance(model, Mlp)
    x = np.load(folder / "data/mnist/mnist_t10k.npz")["x"].astype(np.float64)[: arguments.rows]
    with threadpool_limits(1):
        targets = Targets.of(model.decision, model.logits(x))
        start = time.process_time()
        last = LastLayer.behind(model, x, degree=2)
        verdict = decide_separability(last.lift, targets, last.anchor, gamma=0.1)
        ours = closest_separating(last.lift, targets, last.anchor, verdict.parameters, gamma=0.1, progress=SILENT)
        our_seconds = time.process_time() - start
        report({"rows": len(x), "method": "working set", "cpu_s": our_seconds, "distance": ours.distance})
        start = time.process_time()
        row, other = np.nonzero(targets.counts)
        point = last.lift.at(last.anchor)
        matrix = point.rows(row, targets.chosen[row], other)
        margins = point.scores[row, targets.chosen[row]] - point.scores[row, other]
        step = cvxpy.Variable(last.lift.size)
        program = cvxpy.Problem(cvxpy.Minimize(0.5 * cvxpy.sum_squares(step)), [matrix @ step >= 0.1 - margins])
        program.solve(solver=cvxpy.CLARABEL)
        theirs = float(np.linalg.norm(step.value))
        seconds = time.process_time() - start
    report(
        {
            "rows": len(x),
            "method": f"cvxpy {cvxpy.__version__} + Clarabel, all {len(row)} constraints",
            "cpu_s": seconds,
            "distance": theirs,
            "ratio": seconds / our_seconds,
            "relative_difference": abs(theirs - ours.distance) / theirs,
            "peak_mb": peak_mb(),
        }
    )


def table_fashion(arguments: argparse.Namespace) -> None:
    """60,000 rows: one fit, auto, distill; and the proof that 10,000 unseen rows cannot all be kept."""
    model, train, test = read_fashion(arguments.fashion)
    unseen = train[np.random.RandomState(0).permutation(60000)[50000:]]
    found, cpu, wall = run(model, unseen, fit="exact")
    line = {
        "model": "fashion, 10,000 unseen rows",
        "separable": found.report["separable"],
        "cpu_s": cpu,
        "wall_s": wall,
    }
    if "infeasible.json" in found.certificates:
        start = time.process_time()
        checked = check_certificate(found.certificates["infeasible.json"], model, unseen)
        line |= {"claim": checked.claim, "check_cpu_s": time.process_time() - start}
        line["certificate_mb"] = len(found.certificates["infeasible.json"]) / 1e6
    report(line)
    least = right(model, run(model, train, fit="least-squares")[0].network, test)
    with threadpool_limits(1):
        targets = Targets.of(model.decision, model.logits(train))
        last = LastLayer.behind(model, train, degree=2)
        start = time.process_time()
        climb(last.lift, targets, last.anchor, gamma=1.0, strength=0.01)
        report({"model": "fashion", "rows": len(train), "one_fit_cpu_s": time.process_time() - start})
    against_least_squares("fashion", model, train, test, least)
    against_least_squares("fashion", model, train, test, least, refine="distill")


TABLES: dict[str, Callable[[argparse.Namespace], None]] = {
    "agreement": table_agreement,
    "exact": table_exact,
    "shared": table_shared,
    "pools": table_pools,
    "baselines": table_baselines,
    "speed": table_speed,
    "fashion": table_fashion,
}


def main() -> None:
    """Run the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "tables", nargs="*", choices=[*TABLES, []], default=["agreement", "exact", "shared", "pools"]
    )
    parser.add_argument("--models", nargs="*", choices=list(REFERENCES))
    parser.add_argument("--degrees", nargs="*", type=int, default=[2, 6])
    parser.add_argument("--rows", type=int, default=10_000, help="of the speed table")
    parser.add_argument("--fashion", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    arguments = parser.parse_args()
    for table in arguments.tables:
        print(f"# {table}: {TABLES[table].__doc__}", flush=True)
        TABLES[table](arguments)


if __name__ == "__main__":
    main()
