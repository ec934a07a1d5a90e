"""What parsers raise on bytes that are damaged, cut off or hostile."""

from __future__ import annotations

import pickle
import struct
import tokenize
import zipfile
import zlib

__all__ = ["DAMAGE", "one_line"]

DAMAGE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Third-party parsers promise no error type of their own; these are what they were seen to raise."""


def one_line(error: BaseException, limit: int = 200) -> str:
    """The error's text on one line, or its type where it has none."""
    return " ".join(str(error).split())[:limit] or type(error).__name__
