"""What a client says over HTTP, apart from how it is sent: requests, answers, when to try again.

Work with the server is written once, as generators that yield a :class:`Call` or a :class:`Pause` and are sent a
:class:`Response`; the clients, blocking and asynchronous, only carry these out.
"""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from deploy.client.received import plain_text, whole_number
from deploy.errors import DeployError, InputError, ServiceError, WireError

__all__ = [
    "Call",
    "Flow",
    "Pause",
    "Response",
    "build_infer",
    "read_infer",
    "refusal",
    "retrying",
    "split_elements",
]

_MAX_PAUSE_S = 30.0
_ANSWER_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request; the path is relative to the server's address, an answer over `max_bytes` is refused."""

    method: str
    path: str
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    max_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Response:
    """What came back; status 0 means that nothing did, and `content` says why."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait, in seconds."""

    seconds: float


_Result = TypeVar("_Result")
Flow = Generator[Call | Pause, Response, _Result]


def retrying(call: Call, *, retries: int) -> Flow[Response]:
    """Send a call, again where the server asks for that or cannot be reached.

    Every call of this protocol may be repeated. Waits double from 0.1 s, with jitter, and are never shorter than
    ``Retry-After``.

    Raises
    ------
    ServiceError : still overloaded, unreachable or failing after `retries` repetitions.
    """
    wait_s = 0.1
    for attempt in range(retries + 1):
        response = yield call
        again = response.status in (0, 429) or (
            response.status in (502, 503, 504) and error_code(response) not in ("worker_lost", "deadline_exceeded")
        )
        if not again:
            return response
        if attempt < retries:
            least = whole_number(response.headers.get("retry-after", "")) or 0
            yield Pause(min(_MAX_PAUSE_S, max(least, wait_s * random.uniform(0.5, 1.5))))
            wait_s *= 2
    raise refusal(response)


def _error_body(response: Response) -> dict[str, Any]:
    try:
        body = json.loads(response.content)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def error_code(response: Response) -> str:
    """The stable word of an error answer, or ""."""
    return str(_error_body(response).get("code", ""))


def refusal(response: Response) -> DeployError:
    """An error answer as the exception that the server raised."""
    if response.status == 0:
        return ServiceError(
            f"the server cannot be reached: {plain_text(response.content.decode(errors='replace'))}",
            code="unreachable",
            hint="check the address, and that the server runs",
        )
    body = _error_body(response)
    cause = plain_text(body.get("error", f"the server answers with status {response.status}"))
    code = plain_text(body.get("code", f"http_{response.status}"))
    hint = plain_text(
        body.get("hint", "check the address: is this a relu-deploy server? redirects are not followed")
    )
    if response.status == 429 or response.status >= 500:
        return ServiceError(cause, code=code, http_status=response.status, hint=hint)
    return WireError(cause, code=code, http_status=response.status, hint=hint)


def expect(response: Response, *statuses: int) -> Response:
    """Give an answer back where it has one of the statuses; raise its refusal otherwise."""
    if response.status not in statuses:
        raise refusal(response)
    return response


def read_json(response: Response) -> Any:
    """JSON of an answer."""
    try:
        return json.loads(expect(response, 200).content)
    except (ValueError, RecursionError):
        raise WireError("the answer is no JSON", code="bad_answer", hint="is this a relu-deploy server?") from None


def build_infer(
    path: str,
    elements: Sequence[bytes],
    *,
    tensor: Mapping[str, Any],
    rows: int,
    output: str,
    parameters: Mapping[str, str | int],
) -> Call:
    """An inference request in the binary tensor extension."""
    is_bytes = tensor["datatype"] == "BYTES"
    data = b"".join(part for element in elements for part in (len(element).to_bytes(4, "little"), element))
    if not is_bytes:
        data = elements[0]
    shape = [len(elements)] if is_bytes else [rows, *tensor["shape"][1:]]
    document = {
        "inputs": [
            {
                "name": tensor["name"],
                "datatype": tensor["datatype"],
                "shape": shape,
                "parameters": {"binary_data_size": len(data)},
            }
        ],
        "outputs": [{"name": output, "parameters": {"binary_data": True}}],
        "parameters": dict(parameters),
    }
    head = json.dumps(document, separators=(",", ":")).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return Call("POST", path, head + data, headers, _ANSWER_BYTES)


def read_infer(response: Response, *, is_bytes: bool) -> list[bytes]:
    """Elements of an answer; raises :class:`WireError` where it is cut short."""
    broken = WireError("the answer is cut short", code="bad_answer", hint="send the request again")
    length = whole_number(response.headers.get("inference-header-content-length", ""))
    if length is None or length > len(response.content):
        raise broken
    data = response.content[length:]
    if not is_bytes:
        return [data]
    try:
        return split_elements(data)
    except InputError:
        raise broken from None


def split_elements(data: bytes) -> list[bytes]:
    """Elements of a BYTES tensor; raises :class:`InputError` where it is cut short.

    >>> split_elements(bytes([2, 0, 0, 0]) + b"ab" + bytes(4))
    [b'ab', b'']
    """
    elements: list[bytes] = []
    while data:
        size = int.from_bytes(data[:4], "little")
        if len(data) < 4 + size:
            raise InputError(f"element {len(elements)} is cut short", remedy="fetch the file again, in binary")
        elements.append(data[4 : 4 + size])
        data = data[4 + size :]
    return elements
