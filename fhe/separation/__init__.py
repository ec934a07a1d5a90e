"""Decision-aware separation: polynomials in place of ReLU that keep the decisions of the network."""

from fhe.separation.problem import LastLayer, Problem
from fhe.separation.separate import Separation, separate

__all__ = ["LastLayer", "Problem", "Separation", "separate"]
