"""What has been computed so far: one JSON line a case, so that an interrupted study goes on where it stopped.

The first line is a fingerprint of everything that decides a row: bundle, target, study, seed, rows. A case is known
by its identity and its parameters, so more cases of the same study extend a journal. A line that was cut short by
an interruption is dropped. A journal that is open is locked: two runs that write one table would spoil each other's
lines.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from deploy.errors import DataError, OutputExists
from deploy.study import Case, Row
from deploy.writing import check_absent, storage_errors

__all__ = ["Journal", "case_key", "journal_path", "plain_row"]


def journal_path(output: Path) -> Path:
    """Where the journal of a table lies while it is being computed."""
    return output.with_name(f".{output.name}.journal")


def case_key(case: Case) -> str:
    """Identity of a case and its parameters."""
    text = json.dumps([case.id, dict(case.parameters)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class Journal:
    """Rows by case, appended to a file as they come. A context manager.

    Parameters
    ----------
    path : where it lies.
    fingerprint : what decides every row; another study's journal is not continued.

    Raises
    ------
    OutputExists : another run is writing the same table; the file belongs to another study and `discard` is not given;
        it is a link, a device or a pipe.
    StorageError : the place cannot be written.
    """

    def __init__(self, path: Path, fingerprint: Mapping[str, Any], *, discard: bool = False) -> None:
        self._path = path
        self._head = json.dumps(dict(fingerprint), sort_keys=True)
        self.rows: dict[str, dict[str, Any]] = {}
        self._file = self._open()
        try:
            complete = 0 if discard else self._read()
            with storage_errors(path):
                self._file.truncate(complete)
                self._file.seek(complete)
                if not complete:
                    self._append(self._head)
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> BinaryIO:
        """The file, locked until it is closed."""
        check_absent(self._path, force=True)
        with storage_errors(self._path):
            file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                raise OutputExists(
                    "another run is writing this table",
                    place=str(self._path),
                    remedy="wait for it, or choose another output",
                ) from None
            except OSError:
                file.close()
                raise
            if os.fstat(file.fileno()).st_nlink:
                return file
        file.close()  # the run that held it removed it meanwhile: what is locked has no name any more
        return self._open()

    def _read(self) -> int:
        """Take over what is there; give the length in bytes of the lines that are whole."""
        with storage_errors(self._path):
            lines = self._file.read().splitlines(keepends=True)
        if not lines or not lines[0].endswith(b"\n"):
            return 0
        if lines[0].decode(errors="replace").rstrip("\n") != self._head:
            raise OutputExists(
                "holds another study's rows (or other rows, seed or bundle)",
                place=str(self._path),
                remedy="choose another output, or give --force to start anew",
            )
        complete = len(lines[0])
        for line in lines[1:]:
            if not line.endswith(b"\n"):
                break
            try:
                entry = json.loads(line)
                self.rows[entry["case"]] = {name: _decode(value) for name, value in entry["row"].items()}
            except (ValueError, KeyError, TypeError, AttributeError):
                break
            complete += len(line)
        return complete

    def add(self, case: Case, row: Mapping[str, Any]) -> None:
        """Keep a row (see :func:`plain_row`); it survives an interruption right after."""
        self.rows[case_key(case)] = dict(row)
        line = {"case": case_key(case), "row": {name: _encode(value) for name, value in row.items()}}
        with storage_errors(self._path):
            self._append(json.dumps(line))

    def _append(self, line: str) -> None:
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def remove(self) -> None:
        """The table is written: the journal has done its work."""
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()


def plain_row(row: Row) -> dict[str, Any]:
    """A row with Python's own numbers.

    Raises
    ------
    DataError : a value that no table holds.
    """
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise DataError(f"a study gave a value of type {type(value).__name__}", remedy="give numbers, text or None")


def _encode(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def _decode(value: Any) -> Any:
    return float(value["float"]) if isinstance(value, dict) else value
