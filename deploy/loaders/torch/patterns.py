"""Activations that exporters take apart, put together again before the lowering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from deploy.loaders.torch.program import Call, Program, Reference

__all__ = ["join_activations"]


def join_activations(program: Program) -> Program:
    """``where(x > 0, x, slope * x)`` becomes ``prelu(x, slope)``."""
    makers = {name: call for call in program.calls for name in call.outputs}
    return replace(program, calls=[_prelu(call, makers) or call for call in program.calls])


def _prelu(call: Call, makers: Mapping[str, Call]) -> Call | None:
    if call.op != "where":
        return None
    condition, other = (_maker(call.arguments.get(name), makers) for name in ("condition", "other"))
    source = call.arguments.get("self")
    if condition is None or other is None or condition.op not in ("gt", "ge") or other.op != "mul":
        return None
    factors = list(other.arguments.values())
    if condition.arguments.get("self") != source or condition.arguments.get("other") != 0 or source not in factors:
        return None
    slope = _other_factor(factors, source)
    return None if slope is None else Call("prelu", {"self": source, "weight": slope}, call.outputs)


def _maker(value: object, makers: Mapping[str, Call]) -> Call | None:
    return makers.get(value.name) if isinstance(value, Reference) else None


def _other_factor(factors: Sequence[object], source: object) -> object | None:
    rest = [factor for factor in factors if factor != source]
    return rest[0] if len(factors) == 2 and len(rest) == 1 else None
