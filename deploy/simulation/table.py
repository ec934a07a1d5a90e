"""Tables of studies: CSV, or Parquet where pyarrow is installed; written whole or not at all.

The first column is ``case``, the identity of a row. Column names, units and meanings are the study's: Parquet keeps
unit and meaning as metadata of each column, CSV has a header of names alone.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.errors import DataError, UsageError
from deploy.requirement import require
from deploy.study import Column
from deploy.writing import write_file

__all__ = ["CASE_COLUMN", "check_format", "csv_text", "read_table", "write_table"]

CASE_COLUMN = Column("case", "", "identity of the case")


def check_format(path: Path) -> None:
    """Raise before the work where a table could not be written after it.

    Raises
    ------
    UsageError : neither .csv nor .parquet. RequirementMissing : pyarrow is not installed.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise UsageError(f"tables are .csv or .parquet, not {path.suffix or path.name!r}", place=str(path))
    if path.suffix == ".parquet":
        require("pyarrow.parquet", extra="circuit")


def write_table(
    path: Path, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], *, force: bool = False
) -> None:
    """Write rows (each a mapping from column name to value); the same rows give the same bytes of CSV."""
    check_format(path)
    if path.suffix == ".csv":
        data = csv_text([column.name for column in columns], rows).encode()
    else:
        data = _parquet(columns, rows)
    write_file(path, data, force=force)


def csv_text(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV with a header; None is an empty cell."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(["" if row[name] is None else row[name] for name in names] for row in rows)
    return buffer.getvalue()


def _parquet(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> bytes:
    arrow, parquet = require("pyarrow", extra="circuit"), require("pyarrow.parquet", extra="circuit")
    arrays = [arrow.array([row[column.name] for row in rows]) for column in columns]
    fields = [
        arrow.field(column.name, array.type, metadata={"unit": column.unit, "meaning": column.meaning})
        for column, array in zip(columns, arrays, strict=True)
    ]
    buffer = io.BytesIO()
    parquet.write_table(arrow.Table.from_arrays(arrays, schema=arrow.schema(fields)), buffer)
    return buffer.getvalue()


def read_table(path: Path) -> list[dict[str, Any]]:
    """Rows of a table that :func:`write_table` wrote; in CSV every value is text.

    Raises
    ------
    DataError : missing or damaged.
    """
    check_format(path)
    try:
        if path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8") as file:
                return [dict(row) for row in csv.DictReader(file)]
        found: list[dict[str, Any]] = require("pyarrow.parquet", extra="circuit").read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be read: {error}", place=str(path)) from None
    return found
