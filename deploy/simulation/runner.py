"""Running a study: every case once, in worker processes, and the same rows however many there are.

Cases are pure and each is solved with one thread of linear algebra, so one worker, many, and a cluster give the same
numbers. joblib places them: its own processes (loky) on one machine, its Ray backend on a cluster.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from deploy.errors import DeployError, RequirementMissing
from deploy.progress import SILENT, Progress
from deploy.simulation.journal import Journal, case_key, plain_row
from deploy.study import Case, Row, Study

if TYPE_CHECKING:
    from deploy.arrays import Array

__all__ = ["run_study"]


def run_study(
    study: Study,
    cases: Sequence[Case],
    x: Array,
    *,
    jobs: int = 1,
    cluster: str | None = None,
    journal: Journal | None = None,
    progress: Progress = SILENT,
) -> list[dict[str, Any]]:
    """Compute the cases on rows x (batch, n_in), and give the rows of the table in the order of the cases.

    Parameters
    ----------
    jobs : worker processes; -1 for one a core. One job works in this process.
    cluster : address of a Ray cluster ("auto" for the one this machine belongs to, "local" to start one here).
    journal : keeps each row as it comes, and knows the ones from before.

    Raises
    ------
    DeployError : a case failed in a way its study did not foresee; the journal keeps the others.
    RequirementMissing : a cluster without ray.
    """
    known = dict(journal.rows) if journal is not None else {}
    todo = [case for case in cases if case_key(case) not in known]
    if journal is not None and len(todo) < len(cases):
        progress.say(f"{len(cases) - len(todo)} of {len(cases)} cases were there already")
    with progress.stage("cases", len(cases)) as advance:
        advance(len(cases) - len(todo))
        for case, row in _solve_all(study, todo, x, jobs=jobs, cluster=cluster):
            known[case_key(case)] = plain_row(row)
            if journal is not None:
                journal.add(case, known[case_key(case)])
            advance(1)
    return [{"case": case.id, **known[case_key(case)]} for case in cases]


def _solve_all(
    study: Study, cases: Sequence[Case], x: Array, *, jobs: int, cluster: str | None
) -> Iterator[tuple[Case, Row]]:
    """Each case with its row, in the order in which they come."""
    if not cases:
        return
    if cluster is None and jobs == 1:
        for case in cases:
            yield case, _solve(study, case, x)
        return
    from joblib import Parallel, delayed, effective_n_jobs

    if cluster is None:
        workers = Parallel(n_jobs=jobs, batch_size=1, return_as="generator_unordered")
        solved = workers(delayed(_solve_at)(index, study, case, x) for index, case in enumerate(cases))
        with warnings.catch_warnings():
            # After Ctrl-C joblib says which tasks it dropped; the journal knows, and goes on with them next time.
            warnings.filterwarnings(
                "ignore", message=".*tasks which were still being processed", category=UserWarning
            )
            for index, row in solved:
                yield cases[index], row
        return
    with _cluster(cluster, jobs):
        # joblib's Ray backend gives no row before the last; a part at a time, an interruption loses one part.
        part = 4 * effective_n_jobs(jobs)
        for start in range(0, len(cases), part):
            some = cases[start : start + part]
            rows = Parallel(n_jobs=jobs, batch_size=1)(delayed(_solve)(study, case, x) for case in some)
            yield from zip(some, rows, strict=True)


def _solve_at(index: int, study: Study, case: Case, x: Array) -> tuple[int, Row]:
    return index, _solve(study, case, x)


@contextmanager
def _cluster(address: str, jobs: int) -> Iterator[None]:
    """Place joblib's work on a Ray cluster for the time of a ``with`` block."""
    from joblib import parallel_config

    from deploy.requirement import require

    ray = require("ray", extra="cluster")
    require("ray.util.joblib", extra="cluster").register_ray()
    ours = not ray.is_initialized()
    if ours:
        _connect(ray, address)
    try:
        with parallel_config(backend="ray", n_jobs=jobs):
            yield
    finally:
        if ours:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address == "local":
            ray.init(address="local", include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise RequirementMissing(
            f"no cluster at {address}: {error}", remedy="start one: ray start --head, then give --cluster auto"
        ) from None


def _solve(study: Study, case: Case, x: Array) -> Row:
    """One case, with one thread of linear algebra: more of them would add in another order."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        try:
            return study.solve(case, x)
        except DeployError as error:
            raise error.at(f"case {case.id}") from None
