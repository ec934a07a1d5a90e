"""What a file does after the logits: probabilities, labels, dictionaries; stripped into the decision rule.

A :class:`Tailed` value is the logits under a function that ends the network. It may be passed on, relabelled and
split into columns; anything else that takes it is no ReLU network, and the error names the node that made it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders.signal import Signal
from deploy.model import Rule, Tail

__all__ = [
    "Ending",
    "Function",
    "Tailed",
    "close_tail",
    "decide",
    "end_network",
    "infer_rule",
    "mid_network",
    "name_classes",
    "span_one_group",
    "stripped_decision",
]

Function = Literal["none", "softmax", "log_softmax", "sigmoid", "complement", "sigmoid_pair"]
Label = str | int


@dataclass(frozen=True, slots=True, eq=False)
class Tailed:
    """A value behind the logits.

    Parameters
    ----------
    logits : what it was computed from.
    function : how; "complement" is 1 - sigmoid, "sigmoid_pair" is [1 - sigmoid, sigmoid].
    columns : flat indices of the entries that are left, in the value's shape.
    made_by : node that ended the network, for errors.
    rule : the value is the label that this rule gives, not a number.
    classes : names of the classes, where the file has them.
    """

    logits: Signal
    function: Function
    columns: Array
    made_by: str
    rule: Rule | None = None
    classes: tuple[Label, ...] | None = None

    @property
    def n_values(self) -> int:
        """Number of entries of the whole value, before columns were taken."""
        return 2 if self.function == "sigmoid_pair" else self.logits.size

    def selected(self, rows: Array) -> Tailed:
        """Entries by flat index, in the shape of `rows`."""
        return replace(self, columns=self.columns.ravel()[rows.ravel()].reshape(rows.shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value for one row."""
        return tuple(int(length) for length in self.columns.shape)

    def indices(self) -> Array:
        """Flat index of each entry, in the value's shape."""
        return np.arange(self.columns.size).reshape(self.columns.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """The logits, the tail that :meth:`Mlp.outputs` re-applies, the rule (None: to be inferred) and the classes."""

    logits: Signal
    tail: Tail
    rule: Rule | None
    classes: tuple[Label, ...] | None


def end_network(signal: Signal, function: Function, label: str) -> Tailed:
    """The value behind the logits `signal` under `function`."""
    return Tailed(signal, function, signal.indices(), label)


def decide(value: Signal | Tailed, rule: Rule, shape: tuple[int, ...], label: str) -> Tailed:
    """The class that `rule` picks, as a value of one entry in `shape`."""
    columns = np.zeros(shape, dtype=np.int64)
    if isinstance(value, Signal):
        return Tailed(value, "none", columns, label, rule)
    if value.rule is not None or value.columns.size != value.n_values:
        raise LoadError(f"a decision on a part of the result of {value.made_by}")
    return Tailed(value.logits, value.function, columns, label, rule, value.classes)


def stripped_decision(label: str) -> str:
    """What is said of a node that decides; the rule itself is known at the end (argmax of a sigmoid pair is a sign)."""
    return f"{label} was stripped; the network's own decision gives its labels"


def name_classes(value: Tailed, names: Sequence[object]) -> Tailed:
    """The same value, with names for its classes."""
    plain = tuple(
        name.decode() if isinstance(name, bytes) else int(name) if isinstance(name, int | float) else str(name)
        for name in names
    )
    return replace(value, classes=plain)


def span_one_group(value: Signal | Tailed, axis: int) -> None:
    """Raise :class:`LoadError` where `axis` does not hold all entries of a row."""
    rank = len(value.shape)
    if not -rank <= axis < rank:
        raise LoadError(f"axis {axis} of shape {list(value.shape)}")
    if value.shape[axis] != math.prod(value.shape):
        raise LoadError(f"over axis {axis} of shape {list(value.shape)}: several groups a row")


def mid_network(value: Tailed) -> LoadError:
    """Why nothing may follow a tail."""
    what = "a label" if value.rule is not None else value.function
    return LoadError(
        f"takes the result of {value.made_by}: {what} in the middle of a network is not a ReLU",
        remedy="supported between layers: Relu, LeakyRelu, PRelu, Clip, Abs, Max, Min, x*x",
    )


def close_tail(outputs: Sequence[tuple[str, Signal | Tailed | Array]]) -> Ending:
    """Find the one result among a graph's outputs.

    Raises
    ------
    LoadError : no output depends on the input, or two outputs say different things.
    """
    values = [(name, value) for name, value in outputs if isinstance(value, Signal | Tailed)]
    if not values:
        raise LoadError(f"output {outputs[0][0]} does not depend on the input")
    labels = [(name, value) for name, value in values if isinstance(value, Tailed) and value.rule]
    numbers = [(name, value) for name, value in values if not (isinstance(value, Tailed) and value.rule)]
    first = (numbers or labels)[0]
    logits, function = _origin(first[1])
    for name, value in values:
        theirs, other = _origin(value)
        is_label = isinstance(value, Tailed) and value.rule is not None
        if not _same(logits, theirs) or (other != function and not is_label):
            raise LoadError(
                f"two outputs that matter, {first[0]} and {name}",
                remedy=f"keep one: onnx.utils.extract_model(file, new_file, [input], ['{first[0]}'])",
            )
    _check_columns(numbers)
    classes = next((v.classes for _, v in values if isinstance(v, Tailed) and v.classes is not None), None)
    rule = next((v.rule for _, v in labels if isinstance(v, Tailed)), None)
    return _ending(logits, function if numbers else "none", rule, classes)


def _origin(value: Signal | Tailed) -> tuple[Signal, Function]:
    return (value.logits, value.function) if isinstance(value, Tailed) else (value, "none")


def _same(one: Signal, other: Signal) -> bool:
    return (
        one.level == other.level
        and one.size == other.size
        and (one is other or (one.matrix is other.matrix and one.shift is other.shift))
    )


def _check_columns(numbers: Sequence[tuple[str, Signal | Tailed]]) -> None:
    """Several outputs are one where they are the columns of one value, in order."""
    tailed = [value for _, value in numbers if isinstance(value, Tailed)]
    names = ", ".join(name for name, _ in numbers)
    if not tailed:
        if len(numbers) > 1:
            raise LoadError(f"several outputs that matter: {names}", remedy="keep one of them")
        return
    columns = np.concatenate([value.columns.ravel() for value in tailed])
    if not np.array_equal(columns, np.arange(tailed[0].n_values)):
        if all(np.array_equal(value.columns.ravel(), np.arange(value.n_values)) for value in tailed):
            return
        raise LoadError(
            f"the outputs {names} are entries {columns.tolist()[:20]} of {tailed[0].n_values} that were computed",
            place=tailed[0].made_by,
            remedy="keep the whole result as the output",
        )


def _ending(logits: Signal, function: Function, rule: Rule | None, classes: tuple[Label, ...] | None) -> Ending:
    tail: Tail
    if function == "complement":
        raise LoadError("the output is 1 - sigmoid alone", remedy="keep the sigmoid as the output")
    if function == "sigmoid_pair":
        tail, rule = "sigmoid_pair", "sign"
    else:
        tail = function
    if logits.size == 1 and classes is not None and len(classes) == 2:
        rule = "sign"
    if rule == "argmax" and logits.size == 1:
        rule = "sign" if tail == "sigmoid" else None
    return Ending(logits, tail, rule, classes)


def infer_rule(n_out: int, tail: Tail) -> Rule:
    """argmax for several outputs, sign for one sigmoid, value for one number."""
    if n_out > 1:
        return "argmax"
    return "sign" if tail in ("sigmoid", "sigmoid_pair") else "value"
