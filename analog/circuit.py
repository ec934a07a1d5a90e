"""A circuit as data: nodes and columns of elements, in SI units, each knowing what it came from.

Elements are kept as columns (one array per terminal and value), because a layer of 784 x 128 weights is 100,352
resistors. Node 0 is ground, always named ``"0"``.

==================  ==================================================================================
:class:`Resistors`  i(a -> b) = (v_a - v_b) / ohm
:class:`Diodes`     anode, cathode, index into :attr:`Circuit.models`
:class:`Sources`    voltage: v_plus - v_minus = level; current: `level` flows from plus through the source to
                    minus (the SPICE direction). level = value + per_unit * x[input] where input >= 0
:class:`Vcvs`       v_plus - v_minus = gain * (v_control_plus - v_control_minus)
:class:`Vccs`       siemens * (v_control_plus - v_control_minus) flows from plus through the source to minus
:class:`Gyrators`   i(a_plus -> a_minus) = siemens * v_b,  i(b_plus -> b_minus) = -siemens * v_a; lossless
:class:`OpAmps`     v_out = middle + half * tanh(gain * (v_plus - v_minus + offset) / half), with middle and half
                    the centre and half the distance of the rails `low` and `high`; v_out is against ground
==================  ==================================================================================

Axes: ``nodes``, ``elements`` (of one kind).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from analog.devices.diode import DiodeModel
from deploy.arrays import Array
from deploy.errors import InputError

__all__ = [
    "GROUND",
    "ORIGIN",
    "ROLES",
    "Circuit",
    "Diodes",
    "Gyrators",
    "OpAmps",
    "Resistors",
    "Sources",
    "Vccs",
    "Vcvs",
    "describe_origin",
    "origins",
]

GROUND = 0
"""Index of the ground node."""

ROLES = (
    "given",
    "weight",
    "bias",
    "pad",
    "input",
    "bias rail",
    "clamp rail",
    "gain",
    "series",
    "load",
    "clamp",
    "rectifier",
    "op-amp",
    "positive rail",
    "negative rail",
    "sum",
    "amplified",
    "hidden",
    "mirror",
    "logit",
    "coupling",
    "leak",
    "transconductance",
    "gyrator",
    "injection",
)
"""What an element or node is for; "given" is a netlist made by hand."""

ORIGIN = np.dtype([("role", "i2"), ("layer", "i4"), ("unit", "i4"), ("source", "i4"), ("sign", "i1")])
"""Provenance: role (index into ROLES), layer, unit (row of the weight) and source (column); -1 where none; the
sign of the weight (0 where none)."""


def origins(
    role: str,
    count: int,
    *,
    layer: int = -1,
    unit: npt.ArrayLike = -1,
    source: npt.ArrayLike = -1,
    sign: npt.ArrayLike = 0,
) -> Array:
    """Make `count` provenance records; `unit`, `source` and `sign` broadcast.

    >>> describe_origin(origins("weight", 2, layer=0, unit=3, source=[1, 2], sign=-1)[1])
    'weight, layer 0, unit 3, source 2, negative'
    """
    records = np.empty(count, dtype=ORIGIN)
    records["role"] = ROLES.index(role)
    records["layer"], records["unit"], records["source"], records["sign"] = layer, unit, source, sign
    return records


def describe_origin(record: Any) -> str:
    """Say in words what one provenance record stands for."""
    words = [ROLES[int(record["role"])]]
    words += [f"{name} {int(record[name])}" for name in ("layer", "unit", "source") if record[name] >= 0]
    words += {0: [], 1: ["positive"], -1: ["negative"]}[int(record["sign"])]
    return ", ".join(words)


def _column(values: npt.ArrayLike, dtype: npt.DTypeLike) -> Array:
    column = np.atleast_1d(np.array(values, dtype=dtype))
    column.flags.writeable = False
    return column


@dataclass(frozen=True, eq=False)
class _Elements:
    """Columns of equal length; node columns are named in `terminals`."""

    terminals: ClassVar[tuple[str, ...]] = ()
    numbers: ClassVar[tuple[str, ...]] = ()
    indices: ClassVar[tuple[str, ...]] = ()

    origin: Array

    def __post_init__(self) -> None:
        kinds: dict[str, np.dtype[Any]] = {"origin": ORIGIN}
        kinds |= dict.fromkeys((*self.terminals, *self.indices), np.dtype(np.int64))
        kinds |= dict.fromkeys(self.numbers, np.dtype(np.float64))
        for column in fields(self):
            object.__setattr__(self, column.name, _column(getattr(self, column.name), kinds[column.name]))
        lengths = {column.name: len(getattr(self, column.name)) for column in fields(self)}
        if len(set(lengths.values())) > 1:
            raise InputError(f"columns of different length: {lengths}", place=type(self).__name__)

    def __len__(self) -> int:
        return len(self.origin)

    @classmethod
    def none(cls) -> Any:
        """No element of this kind."""
        columns: dict[str, Any] = {column.name: [] for column in fields(cls)}
        return cls(**columns)

    @classmethod
    def join(cls, parts: list[Any]) -> Any:
        """Concatenate several tables."""
        if not parts:
            return cls.none()
        names = [column.name for column in fields(cls)]
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})

    def with_(self, **columns: npt.ArrayLike) -> Any:
        """Copy with some columns replaced."""
        return replace(self, **columns)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Resistors(_Elements):
    """Resistors of `ohm` between nodes `a` and `b`."""

    terminals = ("a", "b")
    numbers = ("ohm",)

    a: Array
    b: Array
    ohm: Array


@dataclass(frozen=True, eq=False)
class Diodes(_Elements):
    """Diodes; `model` indexes :attr:`Circuit.models`."""

    terminals = ("anode", "cathode")
    indices = ("model",)

    anode: Array
    cathode: Array
    model: Array


@dataclass(frozen=True, eq=False)
class Sources(_Elements):
    """Independent sources, volts or amperes: level = value + per_unit * x[input] (input -1: constant)."""

    terminals = ("plus", "minus")
    numbers = ("value", "per_unit")
    indices = ("input",)

    plus: Array
    minus: Array
    value: Array
    input: Array
    per_unit: Array

    def levels(self, x: Array) -> Array:
        """Level of each source for rows x (batch, n_in): (batch, elements)."""
        levels = np.broadcast_to(self.value, (len(x), len(self))).copy()
        driven = np.flatnonzero(self.input >= 0)
        if driven.size:
            levels[:, driven] += np.asarray(x)[:, self.input[driven]] * self.per_unit[driven]
        return levels


@dataclass(frozen=True, eq=False)
class Vcvs(_Elements):
    """Voltage-controlled voltage sources (SPICE E)."""

    terminals = ("plus", "minus", "control_plus", "control_minus")
    numbers = ("gain",)

    plus: Array
    minus: Array
    control_plus: Array
    control_minus: Array
    gain: Array


@dataclass(frozen=True, eq=False)
class Vccs(_Elements):
    """Voltage-controlled current sources (SPICE G)."""

    terminals = ("plus", "minus", "control_plus", "control_minus")
    numbers = ("siemens",)

    plus: Array
    minus: Array
    control_plus: Array
    control_minus: Array
    siemens: Array


@dataclass(frozen=True, eq=False)
class Gyrators(_Elements):
    """Ideal gyrators; SPICE writes each as two G elements."""

    terminals = ("a_plus", "a_minus", "b_plus", "b_minus")
    numbers = ("siemens",)

    a_plus: Array
    a_minus: Array
    b_plus: Array
    b_minus: Array
    siemens: Array


@dataclass(frozen=True, eq=False)
class OpAmps(_Elements):
    """Op-amps with open-loop `gain`, input `offset` (V) and output rails `low`, `high` (V)."""

    terminals = ("out", "plus", "minus")
    numbers = ("gain", "offset", "low", "high")

    out: Array
    plus: Array
    minus: Array
    gain: Array
    offset: Array
    low: Array
    high: Array


_KINDS: Mapping[str, type[_Elements]] = {
    "resistors": Resistors,
    "diodes": Diodes,
    "voltage_sources": Sources,
    "current_sources": Sources,
    "vcvs": Vcvs,
    "vccs": Vccs,
    "gyrators": Gyrators,
    "op_amps": OpAmps,
}


@dataclass(frozen=True, eq=False)
class Circuit:
    """Nodes and elements, the inputs that drive it and the outputs that are read.

    Parameters
    ----------
    node_names : (nodes,) names in the author's words, unique; node_names[0] is "0"; a netlist writer makes them
        legal.
    node_origins : (nodes,) records of dtype ORIGIN.
    models : diode models that :attr:`Diodes.model` indexes.
    n_in : width of the rows x that drive it.
    outputs : (n_out,) node of each output.
    output_volts_per_unit, output_volts_offset : (n_out,) an output reads (v - offset) / per_unit, in model units.

    Raises
    ------
    InputError : a terminal, model or input that does not exist; a resistance that is not finite and non-zero;
        two voltage sources that fix one node.

    Examples
    --------
    >>> from analog.build import CircuitBuilder
    >>> wires = CircuitBuilder()
    >>> top, middle = wires.node("top"), wires.node("middle")
    >>> wires.voltage_source(top, GROUND, 10.0)
    >>> wires.resistor(top, middle, 9e3); wires.resistor(middle, GROUND, 1e3)
    >>> circuit = wires.build(outputs=[middle])
    >>> len(circuit.resistors), circuit.node_names
    (2, ('0', 'top', 'middle'))
    """

    node_names: tuple[str, ...]
    node_origins: Array
    resistors: Resistors
    diodes: Diodes
    voltage_sources: Sources
    current_sources: Sources
    vcvs: Vcvs
    vccs: Vccs
    gyrators: Gyrators
    op_amps: OpAmps
    models: tuple[DiodeModel, ...]
    n_in: int
    outputs: Array
    output_volts_per_unit: Array
    output_volts_offset: Array
    title: str = "circuit"

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", _column(self.outputs, np.int64))
        for name in ("output_volts_per_unit", "output_volts_offset"):
            column = np.broadcast_to(np.asarray(getattr(self, name), dtype=np.float64), self.outputs.shape)
            object.__setattr__(self, name, _column(column, np.float64))
        nodes = len(self.node_names)
        if self.node_names[0] != "0" or len(set(self.node_names)) != nodes or len(self.node_origins) != nodes:
            raise InputError("node 0 must be named '0', node names must be unique, one origin each")
        for kind in _KINDS:
            self._check_kind(kind, nodes)
        if self.outputs.size and not (self.outputs.min() >= 0 and self.outputs.max() < nodes):
            raise InputError("an output is read from a node that does not exist")
        values = self.resistors.ohm
        if not (np.isfinite(values).all() and (values != 0).all()):
            index = int(np.flatnonzero(~np.isfinite(values) | (values == 0))[0])
            raise InputError(
                f"a resistance of {values[index]} ohm ({describe_origin(self.resistors.origin[index])})",
                remedy="leave the element out, or join its nodes",
            )

    def _check_kind(self, kind: str, nodes: int) -> None:
        table = getattr(self, kind)
        for terminal in table.terminals:
            column = getattr(table, terminal)
            if column.size and not (column.min() >= 0 and column.max() < nodes):
                raise InputError(f"{kind}.{terminal} names a node that does not exist ({nodes} nodes)")
        if (
            kind == "diodes"
            and len(table)
            and not (table.model.min() >= 0 and table.model.max() < len(self.models))
        ):
            raise InputError(f"a diode's model does not exist ({len(self.models)} models)")
        if kind.endswith("sources") and len(table) and table.input.max() >= self.n_in:
            raise InputError(f"a source is driven by input {table.input.max()}, there are {self.n_in}")
        for number in table.numbers:
            if number != "ohm" and not np.isfinite(getattr(table, number)).all():
                raise InputError(f"{kind}.{number} holds a value that is not finite")

    @property
    def n_nodes(self) -> int:
        """Number of nodes, ground included."""
        return len(self.node_names)

    def tables(self) -> Mapping[str, _Elements]:
        """Every table of elements by its attribute's name."""
        return {kind: getattr(self, kind) for kind in _KINDS}

    def counts(self) -> Mapping[str, int]:
        """Number of elements of each kind, kinds without element left out."""
        return {kind: len(table) for kind, table in self.tables().items() if len(table)}

    @property
    def active_parts(self) -> int:
        """Parts that need a supply: controlled sources, op-amps, two transconductors for a gyrator."""
        return len(self.vcvs) + len(self.vccs) + len(self.op_amps) + 2 * len(self.gyrators)

    def read_outputs(self, volts: Array) -> Array:
        """Turn node voltages (batch, nodes) into outputs in the model's units (batch, n_out)."""
        return np.asarray((volts[..., self.outputs] - self.output_volts_offset) / self.output_volts_per_unit)

    def with_(self, **changes: Any) -> Circuit:
        """Copy with some fields replaced."""
        return replace(self, **changes)
