"""What the service says wherever it cannot take a request: one wording, code and status each (docs/service-wire.md)."""

from __future__ import annotations

from deploy.errors import ServiceError, WireError

__all__ = ["deadline_exceeded", "draining", "key_not_found", "not_ready", "overloaded", "worker_lost"]


def overloaded(cause: str, *, retry_after_s: int = 1) -> ServiceError:
    """429: a bound is reached; `cause` has the numbers.

    >>> overloaded("9 uploads are under way").http_status
    429
    """
    return ServiceError(
        cause,
        code="overloaded",
        http_status=429,
        hint="wait Retry-After seconds and send again",
        retry_after_s=retry_after_s,
    )


def deadline_exceeded(timeout_s: float) -> ServiceError:
    """504: no answer within so many seconds."""
    return ServiceError(
        f"no answer within {timeout_s:g} s",
        code="deadline_exceeded",
        http_status=504,
        hint="send later, or allow more time",
    )


def draining() -> ServiceError:
    """503: the server is going down."""
    return ServiceError(
        "the server is going down", code="draining", hint="wait Retry-After seconds and send again", retry_after_s=5
    )


def not_ready() -> ServiceError:
    """503: no worker is up."""
    return ServiceError(
        "no worker is up yet", code="not_ready", hint="wait Retry-After seconds and send again", retry_after_s=1
    )


def worker_lost(cause: str) -> ServiceError:
    """503: every worker that tried this request died on it."""
    return ServiceError(cause, code="worker_lost", hint="do not repeat it; report it")


def key_not_found(cause: str = "no such key") -> WireError:
    """404: this tenant does not have the key, or not any more."""
    return WireError(
        cause, code="key_not_found", http_status=404, hint="PUT /v2/keys/{sha256}, then send the request again"
    )
