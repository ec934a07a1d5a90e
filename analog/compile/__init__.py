"""Compilers: from a network to a circuit that computes it."""

from analog.compile.cascade import CascadeDesign, CellLayer, compile_cascade
from analog.compile.cells import Cell, respond
from analog.compile.equilibrium import EquilibriumDesign, compile_equilibrium, dominant_scaling
from analog.compile.parts import Parts

__all__ = [
    "CascadeDesign",
    "Cell",
    "CellLayer",
    "EquilibriumDesign",
    "Parts",
    "compile_cascade",
    "compile_equilibrium",
    "dominant_scaling",
    "respond",
]
