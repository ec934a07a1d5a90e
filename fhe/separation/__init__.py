"""Decision-aware separation: polynomials in place of ReLU that keep the decisions of the network."""

from fhe.separation.separate import Problem, Separation, separate

__all__ = ["Problem", "Separation", "separate"]
