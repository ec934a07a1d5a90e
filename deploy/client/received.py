"""What comes from a server, held to bounds: a server may be wrong, broken or hostile."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deploy.errors import ServiceError, WireError

__all__ = ["Arriving", "check_listing", "check_metadata", "plain_text", "whole_number"]

_NUMBER = re.compile(r"[0-9]{1,15}")
_TEXT = 500


def whole_number(text: str) -> int | None:
    """A number from a header, or None where it is none.

    >>> whole_number("12"), whole_number("-1"), whole_number("²")
    (12, None, None)
    """
    return int(text) if _NUMBER.fullmatch(text) else None


def plain_text(text: object) -> str:
    r"""Text from a server, fit for a terminal: of bounded length, and without control characters.

    >>> plain_text("\x1b[2Jgone")
    '?[2Jgone'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in str(text)[:_TEXT])


class Arriving:
    """The body of an answer while it arrives.

    Parameters
    ----------
    headers : of the answer.
    max_bytes : a longer body is refused, by its declared length where that is over already.
    timeout_s : longest time for all of it.

    Raises
    ------
    WireError : bad_answer, longer than `max_bytes`.
    """

    def __init__(self, headers: Mapping[str, str], *, max_bytes: int, timeout_s: float) -> None:
        self.content = bytearray()
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._end = time.monotonic() + timeout_s
        self._check(whole_number(headers.get("content-length", "0")) or 0)

    def add(self, piece: bytes) -> None:
        """Take in the next piece.

        Raises
        ------
        WireError : longer than the bound. ServiceError : too late.
        """
        self._check(len(self.content) + len(piece))
        if time.monotonic() > self._end:
            raise ServiceError(
                f"the answer is not whole after {self._timeout_s:g} s",
                code="unreachable",
                hint="try again later, or allow more time",
            )
        self.content += piece

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            raise WireError(
                f"an answer of more than {self._max_bytes} bytes",
                code="bad_answer",
                hint="check the address: is this a relu-deploy server?",
            )


Name = Annotated[str, Field(min_length=1, max_length=200)]


class _Lax(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Listed(_Lax):
    name: Name


class _Tensor(_Lax):
    name: Name
    datatype: Annotated[str, Field(max_length=20)]
    shape: Annotated[list[int], Field(min_length=1, max_length=8)]


class _Parameters(_Lax):
    request_bytes: Annotated[int, Field(ge=0, le=1 << 40)]
    key_bytes: Annotated[int, Field(ge=0, le=1 << 40)]
    key_scope: Annotated[str, Field(max_length=1000)]
    rows_per_request: Annotated[int, Field(ge=1, le=1 << 24)]
    client_archive_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Metadata(_Lax):
    inputs: Annotated[list[_Tensor], Field(min_length=1, max_length=1)]
    outputs: Annotated[list[_Tensor], Field(min_length=1, max_length=1)]
    parameters: _Parameters


def check_listing(document: object) -> list[str]:
    """Names of the models that a server lists; raises :class:`WireError` (bad_answer)."""
    if not isinstance(document, list):
        raise _bad_answer("the list of models is no list")
    try:
        return [_Listed.model_validate(entry).name for entry in document]
    except ValidationError:
        raise _bad_answer("the list of models has an entry without a name") from None


def check_metadata(document: object) -> dict[str, Any]:
    """Metadata of a model with everything that a client reads; raises :class:`WireError` (bad_answer)."""
    try:
        return _Metadata.model_validate(document).model_dump()
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"]) or "the document"
        raise _bad_answer(f"the model's metadata does not fit at {place}") from None


def _bad_answer(cause: str) -> WireError:
    return WireError(cause, code="bad_answer", hint="check the address: is this a relu-deploy server?")
