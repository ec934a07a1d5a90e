"""Structured logs: one JSON object a line on stderr, never a byte of a body, a key or a token."""

from __future__ import annotations

import json
import logging
import sys
import time

__all__ = ["JsonFormatter", "configure_logging"]


class JsonFormatter(logging.Formatter):
    """Time, level, event, and the fields given as ``extra={"fields": {...}}``; an exception by type and place only."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        document = {
            "time": when,
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        document.update(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[0] is not None:
            document["exception"] = describe_exception(record.exc_info[1])
        return json.dumps(document, ensure_ascii=True, default=str)


def describe_exception(error: BaseException | None) -> str:
    """Type and place of an exception, without its text, which may quote what it was given."""
    if error is None:
        return "unknown"
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}" if trace else ""
    return f"{type(error).__name__}{place}"


def configure_logging(level: str = "INFO") -> None:
    """Send everything to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
