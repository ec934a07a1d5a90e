"""The routes of the V2 protocol."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from deploy.errors import DeployError, WireError
from deploy.service.body import Body
from deploy.service.models import ServedModel
from deploy.service.schema import errors, infer_documentation
from deploy.service.service import Service
from deploy.service.tensors import Query, encode_answer, parse_query

__all__ = ["INFER_PATH", "answer_inference", "infer_router", "router"]

Name = Annotated[str, Path(description="model, as GET /v2/models names it", max_length=200)]
Version = Annotated[str, Path(description="version of the model", max_length=100)]
INFER_PATH = re.compile(r"/v2/models/(?P<name>[^/]{1,200})(?:/versions/(?P<version>[^/]{1,100}))?/infer")
_PARSE_IN_THREAD = 1 << 16

router = APIRouter(tags=["V2"])


class Server(BaseModel):
    """Server metadata."""

    name: str
    version: str
    extensions: list[str]


class ModelVersions(BaseModel):
    """One line of the list of models."""

    name: str
    versions: list[str]
    target: str
    ready: bool


class TensorMetadata(BaseModel):
    """A tensor: -1 in the shape means any."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """Model metadata."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    parameters: dict[str, str | int]


class Health(BaseModel):
    """Health."""

    live: bool = True
    ready: bool | None = None


def service_of(request: Request) -> Service:
    """The service behind a request."""
    service: Service = request.app.state.service
    return service


def tenant_of(request: Request) -> str:
    """Who calls; raises :class:`WireError` (401)."""
    tenant = service_of(request).tenants.identify(request.headers.get("authorization"))
    request.state.fields["tenant"] = tenant
    return tenant


@router.get("/v2", summary="Server metadata", responses=errors(401))
async def server_metadata(request: Request) -> Server:
    """Name, version and extensions."""
    tenant_of(request)
    return Server(
        name="relu-deploy", version=request.app.version, extensions=["binary_tensor_data", "evaluation_keys"]
    )


@router.get("/v2/health/live", summary="Liveness")
async def live(request: Request) -> Health:
    """200 while the event loop turns."""
    return Health(live=True)


@router.get("/v2/health/ready", summary="Readiness", responses={503: {"model": Health}})
async def ready(request: Request, response: Response) -> Health:
    """200 while requests are welcome, else 503."""
    is_ready = service_of(request).ready
    response.status_code = 200 if is_ready else 503
    return Health(ready=is_ready)


@router.get("/v2/models", summary="Every model", responses=errors(401))
async def models(request: Request) -> list[ModelVersions]:
    """Names, versions, targets."""
    tenant_of(request)
    service = service_of(request)
    catalogue = service.catalogue
    names = dict.fromkeys(model.name for model in catalogue.models)
    return [
        ModelVersions(
            name=name, versions=catalogue.versions(name), target=catalogue.find(name).target, ready=service.ready
        )
        for name in names
    ]


@router.get("/v2/models/{name}", summary="Model metadata", responses=errors(401, 404, 503))
async def model_metadata(request: Request, name: Name) -> ModelMetadata:
    """Metadata of the latest version."""
    return _metadata(request, name, None)


@router.get(
    "/v2/models/{name}/versions/{version}", summary="Metadata of a version", responses=errors(401, 404, 503)
)
async def version_metadata(request: Request, name: Name, version: Version) -> ModelMetadata:
    """Metadata of one version."""
    return _metadata(request, name, version)


def _metadata(request: Request, name: str, version: str | None) -> ModelMetadata:
    tenant_of(request)
    service = service_of(request)
    catalogue = service.catalogue
    model = catalogue.find(name, version)
    service.check_ready()
    limits, signature = catalogue.limits(model), catalogue.signature(model)
    tensors = [
        TensorMetadata(name=tensor.name, datatype=tensor.datatype, shape=list(tensor.shape))
        for tensor in (signature.input, signature.output)
    ]
    return ModelMetadata(
        name=model.name,
        versions=catalogue.versions(name),
        platform=f"relu-deploy_{model.target}",
        inputs=tensors[:1],
        outputs=tensors[1:],
        parameters={
            "target": model.target,
            "version": model.version,
            "request_bytes": limits.request_bytes,
            "answer_bytes": limits.answer_bytes,
            "key_bytes": limits.key_bytes,
            "key_scope": limits.key_scope,
            "rows_per_request": limits.rows_per_request,
            "client_archive_sha256": model.etag,
        },
    )


@router.get(
    "/v2/models/{name}/ready", summary="Model readiness", responses={503: {"model": Health}, **errors(401, 404)}
)
async def model_ready(request: Request, response: Response, name: Name) -> Health:
    """200 while the model answers, else 503."""
    return _model_ready(request, response, name, None)


@router.get(
    "/v2/models/{name}/versions/{version}/ready",
    summary="Readiness of a version",
    responses={503: {"model": Health}, **errors(401, 404)},
)
async def version_ready(request: Request, response: Response, name: Name, version: Version) -> Health:
    """200 while this version answers, else 503."""
    return _model_ready(request, response, name, version)


