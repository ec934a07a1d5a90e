"""The targets that are installed, found by entry point (group ``deploy.targets``).

The names of our packages are generic, so a file of the same name can hide one. Before anything is imported, the
registry checks that the module which Python would import belongs to the distribution that registered it.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

from deploy.errors import DeployError, ShadowError, UsageError

if TYPE_CHECKING:
    from deploy.target import Target

__all__ = ["GROUP", "Problem", "nearest", "problems", "target", "target_names", "targets"]

GROUP = "deploy.targets"


def _entries() -> dict[str, EntryPoint]:
    """Entry point of each target, sorted by name; the same distribution seen twice counts once."""
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}


def target_names() -> tuple[str, ...]:
    """Names of the registered targets, without importing any."""
    return tuple(_entries())


def target(name: str) -> Target:
    """Import one target.

    Raises
    ------
    UsageError : no such target; the nearest name is in the remedy.
    ShadowError : another file hides the target's module.
    """
    entries = _entries()
    if name not in entries:
        raise UsageError(f"no target {name!r}", remedy=nearest(name, entries))
    return _load(entries[name])


def targets() -> Mapping[str, Target]:
    """Import every registered target that can be imported; :func:`problems` lists the others."""
    found = {}
    for name, entry in _entries().items():
        try:
            found[name] = _load(entry)
        except DeployError:
            continue
    return found


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a registered target cannot be used."""

    name: str
    error: DeployError


def problems() -> tuple[Problem, ...]:
    """Registered targets that cannot be imported, and why."""
    found = []
    for name, entry in _entries().items():
        try:
            _load(entry)
        except DeployError as error:
            found.append(Problem(name, error))
    return tuple(found)


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant.

    >>> nearest("cks", ["ckks", "ternary"])
    'did you mean ckks? known: ckks, ternary'
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"{hint}known: {', '.join(names) or 'none'}"


def _load(entry: EntryPoint) -> Target:
    package = entry.module.split(".")[0]
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError) as error:
        raise ShadowError(f"{package} cannot be found: {error}", place=f"target {entry.name}") from None
    places = [] if spec is None else [spec.origin or "", *(spec.submodule_search_locations or ())]
    roots = _roots(entry.dist)
    if spec is None or (spec.origin is None and not spec.submodule_search_locations):
        raise ShadowError(
            f"package {package} is not installed", place=f"target {entry.name}", remedy="reinstall its distribution"
        )
    if roots and not any(Path(place).resolve().is_relative_to(root) for place in places if place for root in roots):
        raise ShadowError(
            f"module {package} is {places[0] or places[-1]}, which is not the installed package",
            place=f"target {entry.name}",
            remedy="rename that file, or start Python with -P",
        )
    try:
        found: Target = entry.load()
    except (ImportError, AttributeError) as error:
        raise ShadowError(
            f"{entry.value} cannot be imported: {error}", place=f"target {entry.name}", remedy="reinstall it"
        ) from None
    return found


def _roots(distribution: Distribution | None) -> list[Path]:
    """Folders in which a distribution's modules may lie: site-packages, or its project if installed editable."""
    if distribution is None:
        return []
    roots = [Path(str(distribution.locate_file(""))).resolve()]
    direct = distribution.read_text("direct_url.json")
    if direct:
        url = json.loads(direct).get("url", "")
        if url.startswith("file://"):
            roots.append(Path(unquote(urlparse(url).path)).resolve())
    return roots
