"""Files of rows: npz, npy, csv and IDX, whole or in part.

========  =======================================================================================================
format    what is read
========  =======================================================================================================
``.npz``  array ``x``, and ``y`` where it is there; a file with one array only may name it as it likes
``.npy``  one array
``.csv``  numbers, with or without a header; the label column by name (also ``.tsv``, ``.txt``; , ; or tab)
IDX       ``train-images-idx3-ubyte`` and the like, plain or ``.gz``
========  =======================================================================================================

Axes of an array beyond the first are flattened into columns. Nothing is unpickled.
"""

from __future__ import annotations

import csv
import gzip
import math
import re
import struct
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deploy.arrays import Array
from deploy.errors import DataError

__all__ = ["RowTable", "read_rows"]

MAX_BYTES = 8 << 30
"""Largest array that is read, after decompression."""

MAX_CSV_BYTES = 1 << 30
"""Largest table of text, which takes some ten times its size to read."""

_SLICE = re.compile(r"(?P<file>.*)\[(?P<start>[0-9]{0,18}):(?P<stop>[0-9]{0,18})\]", re.DOTALL)
_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_DAMAGE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    SyntaxError,
    TypeError,
    OverflowError,
    MemoryError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    csv.Error,
    NotImplementedError,
    RuntimeError,
)


@dataclass(frozen=True, slots=True)
class RowTable:
    """What a file held: x (rows, columns) float64, y (rows,) or None, and where it came from."""

    x: Array
    y: Array | None
    source: str
    first_row: int
    features: tuple[str, ...] | None


def read_rows(
    argument: str | Path,
    *,
    labels: str | Path | None = None,
    divide_by: float = 1.0,
    label_column: str | None = None,
) -> RowTable:
    """Read rows from a file.

    Parameters
    ----------
    argument : path, optionally followed by ``[a:b]`` to take rows a to b (not including b).
    labels : file of labels in the same formats (one column), sliced alike.
    divide_by : every value is divided by it, for instance 255 for bytes.
    label_column : name of the label column of a csv with a header.

    Raises
    ------
    DataError : naming the file, the row, the column and the value.
    """
    path, rows = _split_argument(str(argument))
    if not (np.isfinite(divide_by) and divide_by != 0):
        raise DataError(f"cannot divide by {divide_by}", place=str(path))
    x, y, features = _read_file(path, label_column)
    if labels is not None:
        y = _read_labels(Path(labels))
    x = np.asanyarray(x)
    if x.ndim == 0 or x.dtype.kind not in "fiub":
        raise DataError(
            f"array of type {x.dtype} and shape {x.shape}", place=str(path), remedy="give numbers, one row a sample"
        )
    y = None if y is None else _check_labels(np.asarray(y), len(x), str(labels or path))
    start, stop = _check_slice(rows, len(x), path)
    if x[start:stop].size * 8 > MAX_BYTES:
        raise DataError(
            f"{x[start:stop].size * 8:,} bytes as float64, the limit is {MAX_BYTES:,}",
            place=str(path),
            remedy="take rows in part: FILE[a:b]",
        )
    x = np.asarray(x[start:stop])
    with np.errstate(over="ignore"):  # what does not fit is infinite, which is refused by name
        x = x.reshape(len(x), math.prod(x.shape[1:])).astype(np.float64)
        if divide_by != 1.0:
            x /= divide_by
    x.flags.writeable = False
    y = None if y is None else y[start:stop]
    return RowTable(x, y, str(argument), start, features)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name longer than any file's, a loop of links
        return False


def _split_argument(argument: str) -> tuple[Path, tuple[str, str] | None]:
    if _exists(Path(argument)):
        return Path(argument), None
    match = _SLICE.fullmatch(argument)
    if match is None:
        if "[" in argument and argument.endswith("]"):
            raise DataError(
                "the part in brackets is no range of rows",
                place=argument,
                remedy="write [start:stop], such as [0:8000]",
            )
        return Path(argument), None
    return Path(match["file"]), (match["start"], match["stop"])


def _check_slice(rows: tuple[str, str] | None, total: int, path: Path) -> tuple[int, int]:
    if rows is None:
        return 0, total
    start = int(rows[0] or 0)
    stop = int(rows[1]) if rows[1] else total
    if not start < stop <= total:
        raise DataError(
            f"rows [{rows[0]}:{rows[1]}] of {total} rows", place=str(path), remedy=f"stay within [0:{total}]"
        )
    return start, stop


def _read_file(path: Path, label_column: str | None) -> tuple[Array, Array | None, tuple[str, ...] | None]:
    if not _exists(path):
        raise DataError("no such file", place=str(path))
    if not path.is_file():
        raise DataError("not a file", place=str(path), remedy="give a npz, npy, csv or IDX file")
    suffixes = path.suffixes[-1:]
    try:
        if suffixes in ([".csv"], [".tsv"], [".txt"]):
            return _read_csv(path, label_column)
        if label_column is not None:
            raise DataError("only a csv has label columns", place=str(path), remedy="leave out the label column")
        if suffixes == [".npz"]:
            return (*_read_npz(path), None)
        if suffixes == [".npy"]:
            return np.load(path, allow_pickle=False, mmap_mode="r"), None, None
        if "idx" in path.name or suffixes == [".gz"]:
            return _read_idx(path), None, None
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(
            f"byte 0x{error.object[error.start]:02x} at {error.start} is no UTF-8",
            place=str(path),
            remedy="save the file as UTF-8",
        ) from None
    except _DAMAGE as error:
        raise DataError(f"cannot be read: {_one_line(error)}", place=str(path)) from None
    raise DataError(
        f"unknown format {path.suffix or path.name!r}",
        place=str(path),
        remedy="give a .npz, .npy, .csv or IDX file",
    )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _read_npz(path: Path) -> tuple[Array, Array | None]:
    with zipfile.ZipFile(path) as archive:
        total = sum(entry.file_size for entry in archive.infolist())
    if total > MAX_BYTES:
        raise DataError(f"{total} bytes after decompression, the limit is {MAX_BYTES}", place=str(path))
    with np.load(path, allow_pickle=False) as archive:
        names = list(archive.files)
        if "x" not in names and len(names) != 1:
            raise DataError(
                f"no array x among {', '.join(sorted(names)) or 'none'}",
                place=str(path),
                remedy="save the rows as x and, where there are labels, the labels as y",
            )
        x = archive["x" if "x" in names else names[0]]
        return x, (archive["y"] if "y" in names and "x" in names else None)


