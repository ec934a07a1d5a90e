"""Choices that are made on calibration rows: gains, rails, weights that make up for real diodes."""

from analog.calibration.cascade import calibrate_cascade
from analog.calibration.equilibrium import calibrate_equilibrium
from analog.calibration.gains import ScaledNetwork, scale_network

__all__ = ["ScaledNetwork", "calibrate_cascade", "calibrate_equilibrium", "scale_network"]
