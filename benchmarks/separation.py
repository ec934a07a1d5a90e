"""Agreement, speed and certainty of the separation on the reference networks, against least squares and the usual.

Settings, seeds and the rule of selection are fixed here and in fhe/separation/selection.py before a held-out row is
read: seed 0, the default candidates, the one-standard-error rule. Networks, rows and splits: separation_cases.py.

    python benchmarks/separation.py                      # every table but the slow ones
    python benchmarks/separation.py agreement --models mnist shuttle256 --degrees 2 6
    python benchmarks/separation.py exact shared pools baselines fashion speed
    python benchmarks/separation.py --keep lines.jsonl   # lines found there are not computed again
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from separation_cases import FASHION, REFERENCES, TABULAR, read_case
from threadpoolctl import threadpool_limits

from deploy.fidelity import agreement_interval, compare_paired
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


class Lines:
    """One JSON line for each result, printed and kept in a file; what the file holds already is not computed again."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._known = {}
        if file is not None and file.exists():
            lines = [json.loads(text) for text in file.read_text().splitlines()]
            self._known = {self._key(line): line for line in lines}

    def add(self, key: dict[str, Any], compute: Callable[[], dict[str, Any]]) -> None:
        """Print the line of a key, computing its other entries unless they are known."""
        line = self._known.get(self._key(key))
        if line is None:
            found = compute()
            rounded = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in found.items()}
            line = {**key, "result": rounded}
            if self._file is not None:
                with self._file.open("a") as file:
                    file.write(json.dumps(line) + "\n")
        print(json.dumps({**key, **line["result"]}), flush=True)

    @staticmethod
    def _key(line: dict[str, Any]) -> str:
        return json.dumps({k: v for k, v in line.items() if k != "result"})