def _model_ready(request: Request, response: Response, name: str, version: str | None) -> Health:
    tenant_of(request)
    service = service_of(request)
    service.catalogue.find(name, version)
    response.status_code = 200 if service.ready else 503
    return Health(ready=service.ready)


_ARCHIVE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "the client archive",
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    },
    304: {"description": "the caller has it already"},
}


@router.get(
    "/v2/models/{name}/client",
    summary="Client archive",
    response_class=Response,
    responses={**_ARCHIVE, **errors(401, 404)},
)
async def client_archive(request: Request, name: Name) -> Response:
    """What a client needs: no weights."""
    return _client_archive(request, name, None)


@router.get(
    "/v2/models/{name}/versions/{version}/client",
    summary="Client archive of a version",
    response_class=Response,
    responses={**_ARCHIVE, **errors(401, 404)},
)
async def version_client_archive(request: Request, name: Name, version: Version) -> Response:
    """What a client of this version needs."""
    return _client_archive(request, name, version)


def _client_archive(request: Request, name: str, version: str | None) -> Response:
    tenant_of(request)
    model = service_of(request).catalogue.find(name, version)
    tag = f'"{model.etag}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    wanted = {item.strip().removeprefix("W/") for item in request.headers.get("if-none-match", "").split(",")}
    if wanted & {tag, "*"}:
        return Response(status_code=304, headers=headers)
    return Response(model.client_archive, media_type="application/zip", headers=headers)


def infer_router(*, max_request_bytes: int) -> APIRouter:
    """The two inference routes, under a body cap."""
    routes = APIRouter(tags=["V2"])
    shared: dict[str, Any] = {
        "response_class": Response,
        "max_body_size": max_request_bytes,
        "openapi_extra": infer_documentation(),
        "responses": errors(400, 401, 404, 408, 409, 413, 415, 422, 429, 500, 503, 504),
    }
    routes.post("/v2/models/{name}/infer", summary="Inference", **shared)(infer)
    routes.post("/v2/models/{name}/versions/{version}/infer", summary="Inference by a version", **shared)(
        version_infer
    )
    return routes


async def infer(request: Request, name: Name) -> Response:
    """Answer by the latest version."""
    return await answer_inference(request, name, None)


async def version_infer(request: Request, name: Name, version: Version) -> Response:
    """Answer by one version."""
    return await answer_inference(request, name, version)


async def answer_inference(request: Request, name: str, version: str | None) -> Response:
    """What both routes do.

    Raises
    ------
    DeployError : the request is refused; its body was read or dropped.
    """
    service = service_of(request)
    settings = service.settings
    body = Body(
        request,
        cap_bytes=settings.max_request_bytes,
        pause_s=settings.body_timeout_s,
        total_s=settings.upload_timeout_s,
        remedy="send fewer rows in one request; upload keys to /v2/keys/{sha256}",
    )
    reserved = 0
    try:
        tenant = tenant_of(request)
        model = service.catalogue.find(name, version)
        service.check_ready()
        request.state.model = model
        body.check_encoding()
        cap = service.request_cap(model)
        body.lower_cap(cap)
        body.check_length()
        service.backend.check_room()
        size = body.declared if body.declared is not None else cap
        service.budget.take(size)
        reserved = size
        data = await body.read()
        query = await _parse(service, model, request, data)
        return await _answer(request, service, model, tenant, query)
    except DeployError:
        await body.drop()
        raise
    except ClientDisconnect:  # while it sent, or its chunks were none
        request.state.fields["cancelled"] = True
        return Response(status_code=499)
    finally:
        service.budget.give_back(reserved)


async def _parse(service: Service, model: ServedModel, request: Request, data: bytearray) -> Query:
    length = request.headers.get("inference-header-content-length")
    signature = service.catalogue.signature(model)
    if length is None and len(data) > _PARSE_IN_THREAD:
        return await asyncio.to_thread(parse_query, data, length, signature)
    return parse_query(data, length, signature)


async def _answer(request: Request, service: Service, model: ServedModel, tenant: str, query: Query) -> Response:
    archive = query.parameters.get("archive")
    if archive is not None and archive != model.etag:
        raise WireError(
            "the server has another client archive of this model",
            code="archive_changed",
            http_status=409,
            hint="fetch GET /v2/models/{m}/client again",
        )
    began = time.perf_counter()
    this = asyncio.current_task()
    assert this is not None
    gone = asyncio.create_task(_wait_for_disconnect(request))

    def leave(_: object) -> None:
        this.cancel()

    gone.add_done_callback(leave)
    try:
        answers = await service.infer(model, tenant, query)
    except asyncio.CancelledError:
        if not gone.done():
            raise
        this.uncancel()
        request.state.fields["cancelled"] = True
        return Response(status_code=499)
    finally:
        gone.remove_done_callback(leave)
        gone.cancel()
    signature = service.catalogue.signature(model)
    content, head = encode_answer(query, answers, model=model.name, version=model.version, signature=signature)
    service.metrics.seconds.labels(model.name).observe(time.perf_counter() - began)
    if head is None:
        return Response(content, media_type="application/json")
    return Response(
        content, media_type="application/octet-stream", headers={"Inference-Header-Content-Length": str(head)}
    )


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
