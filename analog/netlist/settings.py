"""What a netlist tells the simulator besides the circuit."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Temperature and tolerances of a simulation, as SPICE names them.

    Newton's last step overshoots its tolerance by far: these defaults leave 1e-14 V on our circuits from -40 to
    125 degrees. SPICE's own (reltol 1e-3, vntol 1e-6 V) leave 1e-9 V, and 3e-10 V at near-ideal diodes even with
    reltol 1e-7, where vntol decides.

    Parameters
    ----------
    celsius : ambient temperature of every device.
    reltol, abstol_A, vntol_V : ngspice's convergence tolerances.
    gmin_S : conductance across every junction; it is part of the diode's law.
    itl1 : Newton iterations for an operating point.
    """

    celsius: float = 27.0
    reltol: float = 1e-7
    abstol_A: float = 1e-15
    vntol_V: float = 1e-9
    gmin_S: float = 1e-12
    itl1: int = 200

    def cards(self) -> tuple[str, ...]:
        """The lines of the netlist."""
        return (
            f".options reltol={self.reltol!r} abstol={self.abstol_A!r} vntol={self.vntol_V!r} gmin={self.gmin_S!r} "
            f"itl1={self.itl1}",
            f".temp {self.celsius!r}",
        )