def against_least_squares(
    model: Mlp, x: np.ndarray, held: np.ndarray, *, degree: int = 2, **options: Any
) -> dict[str, Any]:
    """A fit against per-unit least squares of the same degree on the same held-out rows."""
    least = right(model, run(model, x, fit="least-squares", degree=degree)[0].network, held)
    found, cpu, wall = run(model, x, degree=degree, **options)
    ours = right(model, found.network, held)
    paired = compare_paired(ours, least)
    low, high = agreement_interval(int(ours.sum()), len(ours))
    return {
        "kept": found.fit,
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


def table_agreement(arguments: argparse.Namespace, lines: Lines) -> None:
    """fit=auto at each degree, paired with least squares."""
    for degree in arguments.degrees:
        for name in arguments.models or (*REFERENCES, "fashion"):
            case = read_case(name, arguments.fashion)
            unseen = REFERENCES[name].unseen if name in REFERENCES else None
            choices: list[dict[str, Any]] = [{"degree": degree}]
            if unseen:
                choices.append({"degree": degree, "selection_rows": unseen})
            for options in choices:
                key = {"table": "agreement", "model": name, **options}
                lines.add(key, lambda case=case, options=options: against_least_squares(*case, **options))


def table_exact(arguments: argparse.Namespace, lines: Lines) -> None:
    """fit=exact: calibration 1.0 at margin .1, or what is true."""
    for name in arguments.models or (
        "digits",
        "breast_cancer",
        "mnist",
        "digits_deep",
        "mnist_deep",
        "shuttle64",
        "shuttle256",
    ):
        case = read_case(name, arguments.fashion)
        key = {"table": "exact", "model": name}
        lines.add(key, lambda case=case: against_least_squares(*case, fit="exact"))


def table_shared(arguments: argparse.Namespace, lines: Lines) -> None:
    """The paper's one polynomial for a layer beside per-unit, on every data set: paired differences."""

    def compare(case: Any, fit: str) -> dict[str, Any]:
        model, x, held = case
        shared, cpu, _ = run(model, x, family="shared", fit=fit, gamma=1.0)
        ours = right(model, run(model, x)[0].network, held)
        theirs = right(model, shared.network, held)
        paired = compare_paired(ours, theirs)
        return {
            "kept": shared.fit,
            "shared": float(theirs.mean()),
            "per_unit": float(ours.mean()),
            "per_unit_minus_shared": paired.difference,
            "standard_error": paired.standard_error,
            "p_value": paired.p_value,
            "beyond_noise": paired.difference < 0 and paired.p_value < 0.05,
            "shared_cpu_s": cpu,
        }

    one_layer = [name for name in REFERENCES if not name.endswith(("_deep", "_256", "_six"))]
    for name in arguments.models or (*one_layer, *TABULAR, "fashion"):
        case = read_case(name, arguments.fashion)
        for fit in ("auto", "soft"):
            lines.add({"table": "shared", "model": name, "fit": fit}, lambda case=case, fit=fit: compare(case, fit))


def table_pools(arguments: argparse.Namespace, lines: Lines) -> None:
    """Few calibration rows: 1, 5, 10 and 20 % of them."""
    for name in arguments.models or REFERENCES:
        model, x, held = read_case(name, arguments.fashion)
        for share in (0.01, 0.05, 0.1, 0.2):
            pool = x[: max(2, int(len(x) * share))]
            for augment in (False, True):
                lines.add(
                    {"table": "pools", "model": name, "share": share, "rows": len(pool), "augment": augment},
                    lambda case=(model, pool, held), augment=augment: against_least_squares(*case, augment=augment),
                )


def table_baselines(arguments: argparse.Namespace, lines: Lines) -> None:
    """Every usual replacement on the same held-out rows."""

    def compare(theirs: np.ndarray, ours: np.ndarray) -> dict[str, Any]:
        low, high = agreement_interval(int(theirs.sum()), len(theirs))
        paired = compare_paired(ours, theirs)
        return {
            "held_out": float(theirs.mean()),
            "interval": [round(low, 4), round(high, 4)],
            "separation_minus_this": paired.difference,
            "standard_error": paired.standard_error,
        }

    for name in arguments.models or ("digits", "breast_cancer", "mnist", "shuttle64", "fashion"):
        model, x, held = read_case(name, arguments.fashion)
        ours = right(model, run(model, x)[0].network, held)
        lines.add(
            {"table": "baselines", "model": name, "replacement": "separation"},
            lambda ours=ours: compare(ours, ours),
        )
        for label, replacement in BASELINES.items():
            lines.add(
                {"table": "baselines", "model": name, "replacement": label},
                lambda case=(model, x, held), ours=ours, replacement=replacement: compare(
                    right(case[0], replace_layerwise(case[0], case[1], replacement), case[2]), ours
                ),
            )


def table_speed(arguments: argparse.Namespace, lines: Lines) -> None:
    """The exact program on MNIST rows: working set against cvxpy + Clarabel over all constraints, one run."""
    import cvxpy

    def compare() -> dict[str, Any]:
        model, first, last_rows = read_case("mnist")
        x = np.vstack([first, last_rows])[: arguments.rows]
        with threadpool_limits(1):
            targets = Targets.of(model.decision, model.logits(x))
            start = time.process_time()
            last = LastLayer.behind(model, x, degree=2)
            verdict = decide_separability(last.lift, targets, last.anchor, gamma=0.1)
            ours = closest_separating(
                last.lift, targets, last.anchor, verdict.parameters, gamma=0.1, progress=SILENT
            )
            our_seconds, our_peak = time.process_time() - start, peak_mb()
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
        return {
            "constraints": len(row),
            "working_set_cpu_s": our_seconds,
            "working_set_peak_mb": our_peak,
            "distance": ours.distance,
            "peer": f"cvxpy {cvxpy.__version__} + Clarabel, all constraints",
            "peer_cpu_s": seconds,
            "peer_peak_mb": peak_mb(),
            "peer_distance": theirs,
            "ratio": seconds / our_seconds,
            "relative_difference": abs(theirs - ours.distance) / theirs,
        }

    lines.add({"table": "speed", "rows": arguments.rows}, compare)


def table_fashion(arguments: argparse.Namespace, lines: Lines) -> None:
    """60,000 rows: one fit, auto, distill; and the proof that 10,000 unseen rows cannot all be kept."""
    model, train, test = read_case("fashion", arguments.fashion)

    def prove() -> dict[str, Any]:
        unseen = train[np.random.RandomState(0).permutation(60000)[50000:]]
        found, cpu, wall = run(model, unseen, fit="exact")
        certificate = found.certificates["infeasible.json"]
        start = time.process_time()
        checked = check_certificate(certificate, model, unseen)
        return {
            "separable": found.report["separable"],
            "cpu_s": cpu,
            "wall_s": wall,
            "claim": checked.claim,
            "check_cpu_s": time.process_time() - start,
            "certificate_mb": len(certificate) / 1e6,
        }

    def fit_once() -> dict[str, Any]:
        with threadpool_limits(1):
            targets = Targets.of(model.decision, model.logits(train))
            last = LastLayer.behind(model, train, degree=2)
            start = time.process_time()
            climb(last.lift, targets, last.anchor, gamma=1.0, strength=0.01)
            return {"cpu_s": time.process_time() - start, "peak_mb": peak_mb()}

    lines.add({"table": "fashion", "what": "one fit, 60,000 rows"}, fit_once)
    lines.add({"table": "fashion", "what": "auto"}, lambda: against_least_squares(model, train, test))
    lines.add(
        {"table": "fashion", "what": "distill"},
        lambda: against_least_squares(model, train, test, refine="distill"),
    )
    lines.add({"table": "fashion", "what": "10,000 unseen rows, fit=exact"}, prove)


TABLES: dict[str, Callable[[argparse.Namespace, Lines], None]] = {
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
    parser.add_argument("--models", nargs="*", choices=[*REFERENCES, *TABULAR, "fashion"])
    parser.add_argument("--degrees", nargs="*", type=int, default=[2, 6])
    parser.add_argument("--rows", type=int, default=10_000, help="of the speed table")
    parser.add_argument("--fashion", type=Path, default=FASHION, help="folder of the full Fashion-MNIST")
    parser.add_argument("--keep", type=Path, help="file of JSON lines to resume from")
    arguments = parser.parse_args()
    lines = Lines(arguments.keep)
    for table in arguments.tables:
        print(f"# {table}: {TABLES[table].__doc__}", flush=True)
        TABLES[table](arguments, lines)


if __name__ == "__main__":
    main()
