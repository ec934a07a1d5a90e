"""The HTTP application over a :class:`deploy.service.service.Service`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from deploy.errors import DeployError
from deploy.service import routes_v2
from deploy.service.gate import Gate
from deploy.service.routes_keys import key_router
from deploy.service.service import Service
from deploy.service.settings import ServiceSettings

__all__ = ["create_app", "describe_api"]

_HINTS = {
    404: ("not_found", "no such route", "see GET /openapi.json"),
    405: ("method_not_allowed", "this route has other methods", "see the header Allow"),
    413: ("body_too_large", "the body is over the cap", "send fewer rows in one request"),
}


def create_app(service: Service) -> ASGIApp:
    """The application over a service that was started; its lifespan stops it."""
    app = build_routes(service.settings)
    app.state.service = service
    return Gate(app, service, _refuse)


def build_routes(settings: ServiceSettings) -> FastAPI:
    """Routes, error answers and the OpenAPI description."""
    app = FastAPI(
        title="relu-deploy inference service",
        version=_version(),
        description="KServe V2 with the binary tensor extension, and evaluation keys by content.",
        license_info={"name": "Apache-2.0"},
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        max_body_size=settings.max_request_bytes,
    )
    app.include_router(routes_v2.router)
    app.include_router(routes_v2.infer_router(max_request_bytes=settings.max_request_bytes))
    app.include_router(key_router(max_key_bytes=settings.max_key_bytes))
    app.add_exception_handler(DeployError, _refuse)
    app.add_exception_handler(HTTPException, _refuse_http)
    app.add_exception_handler(RequestValidationError, _refuse_parameter)
    return app


def describe_api() -> dict[str, object]:
    """The OpenAPI document; ``python -m deploy.service.app > docs/openapi.json`` publishes it."""
    return build_routes(ServiceSettings()).openapi()


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    await app.state.service.stop()


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, DeployError)
    request.state.fields["code"] = error.code
    headers = {}
    if error.http_status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        headers["Retry-After"] = str(retry_after_s)
    cause = f"{error.place}: {error.cause}" if error.place and error.http_status < 500 else error.cause
    hint = error.remedy or "see docs/service-wire.md"
    return JSONResponse({"error": cause, "code": error.code, "hint": hint}, error.http_status, headers)


async def _refuse_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code, cause, hint = _HINTS.get(
        error.status_code, ("bad_request", "the request is malformed", "see /openapi.json")
    )
    request.state.fields["code"] = code
    content = {"error": cause, "code": code, "hint": hint}
    return JSONResponse(content, error.status_code, dict(error.headers or {}))


async def _refuse_parameter(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]["loc"]
    is_key = "key_id" in first
    code = "bad_key_id" if is_key else "bad_parameter"
    request.state.fields["code"] = code
    hint = (
        "send the sha256 of the uploaded keys, 64 lower-case hexadecimal digits" if is_key else "see /openapi.json"
    )
    content = {"error": f"{'.'.join(str(part) for part in first)} does not fit", "code": code, "hint": hint}
    return JSONResponse(content, 400)


def _version() -> str:
    try:
        return version("relu-deploy")
    except PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    print(json.dumps(describe_api(), indent=1))
