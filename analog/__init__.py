"""Resistor-diode circuits: compilers, native solver, netlists, SPICE engines, studies."""
