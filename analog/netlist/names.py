"""Names that SPICE takes: lower case, letters, digits and underscores, each different from every other.

SPICE does not tell upper from lower case, takes "gnd" for ground and reads punctuation as syntax, so "Out" and
"out", or "x.1/weight", would short or split nodes in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["legal_name", "legal_names", "unique_names"]

_RESERVED = frozenset({"0", "gnd", "all", "time", "temp", "temper", "hertz", "frequency", "sweep_row"})
_ILLEGAL = re.compile(r"[^a-z0-9_]+")


def legal_name(name: str) -> str:
    """Spell one name legally; two different names may come out equal.

    >>> legal_name("x.1/weight"), legal_name("x3-"), legal_name("gnd"), legal_name("É")
    ('x_1_weight', 'x3_n', 'n_gnd', 'n')
    """
    name = name.lower()
    if name.endswith(("+", "-")):
        name = name[:-1] + ("_p" if name.endswith("+") else "_n")
    spelled = _ILLEGAL.sub("_", name).strip("_")
    if not spelled:
        return "n"
    return f"n_{spelled}" if spelled in _RESERVED else spelled


def unique_names(names: Iterable[str], taken: Iterable[str] = ()) -> tuple[str, ...]:
    """Append _2, _3, … to names that were there before.

    >>> unique_names(["a", "b", "a", "a_2", "a"])
    ('a', 'b', 'a_2', 'a_2_2', 'a_3')
    """
    names = list(names)
    used = set(taken)
    if not used and len(set(names)) == len(names):
        return tuple(names)
    counts: dict[str, int] = {}
    found = []
    for name in names:
        candidate, count = name, counts.get(name, 1)
        while candidate in used:
            count += 1
            candidate = f"{name}_{count}"
        counts[name] = count
        used.add(candidate)
        found.append(candidate)
    return tuple(found)


def legal_names(names: Sequence[str]) -> tuple[str, ...]:
    """Spell node names legally and uniquely; "0" in first place stays ground.

    >>> legal_names(["0", "Out", "out", "C_bias", "x.1/weight"])
    ('0', 'out', 'out_2', 'c_bias', 'x_1_weight')
    """
    if names and names[0] == "0":
        return ("0", *unique_names([legal_name(name) for name in names[1:]], taken=("0",)))
    return unique_names([legal_name(name) for name in names])
