"""From a traced PyTorch program to layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders.batch import Plan, farthest, plan_rows, row_shape
from deploy.loaders.chain import Chain
from deploy.loaders.result import Loaded, Settings
from deploy.loaders.signal import Signal
from deploy.loaders.tails import Tailed, close_tail, mid_network
from deploy.loaders.torch import activations, affine, endings, relayout
from deploy.loaders.torch.patterns import join_activations
from deploy.loaders.torch.program import Call, Program, Reference
from deploy.loaders.torch.table import OPERATORS, TAIL_OPERATORS, Context, Value

__all__ = ["lower_program"]

_TABLES = (activations, affine, endings, relayout)
"""The modules that fill the table of operators when they are imported."""


def lower_program(program: Program, settings: Settings) -> Loaded:
    """Build the layers of a program, or raise :class:`LoadError` naming the node."""
    program = join_activations(program)
    if settings.input_shape is not None:
        plans = [Plan((1, *settings.input_shape), 0)]
    else:
        plans = plan_rows(program.input, program.input_dims, _first_width(program))
    refusals: list[tuple[int, LoadError]] = []
    for plan in plans:
        chain = Chain(limit=settings.max_parameters)
        values: dict[str, Any] = {**program.constants, program.input: chain.input(plan.shape)}
        try:
            return _lower(program, Context(chain, plan.batch), plan, values)
        except LoadError as error:
            refusals.append((len(values), error))
    raise farthest(refusals)


def _first_width(program: Program) -> int | None:
    """How many values the first weight takes."""
    for call in program.calls:
        for key, axis in (("weight", 1), ("mat2", 0), ("other", 0)):
            argument = call.arguments.get(key)
            weight = program.constants.get(argument.name) if isinstance(argument, Reference) else None
            if call.op in ("linear", "addmm", "mm", "matmul") and weight is not None and weight.ndim == 2:
                return int(weight.shape[axis])
        if "conv" in call.op:
            return None
    return None


def _lower(program: Program, context: Context, plan: Plan, values: dict[str, Any]) -> Loaded:
    chain = context.chain
    _run(context, _live(program), values)
    outputs: list[tuple[str, Signal | Tailed | Array]] = []
    for name in program.outputs:
        value = values.get(name)
        if not isinstance(value, Signal | Tailed | np.ndarray):
            raise LoadError(f"output {name} is no tensor")
        if plan.batch > 1 and not isinstance(value, np.ndarray) and value.shape[:1] != (1,):
            raise LoadError(f"output {name} mixes the {plan.batch} rows of a batch")
        outputs.append((name, value))
    ending = close_tail(outputs)
    chain.finish(ending.logits, program.outputs[0])
    if plan.batch > 1:
        chain.note(f"the file fixes the batch to {plan.batch:,}; the network works row by row")
    return Loaded(chain, ending, row_shape(plan.shape), notes=program.notes)


def _run(context: Context, calls: Sequence[Call], values: dict[str, Any]) -> None:
    """Lower calls in order, entering their results into `values`."""
    for call in calls:
        try:
            results = _choose(context, call, values) if call.op == "If" else _evaluate(context, call, values)
        except LoadError as error:
            raise error if error.place.startswith("node ") else error.at(call.label) from None
        for name, value in zip(call.outputs, results, strict=False):
            values[name] = value


def _choose(context: Context, call: Call, values: dict[str, Any]) -> tuple[Value, ...]:
    """Follow the branch of a condition on ranks and sizes, which are known."""
    (condition,) = (_resolve(value, values) for value in call.arguments.values())
    if not isinstance(condition, bool):
        raise LoadError("branches on a value that depends on the input", remedy="trace the module")
    calls, results = call.branches[0 if condition else 1]
    _run(context, calls, values)
    return tuple(_resolve(result, values) for result in results)


def _live(program: Program) -> list[Call]:
    """The calls that the outputs depend on, in order."""
    needed = set(program.outputs)
    live: list[Call] = []
    for call in reversed(program.calls):
        if needed.intersection(call.outputs):
            live.append(call)
            needed.update(_needs(call))
    return live[::-1]


def _needs(call: Call) -> set[str]:
    """Names of the values that a call and its branches read."""
    names = {reference.name for reference in _references(list(call.arguments.values()))}
    for calls, results in call.branches:
        names.update(result.name for result in results)
        for inner in calls:
            names.update(_needs(inner))
    return names


def _references(value: object) -> list[Reference]:
    if isinstance(value, Reference):
        return [value]
    if isinstance(value, list | tuple):
        return [reference for item in value for reference in _references(item)]
    return []


def _evaluate(context: Context, call: Call, values: dict[str, Any]) -> tuple[Value, ...]:
    arguments = {name: _resolve(value, values) for name, value in call.arguments.items()}
    operator = OPERATORS.get(call.op)
    if operator is None:
        raise LoadError(
            f"{call.op} is not supported",
            remedy="supported are affine operators, relu, leaky_relu, prelu, clamp, abs, maximum and x*x",
        )
    if call.op not in TAIL_OPERATORS:
        tail = next((value for value in arguments.values() if isinstance(value, Tailed)), None)
        if tail is not None:
            raise mid_network(tail)
    context.label, context.op = call.label, call.op.rstrip("_")
    result = operator(context, arguments)
    return result if isinstance(result, tuple) else (result,)


def _resolve(value: object, values: dict[str, Any]) -> Any:
    if isinstance(value, Reference):
        if value.name not in values:
            raise LoadError(f"value {value.name} is made nowhere")
        return values[value.name]
    if isinstance(value, list | tuple):
        return [_resolve(item, values) for item in value]
    return value
