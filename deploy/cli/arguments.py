"""Arguments and options that several verbs share, and what they are turned into."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from deploy.errors import DataError, UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from deploy.interface import InputGuard
    from deploy.model import Model, Rule

__all__ = [
    "BundlePath",
    "Classes",
    "DataFile",
    "DecisionRule",
    "DivideBy",
    "FailUnder",
    "Force",
    "InputBox",
    "InputShape",
    "LabelColumn",
    "Labels",
    "Layers",
    "ModelOrBundle",
    "OptionsFile",
    "Seed",
    "Sets",
    "Targets",
    "Tolerance",
    "choose_options",
    "load_model",
    "read_input_box",
    "split_names",
]

MAX_BOX = 64 << 20
"""Largest file of an input box, in bytes."""

ModelOrBundle = Annotated[Path, typer.Argument(metavar="MODEL|BUNDLE", help="A model file, or a bundle.")]
BundlePath = Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle, folder or .zip.")]
DataFile = Annotated[
    str, typer.Option("--data", metavar="FILE[a:b]", help="Rows: .npz, .npy, .csv or IDX, in part with [a:b].")
]
Labels = Annotated[str | None, typer.Option("--labels", metavar="FILE", help="Labels of the rows, one a row.")]
DivideBy = Annotated[float, typer.Option("--divide-by", help="Divide every value, by 255 for bytes.")]
LabelColumn = Annotated[
    str | None, typer.Option("--label-column", metavar="NAME", help="Label column of a .csv with a header.")
]
Targets = Annotated[
    list[str] | None, typer.Option("--target", metavar="T[,T]", help="Targets, by comma or repeated.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="TARGET.OPTION=VALUE", help="An option of a target; see relu-deploy targets."),
]
OptionsFile = Annotated[
    Path | None, typer.Option("--options", metavar="FILE.toml", help="Options of targets, a table each.")
]
DecisionRule = Annotated[
    str | None, typer.Option("--decision", help="argmax, argmin, sign or value; the file's by default.")
]
Tolerance = Annotated[
    float | None, typer.Option("--tolerance", min=0.0, help="Of a value decision, in the model's units.")
]
Layers = Annotated[
    list[str] | None,
    typer.Option("--layers", metavar="NAME[,NAME]", help="Order of the layers, where a file does not say it."),
]
Classes = Annotated[
    list[str] | None, typer.Option("--classes", metavar="NAME[,NAME]", help="Labels of the classes, in order.")
]
InputShape = Annotated[
    str | None,
    typer.Option("--input-shape", metavar="1x28x28", help="Shape of one row, where a file does not say it."),
]
InputBox = Annotated[
    str | None,
    typer.Option("--input-box", metavar="LOW:HIGH|FILE.csv", help="Box of the inputs, which you vouch for."),
]
FailUnder = Annotated[
    float | None,
    typer.Option("--fail-under", min=0.0, max=1.0, help="Exit with 3 where a target agrees on fewer rows."),
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="What random numbers come from; 0 by default.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an output that exists.")]


def split_names(given: Sequence[str] | None) -> tuple[str, ...]:
    """Names from repeated and comma-separated values, each once.

    >>> split_names(["ckks,ternary", "ckks"])
    ('ckks', 'ternary')
    """
    names = [name.strip() for text in given or () for name in text.split(",")]
    return tuple(dict.fromkeys(name for name in names if name))


def choose_options(
    names: Sequence[str], *, sets: Sequence[str] | None, file: Path | None
) -> Mapping[str, BaseModel]:
    """Options of the named targets, or of every registered one where none is named."""
    from deploy.options import parse_options
    from deploy.registry import target, targets

    chosen = {name: target(name) for name in names} if names else targets()
    return parse_options(chosen, sets=sets or (), file=file)


def load_model(
    path: Path,
    *,
    rule: str | None = None,
    tolerance: float | None = None,
    layers: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    input_shape: str | None = None,
) -> Model:
    """Load a model file; what is given overrides what the file suggests.

    Raises
    ------
    UsageError : a tolerance without a value decision, or a shape that is none. LoadError : what :func:`deploy.load` refuses.
    """
    from deploy.loaders import load
    from deploy.model import Decision

    if tolerance is not None and rule != "value":
        raise UsageError(f"--tolerance {tolerance} belongs to a value decision", remedy="give --decision value")
    decision = None if rule is None else Decision(cast("Rule", rule), tolerance or 0.0)
    order = [name.strip() for text in layers or () for name in text.split(",") if name.strip()]
    return load(
        path,
        decision=decision,
        layers=order or None,
        classes=split_names(classes) or None,
        input_shape=None if input_shape is None else read_shape(input_shape),
    )


def read_shape(text: str) -> tuple[int, ...]:
    """The shape of one row.

    >>> read_shape("1x28x28")
    (1, 28, 28)
    """
    lengths = text.lower().split("x")
    if not all(re.fullmatch("0{0,9}[1-9][0-9]{0,18}", length) for length in lengths):
        raise UsageError(
            f"--input-shape {text[:40]} is no shape", remedy="write the lengths with an x between: 1x28x28"
        )
    return tuple(int(length) for length in lengths)


def read_input_box(text: str, model: Model) -> InputGuard:
    """The input box that the user states: ``LOW:HIGH`` for every input, or a csv with columns name, low, high.

    Raises
    ------
    UsageError : no such form. DataError : a file that does not fit the model.
    """
    import numpy as np

    from deploy.conversion import stated_guard
    from deploy.reading import read_text

    low, colon, high = text.partition(":")
    try:
        ends = (float(low), float(high)) if colon else None
    except ValueError:
        ends = None
    if ends is not None:
        return stated_guard(np.full(model.n_in, ends[0]), np.full(model.n_in, ends[1]), model.features)
    path = Path(text)
    if not path.exists():
        raise UsageError(f"--input-box {text}", remedy="give LOW:HIGH, such as 0:1, or a csv of name, low, high")
    lines = read_text(path, limit=MAX_BOX, error=DataError).splitlines()
    try:
        table = [row for row in csv.reader(lines) if row]
        rows = [(name, float(below), float(above)) for name, below, above in table[1:]]
    except (ValueError, csv.Error) as error:
        raise DataError(
            f"is no input box: {error}", place=text, remedy="columns name, low, high, with a header"
        ) from None
    if len(rows) != model.n_in:
        raise DataError(f"{len(rows)} inputs, the model takes {model.n_in}", place=text)
    names, lows, highs = zip(*rows, strict=True)
    return stated_guard(np.array(lows), np.array(highs), names)
