"""The extension ``evaluation_keys``: keys by the SHA-256 of their bytes, owned by the caller's tenant."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.requests import ClientDisconnect

from deploy.errors import DeployError
from deploy.service.body import Body
from deploy.service.refusals import key_not_found
from deploy.service.routes_v2 import service_of, tenant_of
from deploy.service.schema import errors
from deploy.service.service import Service, check_key_id

__all__ = ["key_router"]

KeyId = Annotated[str, Path(description="sha256 of the keys as uploaded, lower-case", pattern="^[0-9a-f]{64}$")]
Scope = Annotated[str | None, Query(description="parameters that the keys were made for", max_length=1000)]
_WRITE_BYTES = 1 << 20


def key_router(*, max_key_bytes: int) -> APIRouter:
    """The three key routes, under a body cap of their own."""
    routes = APIRouter(tags=["evaluation_keys"])
    routes.head(
        "/v2/keys/{key_id}", summary="Is the key there", response_class=Response, responses=_bare(400, 401, 404)
    )(head_key)
    routes.put(
        "/v2/keys/{key_id}",
        summary="Upload a key",
        response_class=Response,
        status_code=201,
        max_body_size=max_key_bytes,
        responses={
            200: {"description": "it was there already"},
            201: {"description": "stored"},
            **errors(400, 401, 408, 413, 415, 422, 429, 500, 503, 504, 507),
        },
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            }
        },
    )(put_key)
    routes.delete(
        "/v2/keys/{key_id}",
        summary="Delete a key",
        response_class=Response,
        status_code=204,
        responses=errors(400, 401, 507),
    )(delete_key)
    return routes


def _bare(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"description": entry["description"]} for status, entry in errors(*statuses).items()}


async def head_key(request: Request, key_id: KeyId) -> Response:
    """200 where this tenant has the key; counts as a use."""
    tenant = tenant_of(request)
    if await asyncio.to_thread(service_of(request).store.find, tenant, check_key_id(key_id)) is None:
        raise key_not_found()
    return Response(status_code=200)


async def delete_key(request: Request, key_id: KeyId) -> Response:
    """Delete the key, where there is one."""
    tenant = tenant_of(request)
    await asyncio.to_thread(service_of(request).store.delete, tenant, check_key_id(key_id))
    return Response(status_code=204)


async def put_key(request: Request, key_id: KeyId, scope: Scope = None) -> Response:
    """Store a key once it was hashed and checked; what is refused is erased."""
    service = service_of(request)
    settings = service.settings
    body = Body(
        request,
        cap_bytes=settings.max_key_bytes,
        pause_s=settings.body_timeout_s,
        total_s=settings.upload_timeout_s,
        remedy="make keys from this server's client archive; it needs far fewer bytes",
    )
    try:
        tenant = tenant_of(request)
        check_key_id(key_id)
        service.check_ready()
        body.check_encoding()
        body.lower_cap(service.catalogue.key_bytes)
        body.check_length()
        if await asyncio.to_thread(service.store.find, tenant, key_id) is not None:
            await body.drop()
            return Response(status_code=200)
        with service.upload_slot():
            await _receive(service, body, tenant, key_id, scope)
        return Response(status_code=201)
    except DeployError:
        await body.drop()
        raise
    except ClientDisconnect:
        request.state.fields["cancelled"] = True
        return Response(status_code=499)


async def _receive(service: Service, body: Body, tenant: str, key_id: str, scope: str | None) -> None:
    upload = await asyncio.to_thread(service.store.begin, tenant, key_id)
    try:
        held = bytearray()
        async for chunk in body.chunks():
            held += chunk
            if len(held) >= _WRITE_BYTES:
                await asyncio.to_thread(upload.write, bytes(held))
                held.clear()
        await asyncio.to_thread(upload.write, bytes(held))
        await asyncio.to_thread(upload.finish)
        await service.accept_key(upload, scope)
    finally:
        await asyncio.shield(asyncio.to_thread(upload.abort))
