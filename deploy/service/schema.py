"""What the OpenAPI description says beyond the routes themselves."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from deploy.service.tensors import InferRequest, InferResponse

__all__ = ["ErrorBody", "errors", "infer_documentation"]

_MEANINGS = {
    400: "the request is malformed",
    401: "no bearer token, or an unknown one",
    404: "no such model, version or key",
    408: "the body came too slowly",
    409: "made for other parameters, or another client archive",
    413: "the body is over the cap",
    415: "a compressed body",
    422: "the envelope, key or payload was refused",
    429: "the queue is full; Retry-After says when to come back",
    500: "a defect",
    503: "not ready, going down, or a worker was lost",
    504: "the deadline passed",
    507: "the store or the disk is full",
}


class ErrorBody(BaseModel):
    """Every error: text for people, a stable code, what to do."""

    error: str
    code: str
    hint: str


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Documentation of error statuses."""
    return {status: {"model": ErrorBody, "description": _MEANINGS[status]} for status in statuses}


def infer_documentation() -> dict[str, Any]:
    """Request and answer of the inference routes, which read their bodies themselves."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    return {
        "parameters": [
            {
                "name": "Inference-Header-Content-Length",
                "in": "header",
                "required": False,
                "schema": {"type": "integer", "minimum": 0},
                "description": "length of the JSON part, where binary parts follow it",
            }
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": InferRequest.model_json_schema()},
                "application/octet-stream": binary,
            },
        },
        "responses": {
            "200": {
                "description": "the answer; binary where it was asked for, always for BYTES",
                "content": {
                    "application/json": {"schema": InferResponse.model_json_schema()},
                    "application/octet-stream": binary,
                },
            }
        },
    }
