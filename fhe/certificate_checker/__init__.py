"""Checks separability certificates from scratch: the model, the rows, the file, and no line of the solver's code.

Two claims can be checked. *Feasible*: the polynomials in the file keep the decision of every row, each with at least
the stated margin. *Infeasible*: no polynomials of the stated family and degree do, because a non-negative combination
of the constraints is zero (Gordan). Floating point is used with a proved bound of its error; what it cannot settle
is computed in exact integers.
"""

from fhe.certificate_checker.check import Checked, check_certificate

__all__ = ["Checked", "check_certificate"]