def _read_csv(path: Path, label_column: str | None) -> tuple[Array, Array | None, tuple[str, ...] | None]:
    size = path.stat().st_size
    if size > MAX_CSV_BYTES:
        raise DataError(
            f"{size:,} bytes of text, the limit is {MAX_CSV_BYTES:,}", place=str(path), remedy="save it as .npy"
        )
    text = path.read_text(encoding="utf-8-sig")
    first = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=first.count)
    table = [
        (number, cells)
        for number, cells in enumerate(csv.reader(text.splitlines(), delimiter=delimiter), 1)
        if any(cell.strip() for cell in cells)
    ]
    if not table:
        raise DataError("the file has no rows", place=str(path))
    header: tuple[str, ...] | None = None
    words = [cell for cell in table[0][1] if not _is_number(cell)]
    if words and len(words) < len(table[0][1]) and not any(cell.strip() for cell in words):
        raise DataError(
            "the first line has numbers and empty cells",
            place=f"{path}, line {table[0][0]}",
            remedy="fill in or drop rows with missing values; a header names its columns",
        )
    if words:
        header = tuple(cell.strip() for cell in table[0][1])
        table = table[1:]
    if header is not None and label_column is not None and header.count(label_column) > 1:
        raise DataError(f"{header.count(label_column)} columns are called {label_column!r}", place=str(path))
    if label_column is not None and (header is None or label_column not in header):
        have = "no header" if header is None else ", ".join(header)
        raise DataError(f"no column {label_column!r}", place=str(path), remedy=f"the file has {have}")
    if not table:
        raise DataError("a header and no rows", place=str(path))
    width = len(table[0][1]) if header is None else len(header)
    label_at = header.index(label_column) if header is not None and label_column is not None else None
    x = np.empty((len(table), width - (label_at is not None)))
    y: list[str] = []
    for row, (line, cells) in enumerate(table):
        if len(cells) != width:
            raise DataError(f"{len(cells)} cells, {width} expected", place=f"{path}, line {line}")
        values = cells
        if label_at is not None:
            y.append(cells[label_at].strip())
            values = cells[:label_at] + cells[label_at + 1 :]
        try:
            x[row] = [_number(cell) for cell in values]
        except ValueError:
            column, cell = next((i, c) for i, c in enumerate(values) if not _is_number(c))
            raise DataError(
                f"{cell[:40]!r} is not a number",
                place=f"{path}, line {line}, column {column + 1}",
                remedy="encode text columns as numbers first, or name the label column",
            ) from None
    features = None
    if header is not None:
        features = tuple(name for index, name in enumerate(header) if index != label_at)
    return x, (_as_labels(y) if label_at is not None else None), features


def _is_number(cell: str) -> bool:
    try:
        _number(cell)
    except ValueError:
        return False
    return True


def _number(cell: str) -> float:
    """As float() reads it, but for what no table means by a number: ``1_000`` and digits of other scripts."""
    if "_" in cell or not cell.isascii():
        raise ValueError(cell)
    return float(cell)


def _as_labels(cells: list[str]) -> Array:
    try:
        return np.array([int(cell) for cell in cells])
    except ValueError:
        return np.array(cells)


def _read_idx(path: Path) -> Array:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        head = file.read(4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _IDX_TYPES or not 1 <= head[3] <= 8:
            raise DataError("no IDX header", place=str(path), remedy="an IDX file starts with 0, 0, type, axes")
        shape = struct.unpack(f">{head[3]}I", file.read(4 * head[3]))
        dtype = np.dtype(_IDX_TYPES[head[2]])
        expected = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if expected > MAX_BYTES:
            raise DataError(f"shape {shape} is {expected} bytes, the limit is {MAX_BYTES}", place=str(path))
        data = file.read(expected + 1)
    if len(data) != expected:
        raise DataError(f"{len(data)} bytes of data, shape {shape} needs {expected}", place=str(path))
    return np.frombuffer(data, dtype).reshape(shape)


def _read_labels(path: Path) -> Array:
    y, _, _ = _read_file(path, None)
    y = np.asarray(y)
    return (
        y.astype(np.int64) if y.dtype.kind == "f" and np.all(np.abs(y) < 2**53) and np.all(y == np.round(y)) else y
    )


def _check_labels(y: Array, rows: int, place: str) -> Array:
    """Labels (rows,), one for each row of the whole file: a slice must not hide that they belong elsewhere."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.shape != (rows,):
        raise DataError(
            f"labels of shape {y.shape} for {rows} rows", place=place, remedy="give one label a row, or none"
        )
    return y
