"""The published OpenAPI description: up to date, and true under schemathesis."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from asking import Caller
from standing import running, served

from deploy.service.app import describe_api

PUBLISHED = Path(__file__).parents[2] / "docs" / "openapi.json"


def outline(document: dict[str, Any]) -> dict[str, Any]:
    """What a client relies on: routes, methods, parameters, statuses, and fields of schemas.

    The rest is worded by the framework and changes with its version.
    """
    routes = {
        f"{method} {path}": (
            sorted((parameter["name"], parameter["in"]) for parameter in operation.get("parameters", [])),
            sorted(operation["responses"]),
            sorted(operation.get("requestBody", {}).get("content", {})),
        )
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    schemas = {
        name: sorted(schema.get("properties", {})) for name, schema in document["components"]["schemas"].items()
    }
    return {"routes": routes, "schemas": schemas}


def test_published_description_is_the_one_that_is_served(standin, tmp_path) -> None:
    published = json.loads(PUBLISHED.read_text())
    written = json.loads(json.dumps(describe_api()))
    assert outline(published) == outline(written), "run: python -m deploy.service.app > docs/openapi.json"
    with running([served()], tmp_path, workers=1) as server, Caller(server.url) as caller:
        assert caller.http.get("/openapi.json").json() == written


@pytest.mark.parametrize("examples", [15, pytest.param(300, marks=pytest.mark.long)])
def test_schemathesis_finds_no_server_error(standin, tmp_path, examples) -> None:
    pytest.importorskip("schemathesis", reason="schemathesis is not installed: no property test of the description")
    with running([served(), served("standin-keyless")], tmp_path, workers=1) as server:
        command = [
            sys.executable,
            "-c",
            "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())",
        ]
        options = ["run", f"{server.url}/openapi.json", "--checks", "not_a_server_error,content_type_conformance"]
        options += [
            "--max-examples",
            str(examples),
            "--seed",
            "1",
            "--phases",
            "examples,coverage,fuzzing,stateful",
        ]
        found = subprocess.run([*command, *options], capture_output=True, text=True, cwd=tmp_path)
        assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-2000:]
        workers = server.workers()
        with Caller(server.url) as caller:
            caller.upload()
            assert caller.infer().status_code == 200
        assert server.workers() == workers
