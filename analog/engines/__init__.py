"""Engines that give the operating points of a circuit, all as one :class:`analog.solution.Solution`."""

from collections.abc import Mapping
from types import MappingProxyType

from analog.engines.locate import INSTALL, LIBRARY, PROGRAM
from analog.engines.native import NativeEngine
from analog.engines.ngspice import OperatingPointEngine, SweepEngine
from analog.engines.process import ProcessEngine, run_netlist
from analog.engines.protocol import CircuitEngine
from analog.engines.pyspice import PySpiceEngine, to_pyspice
from analog.engines.real import RealEngine

ENGINES: Mapping[str, type[CircuitEngine]] = MappingProxyType(
    {
        engine.name: engine
        for engine in (OperatingPointEngine, SweepEngine, ProcessEngine, PySpiceEngine, NativeEngine)
    }
)
"""Every engine by name; the first is the default of a real run."""

__all__ = [
    "ENGINES",
    "INSTALL",
    "LIBRARY",
    "PROGRAM",
    "CircuitEngine",
    "NativeEngine",
    "OperatingPointEngine",
    "ProcessEngine",
    "PySpiceEngine",
    "RealEngine",
    "SweepEngine",
    "run_netlist",
    "to_pyspice",
]
