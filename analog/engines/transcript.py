"""What ngspice says, read: notes that are only notes, and the causes of failures in people's words.

ngspice's return codes cannot be trusted: ``op`` returns 0 after "simulation(s) aborted", and the program exits
with 1 after a run that succeeded. Its messages, together with the presence of data, can. Gmin stepping, source
stepping and the transient rescue are ways to find an operating point, so their messages are notes wherever data
came out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

__all__ = ["Complaint", "complaints", "explain", "notes"]


@dataclass(frozen=True, slots=True)
class Complaint:
    """A message that always means failure: its cause, and what to do about it."""

    cause: str
    remedy: str


_Build = Callable[[re.Match[str]], Complaint]

_FATAL: tuple[tuple[re.Pattern[str], _Build], ...] = (
    (
        re.compile(r"can't find model '(?P<word>[-+]?(?:inf|nan)\w*)' from line"),
        lambda m: Complaint(f"a value of the netlist is {m['word']}", "every value must be a finite number"),
    ),
    (
        re.compile(r"device already exists, existing one being used"),
        lambda m: Complaint("two elements have one name", "names must differ by more than upper and lower case"),
    ),
    (
        re.compile(r"unknown subckt: (?P<line>.*)"),
        lambda m: Complaint(f"a subcircuit is not defined, at: {m['line']}", "add its .subckt … .ends"),
    ),
    (
        re.compile(r"(?:could not find a valid modelname|unable to find definition of model (?P<model>\S*))"),
        lambda m: Complaint("a model is not defined", "add its .model line"),
    ),
    (
        re.compile(r"model type mismatch in line"),
        lambda m: Complaint(
            "a model has the wrong type for its element",
            "sidiode models need an A element; use a D model with n=1e-4",
        ),
    ),
    (
        re.compile(r"[Tt]imestep too small|iteration limit|[Nn]o convergence in"),
        lambda m: Complaint(
            "no convergence: iteration, gmin stepping and source stepping all failed",
            "use a diode with a larger emission coefficient, less op-amp gain, or the native engine",
        ),
    ),
    (
        re.compile(r"circuit not parsed|[Nn]o circuits? loaded|there aren't any circuits loaded"),
        lambda m: Complaint("ngspice did not accept the netlist", "see the lines above it in the transcript"),
    ),
    (
        re.compile(r"simulation\(s\) aborted|simulation interrupted due to error", re.IGNORECASE),
        lambda m: Complaint("ngspice gave the simulation up", "see its transcript"),
    ),
    (
        re.compile(r"^Error on line|^Error:(?! vector \S+ not found)|^Fatal error|ERROR: "),
        lambda m: Complaint(m.string.strip(), "see ngspice's transcript"),
    ),
)

_SINGULAR = re.compile(r"singular matrix:\s+check node (?P<node>\S+)")
_NOTE = re.compile(
    r"Starting (?P<what>(?:dynamic |true )?(?:gmin|source) stepping)|(?P<rescue>Transient op finished successfully)"
    r"|Warning: (?P<warning>.*)"
)


def complaints(lines: Iterable[str]) -> tuple[Complaint, ...]:
    """Find the messages that mean failure, each cause once, in the order of their weight.

    >>> complaints(["Note: Starting dynamic gmin stepping", "Note: Dynamic gmin stepping completed"])
    ()
    >>> complaints(["op simulation(s) aborted"])[0].cause
    'ngspice gave the simulation up'
    """
    lines = tuple(lines)
    found: dict[str, Complaint] = {}
    for pattern, build in _FATAL:
        for line in lines:
            match = pattern.search(line)
            if match:
                complaint = build(match)
                found.setdefault(complaint.cause, complaint)
    return tuple(found.values())


def explain(lines: Iterable[str]) -> Complaint:
    """Name the likeliest cause of a simulation that gave no data.

    >>> explain(["Warning: singular matrix:  check node b", "op simulation(s) aborted"]).cause
    'node b has no path of its own to ground (singular matrix)'
    >>> explain(["Warning: singular matrix:  check node v1#branch", "op simulation(s) aborted"]).cause
    'v1 closes a loop of voltage sources (singular matrix)'
    """
    lines = tuple(lines)
    singular = [match["node"] for match in map(_SINGULAR.search, lines) if match]
    if singular:
        node = singular[0]
        if node.endswith("#branch"):
            source = node.removesuffix("#branch")
            return Complaint(
                f"{source} closes a loop of voltage sources (singular matrix)", "put a resistor into the loop"
            )
        return Complaint(
            f"node {node} has no path of its own to ground (singular matrix)", "give it a resistor to ground"
        )
    found = complaints(lines)
    if found:
        return found[0]
    return Complaint("ngspice gave no data and no reason", "run the netlist with `ngspice -b` and read its output")


def notes(lines: Iterable[str]) -> tuple[str, ...]:
    """Keep what is worth knowing of a run that succeeded, each sentence once.

    >>> notes(["Note: Starting dynamic gmin stepping", "Trying gmin = 1E-3 Note: One successful gmin step"])
    ('ngspice needed dynamic gmin stepping',)
    """
    found: dict[str, None] = {}
    for line in lines:
        for match in _NOTE.finditer(line):
            if match["what"]:
                found.setdefault(f"ngspice needed {match['what']}")
            elif match["rescue"]:
                found.setdefault("ngspice found the operating point by its transient rescue, at transient accuracy")
            elif not _is_stepping(match["warning"]):
                found.setdefault(f"ngspice warns: {match['warning'].strip()}")
    return tuple(found)


def _is_stepping(warning: str) -> bool:
    return bool(re.search(r"gmin|source step|spinit|initialization file", warning))
