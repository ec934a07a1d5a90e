"""ngspice's raw files: results of ``ngspice -b -r``, text headers followed by binary doubles.

Axes: ``points``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from deploy.arrays import Array
from deploy.errors import InputError

__all__ = ["Plot", "read_rawfile"]


@dataclass(frozen=True, slots=True)
class Plot:
    """One analysis: its name ("Operating Point", "Transient Analysis", …) and vectors (points,) by name.

    Node voltages stand under the node's own name, currents of sources as ``name#branch``, as the shared
    library names them.
    """

    name: str
    title: str
    vectors: Mapping[str, Array]


def read_rawfile(data: bytes) -> tuple[Plot, ...]:
    """Read every plot of a raw file. An analysis that was given up leaves a header without values; it is left out.

    Raises
    ------
    InputError : the bytes are no raw file, or fewer values are there than its header says.
    """
    plots = []
    at = 0
    while data[at:].strip():
        if data.startswith(b"Title:", at) and data.find(b"Binary:\n", at) < 0:
            break
        plot, at = _read_plot(data, at)
        plots.append(plot)
    return tuple(plots)


def _read_plot(data: bytes, start: int) -> tuple[Plot, int]:
    end = data.find(b"Binary:\n", start)
    if end < 0:
        raise InputError(
            "no binary section: this is no raw file of ngspice", remedy="write it with `ngspice -b -r`"
        )
    header = data[start:end].decode("utf-8", "replace").splitlines()
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in header)}
    try:
        variables, points = int(fields["No. Variables"]), int(fields["No. Points"])
        first = next(i for i, line in enumerate(header) if line.startswith("Variables:")) + 1
        names = [header[first + k].split()[1] for k in range(variables)]
    except (KeyError, ValueError, StopIteration, IndexError):
        raise InputError("the raw file's header is damaged") from None
    kind = np.dtype("<c16") if "complex" in fields.get("Flags", "") else np.dtype("<f8")
    first_byte = end + len(b"Binary:\n")
    size = variables * points * kind.itemsize
    if len(data) - first_byte < size:
        raise InputError(f"the raw file holds {len(data) - first_byte} bytes of values, its header says {size}")
    values = np.frombuffer(data, kind, variables * points, first_byte).reshape(points, variables)
    vectors = {_plain(name): values[:, k].copy() for k, name in enumerate(names)}
    return Plot(fields.get("Plotname", ""), fields.get("Title", ""), vectors), first_byte + size


def _plain(name: str) -> str:
    """``v(out)`` -> ``out``, ``i(v1)`` -> ``v1#branch``."""
    if name.startswith("v(") and name.endswith(")"):
        return name[2:-1]
    if name.startswith("i(") and name.endswith(")") and "#" not in name:
        return f"{name[2:-1]}#branch"
    return name
