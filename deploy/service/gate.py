"""The outermost layer: request ids, the access log, counting, and a plain answer to what nobody caught."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from deploy.errors import DeployError
from deploy.service.journal import describe_exception
from deploy.service.routes_v2 import INFER_PATH, answer_inference
from deploy.service.service import Service

__all__ = ["Gate"]

_log = logging.getLogger("deploy.service.access")
_ROUTES = [SimpleNamespace(path=f"/v2/models/{{name}}{version}/infer") for version in ("", "/versions/{version}")]
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


Refuse = Callable[[Request, Exception], Awaitable[Response]]


class Gate:
    """An ASGI application around another.

    Inference goes straight to the function behind its routes: what lies between costs as much as all the rest.
    """

    def __init__(self, app: FastAPI, service: Service, refuse: Refuse) -> None:
        self._app = app
        self._service = service
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value for name, value in scope["headers"] if name == b"x-request-id"}
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        fields: dict[str, Any] = {"request_id": request_id}
        scope["state"] = {**scope.get("state", {}), "fields": fields, "model": None}
        answer = _Answer(
            send, request_id, self._service.settings.max_request_bytes, self._service.settings.max_key_bytes
        )
        began = time.perf_counter()
        self._service.metrics.in_progress.inc()
        try:
            inference = INFER_PATH.fullmatch(scope["path"]) if scope["method"] == "POST" else None
            if inference is None:
                await self._app(scope, receive, answer.send)
            else:
                await self._infer(scope, receive, answer.send, **inference.groupdict())
        except ClientDisconnect:
            fields["cancelled"] = True
        except Exception as error:  # noqa: BLE001  the HTTP boundary
            fields["exception"] = describe_exception(error)
            if not answer.status:
                content = {"error": "a defect in the service", "code": "internal", "hint": "report it"}
                await JSONResponse(content, 500)(scope, receive, answer.send)
        finally:
            self._service.metrics.in_progress.dec()
            self._record(scope, fields, answer, time.perf_counter() - began)

    async def _infer(self, scope: Scope, receive: Receive, send: Send, name: str, version: str | None) -> None:
        scope["app"], scope["route"] = self._app, _ROUTES[version is not None]
        request = Request(scope, receive)
        try:
            response = await answer_inference(request, name, version)
        except DeployError as error:
            response = await self._refuse(request, error)
        await response(scope, receive, send)

    def _record(self, scope: Scope, fields: dict[str, Any], answer: _Answer, seconds: float) -> None:
        model = scope["state"]["model"]
        if model is not None:
            fields |= {"model": model.name, "version": model.version, "target": model.target}
            self._service.metrics.requests.labels(model.name, model.target, str(answer.status)).inc()
        level = logging.ERROR if "exception" in fields else logging.INFO
        _log.log(
            level,
            "request",
            extra={
                "fields": {
                    **fields,
                    "method": scope["method"] if scope["method"].isalpha() else "?",
                    "route": getattr(scope.get("route"), "path", None),
                    "status": answer.status,
                    "bytes_out": answer.size,
                    "seconds": round(seconds, 6),
                }
            },
        )


class _Answer:
    """Watches an answer on its way out; gives a 413 of the body limit its JSON, which Starlette sends as text."""

    def __init__(self, send: Send, request_id: str, max_request_bytes: int, max_key_bytes: int) -> None:
        self._send = send
        self._id = request_id
        self._caps = (max_request_bytes, max_key_bytes)
        self._replaced = False
        self.status = 0
        self.size = 0

    async def send(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", []))
            self._replaced = self.status == 413 and not any(
                value.startswith(b"application/json") for _, value in headers
            )
            if self._replaced:
                await JSONResponse(self._too_large(), 413, {"X-Request-Id": self._id})(
                    {"type": "http"}, _nothing, self._send
                )
                return
            message = {**message, "headers": [*headers, (b"x-request-id", self._id.encode())]}
        elif self._replaced:
            return
        self.size += len(message.get("body", b""))
        await self._send(message)

    def _too_large(self) -> dict[str, str]:
        requests, keys = self._caps
        return {
            "error": f"the body is over the cap: {requests} bytes for an inference, {keys} for keys",
            "code": "body_too_large",
            "hint": "send fewer rows in one request; upload keys to /v2/keys/{sha256}",
        }


async def _nothing() -> Message:
    return {"type": "http.disconnect"}
