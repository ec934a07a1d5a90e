"""Choices that are made on calibration rows: gains, rails, weights that make up for real diodes."""

from analog.calibration.cascade import calibrate_cascade
from analog.calibration.gains import ScaledNetwork, scale_network

__all__ = ["ScaledNetwork", "calibrate_cascade", "scale_network"]
