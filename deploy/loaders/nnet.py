"""The .nnet text format of Stanford's ACAS Xu networks (github.com/sisl/NNet).

Comment lines, then comma-separated numbers: layers, inputs, outputs, largest width; the widths; a flag that is
not used; least and greatest value of each input; means and ranges of each input and, last, of the outputs; then for
each layer the rows of its weight and its biases, one a line. ReLU follows every layer but the last. Inputs are
normalised by mean and range, outputs scaled back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders import linear
from deploy.loaders.chain import Chain
from deploy.loaders.result import Loaded, Settings
from deploy.loaders.tails import close_tail
from deploy.loaders.weights import check_finite, check_size
from deploy.reading import read_bounded

__all__ = ["load_nnet"]

MAX_BYTES = 1 << 28
"""Largest file; the networks of ACAS Xu have 0.3 MB."""


def load_nnet(path: Path, settings: Settings) -> Loaded:
    """Read a .nnet file, with its normalisation folded in."""
    try:
        text = read_bounded(path, limit=MAX_BYTES, error=LoadError).decode()
    except UnicodeDecodeError as error:
        raise LoadError(f"not text ({error.reason} at byte {error.start})") from None
    lines = _lines(text)
    head = _integers(lines, "the sizes")
    widths = _integers(lines, "the widths")
    if (
        len(head) < 3
        or len(widths) != head[0] + 1
        or min(widths) < 1
        or (widths[0], widths[-1]) != (head[1], head[2])
    ):
        raise LoadError(f"sizes {head[:4]} and widths {widths[:8]} disagree")
    next(lines, None)
    low, high = _numbers(lines, "least inputs"), _numbers(lines, "greatest inputs")
    means, ranges = _numbers(lines, "the means"), _numbers(lines, "the ranges")
    n_in = widths[0]
    if means.size < n_in or ranges.size < n_in or not np.all(ranges[:n_in]):
        raise LoadError(f"{means.size} means and {ranges.size} ranges for {n_in} inputs; ranges must not be 0")
    chain = Chain(limit=settings.max_parameters)
    signal = chain.input((1, n_in)).shifted(-means[:n_in]).scaled(1.0 / ranges[:n_in])
    chain.weighted = True
    for index, (n_before, n_after) in enumerate(itertools.pairwise(widths)):
        check_size(n_before * n_after, chain.limit, f"layer {index}")
        weight, bias = _table(lines, n_after, n_before, index), _table(lines, n_after, 1, index)
        signal = linear.multiply_right(signal, weight.T).shifted(bias[:, 0]).named(f"layer {index}")
        if index < len(widths) - 2:
            signal = chain.activate(signal, "relu", f"layer {index}")
    if means.size > n_in and ranges.size > n_in:
        signal = signal.scaled(ranges[n_in : n_in + 1]).shifted(means[n_in : n_in + 1])
    if np.any(means) or np.any(ranges != 1):
        chain.note("the means and ranges of inputs and outputs were folded")
    if np.any(low != high):
        chain.note("the file states least and greatest inputs; rows outside are not clamped to them")
    ending = close_tail([("outputs", signal)])
    chain.finish(ending.logits, "outputs")
    return Loaded(chain, ending, settings.input_shape or (n_in,))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("//"):
            yield number, line.strip().rstrip(",")


def _numbers(lines: Iterator[tuple[int, str]], what: str) -> Array:
    number, line = next(lines, (0, ""))
    if not number:
        raise LoadError(f"the file ends before {what}", remedy="copy it again")
    try:
        values = np.array([float(cell) for cell in line.split(",") if cell.strip()])
    except ValueError:
        raise LoadError(f"{line[:40]!r} is no list of numbers", place=f"line {number}") from None
    return check_finite(values, f"line {number}")


def _integers(lines: Iterator[tuple[int, str]], what: str) -> list[int]:
    values = _numbers(lines, what)
    if not np.array_equal(values, np.round(values)) or np.any(np.abs(values) > 1 << 40):
        raise LoadError(f"{what} are no whole numbers: {values[:4].tolist()}")
    return [int(value) for value in values]


def _table(lines: Iterator[tuple[int, str]], rows: int, columns: int, layer: int) -> Array:
    table = np.empty((rows, columns))
    for row in range(rows):
        values = _numbers(lines, f"row {row} of layer {layer}")
        if values.size != columns:
            raise LoadError(f"{values.size} numbers, {columns} expected", place=f"layer {layer}, row {row}")
        table[row] = values
    return table
