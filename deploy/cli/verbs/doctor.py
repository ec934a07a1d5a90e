"""``doctor``: what is missing on this machine, and how to get it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from deploy.cli.verb import DoneBut
from deploy.errors import RequirementMissing, ShadowError
from deploy.target import Command, Json
from deploy.text import table

if TYPE_CHECKING:
    from deploy.requirement import Requirement

__all__ = ["command"]

DISTRIBUTION = "relu-deploy"


def run() -> Json:
    """Look at Python, the packages of each extra, the programs that targets need, and our package names."""
    from importlib.metadata import version

    from deploy.registry import problems, targets

    document: dict[str, Any] = {
        "version": version(DISTRIBUTION),
        "python": sys.version.split()[0],
        "extras": _extras(),
        "targets": {name: _programs(target) for name, target in targets().items()},
        "problems": [str(problem.error) for problem in problems()] + _shared_names(),
    }
    if document["problems"]:
        error = ShadowError(document["problems"][0], remedy="use a virtual environment of its own")
        raise DoneBut(document, error)
    return document


def _extras() -> dict[str, Any]:
    """Which packages of each extra are there: from the distribution's own metadata."""
    import re
    from importlib.metadata import requires

    pattern = re.compile(r"""^([A-Za-z0-9._-]+).*;.*extra\s*==\s*["']([a-z0-9-]+)["']""")
    found: dict[str, Any] = {}
    for line in requires(DISTRIBUTION) or ():
        match = pattern.match(line)
        if match is None or match[1] == DISTRIBUTION:
            continue
        packages = found.setdefault(
            match[2], {"packages": {}, "install": f'pip install "{DISTRIBUTION}[{match[2]}]"'}
        )
        packages["packages"][match[1]] = _version(match[1])
    return found


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _programs(target: Any) -> list[dict[str, Any]]:
    """What a target says it can use beside its packages, where it says so (``requirements``)."""
    requirements = target.requirements() if hasattr(target, "requirements") else ()
    return [{"name": item.name, "problem": _problem(item), "install": item.install} for item in requirements]


def _problem(requirement: Requirement) -> str | None:
    try:
        requirement.check()
    except RequirementMissing as error:
        return str(error)
    return None


def _shared_names() -> list[str]:
    """Import names of ours that another distribution claims as well."""
    from importlib.metadata import packages_distributions

    return [
        f"package {name} belongs to {' and '.join(sorted(set(owners)))}"
        for name, owners in packages_distributions().items()
        if DISTRIBUTION in owners and len(set(owners)) > 1
    ]


def text(document: Json) -> str:
    """Draw what is there, and the lines that install what is not."""
    assert isinstance(document, dict)
    lines = [f"relu-deploy {document['version']}, Python {document['python']}"]
    rows = []
    for name, extra in document["extras"].items():
        if name in ("all", "dev"):  # the union of the others, and what only developers need
            continue
        missing = [package for package, version in extra["packages"].items() if version is None]
        rows.append([name, "complete" if not missing else f"missing {', '.join(missing)}; run: {extra['install']}"])
    lines.append(table(["extra", "state"], rows))
    for name, programs in document["targets"].items():
        lines.append(f"target {name} is registered")
        lines += [f"  {item['problem'] or item['name'] + ': found'}" for item in programs]
    lines += [f"problem: {problem}" for problem in document["problems"]]
    return "\n".join(lines)


command = Command(help="Say what is missing and how to get it.", run=run, text=text)
