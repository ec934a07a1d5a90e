"""Building a circuit element by element, or column by column.

The builder is the one mutable value of the package: compilers and users fill it, :meth:`CircuitBuilder.build`
freezes it into a :class:`analog.circuit.Circuit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from analog.circuit import _KINDS, ORIGIN, Circuit, origins
from analog.devices.diode import DiodeModel
from deploy.arrays import Array
from deploy.errors import InputError

__all__ = ["CircuitBuilder"]


class CircuitBuilder:
    """Collects nodes and elements. Terminals are the indices that :meth:`node` and :meth:`nodes` give.

    Every method that adds elements broadcasts its arguments, so one call may add one element or a column of
    them; `origin` is what :func:`analog.circuit.origins` makes (default: "given").
    """

    def __init__(self, title: str = "circuit") -> None:
        self._title = title
        self._names: list[str] = ["0"]
        self._node_origins: list[Array] = [origins("given", 1)]
        self._parts: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
        self._models: list[DiodeModel] = []

    def node(self, name: str, origin: Array | None = None) -> int:
        """Add one node; gives its index."""
        return int(self.nodes([name], origin)[0])

    def nodes(self, names: Sequence[str], origin: Array | None = None) -> Array:
        """Add nodes; gives their indices (len(names),)."""
        first = len(self._names)
        self._names.extend(names)
        self._node_origins.append(origins("given", len(names)) if origin is None else origin)
        return np.arange(first, first + len(names))

    def model(self, model: DiodeModel) -> int:
        """Register a diode model once; gives its index."""
        if model not in self._models:
            self._models.append(model)
        return self._models.index(model)

    def resistor(self, a: npt.ArrayLike, b: npt.ArrayLike, ohm: npt.ArrayLike, origin: Array | None = None) -> None:
        """Add resistors."""
        self._add("resistors", origin, a=a, b=b, ohm=ohm)

    def diode(
        self, anode: npt.ArrayLike, cathode: npt.ArrayLike, model: DiodeModel, origin: Array | None = None
    ) -> None:
        """Add diodes of one model."""
        self._add("diodes", origin, anode=anode, cathode=cathode, model=self.model(model))

    def voltage_source(
        self,
        plus: npt.ArrayLike,
        minus: npt.ArrayLike,
        volts: npt.ArrayLike,
        *,
        input: npt.ArrayLike = -1,
        per_unit: npt.ArrayLike = 0.0,
        origin: Array | None = None,
    ) -> None:
        """Add voltage sources of volts + per_unit * x[input]."""
        self._add("voltage_sources", origin, plus=plus, minus=minus, value=volts, input=input, per_unit=per_unit)

    def current_source(
        self,
        plus: npt.ArrayLike,
        minus: npt.ArrayLike,
        amps: npt.ArrayLike,
        *,
        input: npt.ArrayLike = -1,
        per_unit: npt.ArrayLike = 0.0,
        origin: Array | None = None,
    ) -> None:
        """Add current sources; amps + per_unit * x[input] flows from plus through the source to minus."""
        self._add("current_sources", origin, plus=plus, minus=minus, value=amps, input=input, per_unit=per_unit)

    def vcvs(
        self,
        plus: npt.ArrayLike,
        minus: npt.ArrayLike,
        control_plus: npt.ArrayLike,
        control_minus: npt.ArrayLike,
        gain: npt.ArrayLike,
        origin: Array | None = None,
    ) -> None:
        """Add voltage-controlled voltage sources."""
        controls = {"control_plus": control_plus, "control_minus": control_minus}
        self._add("vcvs", origin, plus=plus, minus=minus, gain=gain, **controls)

    def vccs(
        self,
        plus: npt.ArrayLike,
        minus: npt.ArrayLike,
        control_plus: npt.ArrayLike,
        control_minus: npt.ArrayLike,
        siemens: npt.ArrayLike,
        origin: Array | None = None,
    ) -> None:
        """Add voltage-controlled current sources."""
        controls = {"control_plus": control_plus, "control_minus": control_minus}
        self._add("vccs", origin, plus=plus, minus=minus, siemens=siemens, **controls)

    def gyrator(
        self,
        a_plus: npt.ArrayLike,
        a_minus: npt.ArrayLike,
        b_plus: npt.ArrayLike,
        b_minus: npt.ArrayLike,
        siemens: npt.ArrayLike,
        origin: Array | None = None,
    ) -> None:
        """Add ideal gyrators."""
        ports = {"a_plus": a_plus, "a_minus": a_minus, "b_plus": b_plus, "b_minus": b_minus}
        self._add("gyrators", origin, siemens=siemens, **ports)

    def op_amp(
        self,
        out: npt.ArrayLike,
        plus: npt.ArrayLike,
        minus: npt.ArrayLike,
        *,
        gain: npt.ArrayLike,
        low: npt.ArrayLike,
        high: npt.ArrayLike,
        offset: npt.ArrayLike = 0.0,
        origin: Array | None = None,
    ) -> None:
        """Add op-amps with saturating outputs."""
        self._add("op_amps", origin, out=out, plus=plus, minus=minus, gain=gain, offset=offset, low=low, high=high)

    def _add(self, kind: str, origin: Array | None, **columns: npt.ArrayLike) -> None:
        arrays = [np.atleast_1d(column) for column in columns.values()]
        (count,) = np.broadcast_shapes(*(array.shape for array in arrays))
        records = origins("given", count) if origin is None else np.asarray(origin, dtype=ORIGIN)
        if len(records) != count:
            raise InputError(f"{len(records)} origins for {count} {kind}")
        spread = {name: np.broadcast_to(array, count) for name, array in zip(columns, arrays, strict=True)}
        self._parts[kind].append(_KINDS[kind](origin=records, **spread))

    def build(
        self,
        *,
        outputs: npt.ArrayLike = (),
        n_in: int = 0,
        volts_per_unit: npt.ArrayLike = 1.0,
        volts_offset: npt.ArrayLike = 0.0,
    ) -> Circuit:
        """Freeze; raises :class:`deploy.errors.InputError` where the circuit does not hang together."""
        tables = {kind: _KINDS[kind].join(parts) for kind, parts in self._parts.items()}
        return Circuit(
            node_names=tuple(self._names),
            node_origins=np.concatenate(self._node_origins),
            models=tuple(self._models),
            n_in=n_in,
            outputs=np.asarray(outputs, dtype=np.int64).reshape(-1),
            output_volts_per_unit=np.asarray(volts_per_unit),
            output_volts_offset=np.asarray(volts_offset),
            title=self._title,
            **tables,
        )
