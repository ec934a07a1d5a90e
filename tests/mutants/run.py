"""Apply each mutant to a copy of the tree and run the tests that must notice. See README.md beside this file."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[2]
LISTS = Path(__file__).parent
TIMEOUT_S = 600
"""A mutant that keeps its tests running for longer has been noticed as well."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change that must turn a test red."""

    area: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def read_mutants(areas: list[str]) -> list[Mutant]:
    """Mutants of the named areas (all without names), each checked against the tree."""
    known = {path.stem: path for path in sorted(LISTS.glob("*.toml"))}
    unknown = set(areas) - set(known)
    if unknown:
        sys.exit(f"no list {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    mutants = []
    for area in areas or known:
        table = tomllib.loads(known[area].read_text(encoding="utf-8"))
        mutants += [Mutant(area, tests=tuple(entry.pop("tests")), **entry) for entry in table["mutant"]]
    stale = [problem for mutant in mutants for problem in problems_of(mutant)]
    if stale:
        sys.exit("\n".join(stale))
    return mutants


def problems_of(mutant: Mutant) -> Iterator[str]:
    """Why a mutant cannot be applied: a list that has fallen behind the code is an error, not a success."""
    where = f"{mutant.area}: {mutant.name}"
    path = ROOT / mutant.file
    if not path.is_file():
        yield f"{where}: no file {mutant.file}"
    elif (count := path.read_text(encoding="utf-8").count(mutant.old)) != 1:
        yield f"{where}: its old text is {count} times in {mutant.file}, once is needed"
    if mutant.old == mutant.new:
        yield f"{where}: it changes nothing"
    yield from (f"{where}: no test {test}" for test in mutant.tests if not (ROOT / test.split("::")[0]).exists())
    if not mutant.tests:
        yield f"{where}: it names no test"


def copy_tree(destination: Path) -> None:
    """Copy what git knows or would add, and our distribution's metadata, so that the copy counts as installed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, destination / name)
    installed = distribution("relu-deploy")
    metadata = destination / f"relu_deploy-{installed.version}.dist-info"
    metadata.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        (metadata / name).write_text(installed.read_text(name) or "", encoding="utf-8")


def run_tests(tree: Path, tests: tuple[str, ...]) -> tuple[bool, str]:
    """Say whether the tests pass in a tree, and their last line."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        environment[threads] = "1"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not long", *tests]
    try:
        found = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"no end after {TIMEOUT_S} s"
    if found.returncode not in (0, 1, 2):  # 2: a module could not even be imported, which is noticed too
        sys.exit(f"pytest ended with {found.returncode}:\n{found.stdout}{found.stderr}")
    return found.returncode == 0, (found.stdout.strip().splitlines() or [""])[-1]


@contextmanager
def applied(mutant: Mutant, tree: Path) -> Iterator[None]:
    """Change the copy for the time of a ``with`` block."""
    path = tree / mutant.file
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(before, encoding="utf-8")


def main() -> int:
    """Run the lists; the exit code is 1 where a mutant survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("areas", nargs="*", help="lists to run, all by default")
    parser.add_argument("--jobs", type=int, default=2, help="trees to work in at once")
    parser.add_argument("--only", default="", help="mutants whose name contains this text")
    parser.add_argument("--check", action="store_true", help="only check that each can be applied")
    arguments = parser.parse_args()
    mutants = [mutant for mutant in read_mutants(arguments.areas) if arguments.only in mutant.name]
    if arguments.check:
        print(f"{len(mutants)} mutants can be applied")
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for index in range(arguments.jobs):
            copy_tree(Path(folder) / str(index))
            trees.put(Path(folder) / str(index))
        tests = sorted({mutant.tests for mutant in mutants})
        check_baseline(trees, tests)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            survivors = [mutant for mutant in pool.map(lambda m: try_mutant(m, trees), mutants) if mutant]
    print(f"{len(mutants)} mutants, {len(survivors)} survived")
    for mutant in survivors:
        print(f"SURVIVED {mutant.area}: {mutant.name} ({mutant.file}; {' '.join(mutant.tests)})")
    return 1 if survivors else 0


def check_baseline(trees: SimpleQueue[Path], tests: list[tuple[str, ...]]) -> None:
    """The tests must pass without a mutant, or their failing says nothing."""
    tree = trees.get()
    names = sorted({name for some in tests for name in some})
    passed, line = run_tests(tree, tuple(names))
    trees.put(tree)
    if not passed:
        sys.exit(f"the tests fail without any mutant: {line}")


def try_mutant(mutant: Mutant, trees: SimpleQueue[Path]) -> Mutant | None:
    """Give the mutant back where its tests did not notice."""
    tree = trees.get()
    try:
        with applied(mutant, tree):
            passed, line = run_tests(tree, mutant.tests)
    finally:
        trees.put(tree)
    print(f"{'SURVIVED' if passed else 'noticed '} {mutant.area}: {mutant.name}  [{line}]", flush=True)
    return mutant if passed else None


if __name__ == "__main__":
    sys.exit(main())
