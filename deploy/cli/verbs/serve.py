"""``serve``: the inference service over bundles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.arguments import Targets, split_names
from deploy.errors import UsageError
from deploy.progress import Progress
from deploy.target import Command, Json

if TYPE_CHECKING:
    from deploy.service.run import Address
    from deploy.service.settings import ServiceSettings

__all__ = ["command"]


def _option(*flags: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(*flags, help=help, metavar=metavar)


def run(
    bundles: Annotated[list[str], typer.Argument(metavar="[NAME[:VERSION]=]BUNDLE…", help="Bundles to serve.")],
    progress: Progress,
    target: Targets = None,
    host: Annotated[str | None, _option("--host", help="Address to listen on; 127.0.0.1 by default.")] = None,
    port: Annotated[int | None, _option("--port", help="Port; 8080 by default, 0 takes a free one.")] = None,
    metrics_port: Annotated[
        int | None, _option("--metrics-port", help="Port of /metrics; 8082 by default, 0 a free one, -1 none.")
    ] = None,
    store: Annotated[Path | None, _option("--store", help="Folder of evaluation keys.", metavar="DIR")] = None,
    token_file: Annotated[
        Path | None, _option("--token-file", help="Tenants: TENANT TOKEN, one a line.", metavar="FILE")
    ] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="Allow another address than loopback without tokens.")
    ] = None,
    tls_certificate: Annotated[
        Path | None, _option("--tls-certificate", help="Certificate chain, PEM.", metavar="FILE")
    ] = None,
    tls_key: Annotated[Path | None, _option("--tls-key", help="Private key, PEM.", metavar="FILE")] = None,
    workers: Annotated[int | None, _option("--workers", help="Worker processes; one per core by default.")] = None,
    queue: Annotated[int | None, _option("--queue", help="Requests that may wait; 64 by default.")] = None,
    request_timeout_s: Annotated[
        float | None, _option("--request-timeout", help="Deadline of one inference, in seconds; 60 by default.")
    ] = None,
    drain_s: Annotated[
        float | None, _option("--drain", help="Time for running requests after SIGTERM, in seconds; 30 by default.")
    ] = None,
    cluster: Annotated[
        str | None,
        _option("--cluster", help="Run the roles on a Ray cluster: its address, or auto.", metavar="ADDRESS"),
    ] = None,
) -> Json:
    """Serve until SIGTERM."""
    from deploy.requirement import require

    for module in ("fastapi", "uvicorn", "httptools", "prometheus_client", "pydantic_settings"):
        require(module, extra="serve")
    from deploy.service.models import open_sources, parse_source
    from deploy.service.run import run_service
    from deploy.service.service import Service

    settings = _read_settings(
        host=host,
        port=port,
        metrics_port=metrics_port,
        store=store,
        token_file=token_file,
        insecure=insecure,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        workers=workers,
        queue=queue,
        request_timeout_s=request_timeout_s,
        drain_s=drain_s,
    )
    with progress.stage("open bundles", len(bundles)) as advance:
        models = []
        for text in bundles:
            models += open_sources([parse_source(text)], targets=split_names(target))
            advance(1)
    names = [f"{model.name} (version {model.version})" for model in models]
    document: dict[str, Any] = {"models": [{"name": m.name, "version": m.version} for m in models]}

    def announce(address: Address) -> None:
        document.update(url=address.url, metrics_url=address.metrics_url)
        metrics = f", metrics on {address.metrics_url}" if address.metrics_url else ""
        progress.say(f"ready: {', '.join(names)} on {address.url}{metrics}")

    backend = None
    if cluster is not None:
        from deploy.service.cluster import RayBackend

        backend = RayBackend.factory(cluster)
    run_service(Service(models, settings, backend=backend), announce=announce)
    return document


def _read_settings(**given: Any) -> ServiceSettings:
    from pydantic import ValidationError

    from deploy.service.settings import ServiceSettings

    try:
        return ServiceSettings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = "--" + "-".join(str(part) for part in first["loc"]).replace("_", "-") if first["loc"] else "serve"
        raise UsageError(first["msg"].removeprefix("Value error, "), place=option) from None


def text(document: Json) -> str:
    """Nothing: everything was said while it ran."""
    return ""


command = Command(help="Serve bundles: KServe V2, evaluation keys by content.", run=run, text=text)
