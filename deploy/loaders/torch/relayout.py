"""ATen operators that move entries or leave them alone, and those on shapes and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders.relayout import one_row
from deploy.loaders.relayout import relayout as relayout_moved
from deploy.loaders.torch.table import (
    OPERATORS,
    TAIL_OPERATORS,
    Arguments,
    Context,
    Lower,
    Value,
    operator,
    signal_at,
)
from deploy.loaders.weights import check_size

__all__: list[str] = []


def relayout(value: Value, change: Callable[[Array], Array]) -> Value:
    """A relayout of a constant, or of a value that depends on the input."""
    return change(value) if isinstance(value, np.ndarray) else relayout_moved(value, change)


@operator("alias", "contiguous", "clone", "detach", "lift_fresh_copy", "lift_fresh", "to", "_to_copy", "type_as")
@operator("float", "double", "half", "bfloat16", "requires_grad", "identity")
def _same(context: Context, arguments: Arguments) -> Value:
    return arguments.get("self", arguments.get("input"))


TAIL_OPERATORS.update({"alias", "contiguous", "clone", "detach", "to", "_to_copy"})


@operator("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout")
def _dropout(context: Context, arguments: Arguments) -> Value:
    if arguments.get("train"):
        raise LoadError(
            "Dropout in training mode makes the output random", remedy="call module.eval() before export"
        )
    context.chain.note(f"{context.label} was dropped: it does nothing at inference")
    return signal_at(arguments, "input", "self")


@operator("view", "reshape", "_unsafe_view", "view_copy", takes_tail=True)
def _reshape(context: Context, arguments: Arguments) -> Value:
    shape = [int(length) for length in arguments.get("size", arguments.get("shape", ()))]
    return relayout(arguments["self"], lambda a: a.reshape(one_row(shape, a.size, context.batch)))


@operator("flatten", takes_tail=True)
def _flatten(context: Context, arguments: Arguments) -> Value:
    start, end = int(arguments.get("start_dim", 0)), int(arguments.get("end_dim", -1))

    def change(a: Array) -> Array:
        first, last = start % a.ndim, end % a.ndim
        return a.reshape(*a.shape[:first], math.prod(a.shape[first : last + 1]), *a.shape[last + 1 :])

    return relayout(arguments["self"], change)


@operator("squeeze", takes_tail=True)
def _squeeze(context: Context, arguments: Arguments) -> Value:
    dims = arguments.get("dim")
    axes = None if dims is None else [int(axis) for axis in (dims if isinstance(dims, list) else [dims])]

    def change(a: Array) -> Array:
        gone = [axis % a.ndim for axis in axes] if axes is not None else list(range(a.ndim))
        return np.squeeze(a, tuple(axis for axis in gone if a.shape[axis] == 1))

    return relayout(arguments["self"], change)


@operator("unsqueeze", takes_tail=True)
def _unsqueeze(context: Context, arguments: Arguments) -> Value:
    return relayout(arguments["self"], lambda a: np.expand_dims(a, int(arguments["dim"])))


@operator("permute")
def _permute(context: Context, arguments: Arguments) -> Value:
    return relayout(arguments["self"], lambda a: np.transpose(a, [int(axis) for axis in arguments["dims"]]))


@operator("transpose")
def _transpose(context: Context, arguments: Arguments) -> Value:
    return relayout(arguments["self"], lambda a: np.swapaxes(a, int(arguments["dim0"]), int(arguments["dim1"])))


@operator("t", "numpy_T")
def _t(context: Context, arguments: Arguments) -> Value:
    return relayout(arguments["self"], np.transpose)


@operator("size", "sym_size", takes_tail=True)
def _size(context: Context, arguments: Arguments) -> Value:
    shape = list(arguments["self"].shape)
    return shape if arguments.get("dim") is None else shape[int(arguments["dim"])]


@operator("ListConstruct", "TupleConstruct", takes_tail=True)
def _list(context: Context, arguments: Arguments) -> Value:
    return (list(arguments.values()),)


@operator("getitem", takes_tail=True)
def _getitem(context: Context, arguments: Arguments) -> Value:
    source, index = arguments.values()
    if int(index) != 0:
        raise LoadError(f"result {index} of an operator; supported is the first")
    return source


@operator("NumToTensor", "Int", "ScalarImplicit", "item", "detach_int")
def _number(context: Context, arguments: Arguments) -> Value:
    return next(iter(arguments.values()))


@operator("dim", takes_tail=True)
def _rank(context: Context, arguments: Arguments) -> Value:
    return len(arguments["self"].shape)


@operator("len")
def _length(context: Context, arguments: Arguments) -> Value:
    return len(next(iter(arguments.values())))


@operator("__getitem__")
def _item(context: Context, arguments: Arguments) -> Value:
    items, index = arguments.values()
    return items[int(index)]


def _compare(choose: Callable[[Any, Any], bool]) -> Lower:
    def lower(context: Context, arguments: Arguments) -> Value:
        first, second = arguments.values()
        if not all(isinstance(value, int | float | str | None) for value in (first, second)):
            raise LoadError("compares values that depend on the network's input")
        return choose(first, second)

    return lower


for _name, _choose in {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "__and__": lambda a, b: a and b,
    "__or__": lambda a, b: a or b,
    "__is__": lambda a, b: a is b,
    "__isnot__": lambda a, b: a is not b,
}.items():
    OPERATORS[_name] = _compare(_choose)


@operator("__not__")
def _not(context: Context, arguments: Arguments) -> Value:
    return not next(iter(arguments.values()))


@operator("zeros", "ones", "full", "zeros_like", "ones_like", "scalar_tensor")
def _filled(context: Context, arguments: Arguments) -> Value:
    like = arguments.get("self")
    size = list(like.shape) if like is not None else [int(n) for n in arguments.get("size", ())]
    check_size(math.prod(size), context.chain.limit, "the constant")
    default = 1.0 if context.op.startswith("ones") else 0.0
    return np.full(size, float(arguments.get("fill_value", arguments.get("s", default))))


@operator("slice")
def _slice(context: Context, arguments: Arguments) -> Value:
    axis, step = int(arguments.get("dim", 0)), int(arguments.get("step", 1))
    start, end = arguments.get("start"), arguments.get("end")

    def change(a: Array) -> Array:
        return a[(slice(None),) * (axis % a.ndim) + (slice(start, end, step),)]

    return relayout(arguments["self"], change)
