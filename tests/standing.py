"""Stand-in models to serve, and real server processes to serve them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.bundle import write_archive
from deploy.interface import Feature, InputGuard, Interface
from deploy.model import Decision
from deploy.service.models import ServedModel

N_IN, N_OUT = 16, 10
PATIENCE_S = 60.0
"""Longest wait for something that must happen; generous, because nothing here measures speed."""


def interface() -> Interface:
    """What clients of the stand-ins know."""
    guard = InputGuard(tuple(Feature(f"f{i}", 0.0, 1.0, "m") for i in range(N_IN)), "stated")
    return Interface(Decision("argmax"), tuple(range(N_OUT)), N_OUT, (N_IN,), "none", guard)


def served(
    target: str = "standin",
    *,
    name: str = "toy",
    version: str = "1",
    settings: Mapping[str, Any] | None = None,
) -> ServedModel:
    """A stand-in model; `settings` reach the server's side."""
    files = {"settings.json": json.dumps(settings or {}).encode()}
    client, server = (
        write_archive(files, target=target, role=role, interface=interface(), model="0" * 64)
        for role in ("client", "server")
    )
    return ServedModel(f"{name}-{target}", version, target, client, server, hashlib.sha256(client).hexdigest())


@dataclass(frozen=True)
class Running:
    """A server process."""

    process: subprocess.Popen[str]
    url: str
    metrics_url: str
    log: Path

    def workers(self) -> list[int]:
        """Process ids of its workers."""
        import psutil

        return [
            child.pid
            for child in psutil.Process(self.process.pid).children()
            if "worker" in " ".join(child.cmdline())
        ]


@contextmanager
def running(
    models: list[ServedModel], folder: Path, *, cluster: str | None = None, **settings: Any
) -> Iterator[Running]:
    """Serve in a process of its own, as `serve` does; killed at the end if it still lives."""
    log = folder / f"log-{os.urandom(4).hex()}.txt"
    process = start_server(models, folder, log, cluster=cluster, **settings)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server did not start: {log.read_text()}")
        address = json.loads(line)
        yield Running(process, address["url"], address["metrics_url"], log)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def start_server(
    models: list[ServedModel], folder: Path, log: Path, *, cluster: str | None = None, **settings: Any
) -> subprocess.Popen[str]:
    """A server process, which prints its address as JSON once it is ready."""
    from deploy.service.settings import ServiceSettings

    folder.mkdir(parents=True, exist_ok=True)
    specification = {
        "cluster": cluster,
        "models": [
            {
                "name": model.name,
                "version": model.version,
                "target": model.target,
                "client": model.client_archive.hex(),
                "server": model.server_archive.hex(),
            }
            for model in models
        ],
        "settings": ServiceSettings(
            **{"port": 0, "metrics_port": 0, "store": folder / "store", "workers": 2, "worker_nice": 0, **settings}
        ).model_dump(mode="json"),
    }
    (folder / "specification.json").write_text(json.dumps(specification))
    with log.open("w") as sink:
        return subprocess.Popen(
            [sys.executable, "-P", __file__, str(folder / "specification.json")],
            stdout=subprocess.PIPE,
            stderr=sink,
            text=True,
        )


def wait_until(claim: Callable[[], Any]) -> None:
    """Return once a claim holds."""
    end = time.monotonic() + PATIENCE_S
    while not claim():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def main() -> None:
    """Run the server that a specification describes."""
    from deploy.service.run import run_service
    from deploy.service.service import Service
    from deploy.service.settings import ServiceSettings

    specification = json.loads(Path(sys.argv[1]).read_text())
    models = []
    for model in specification["models"]:
        client = bytes.fromhex(model["client"])
        models.append(
            ServedModel(
                model["name"],
                model["version"],
                model["target"],
                client,
                bytes.fromhex(model["server"]),
                hashlib.sha256(client).hexdigest(),
            )
        )

    def announce(address: Any) -> None:
        print(json.dumps({"url": address.url, "metrics_url": address.metrics_url}), flush=True)

    backend = None
    if specification["cluster"]:
        from deploy.service.cluster import RayBackend

        backend = RayBackend.factory(specification["cluster"])
    run_service(Service(models, ServiceSettings(**specification["settings"]), backend=backend), announce=announce)


if __name__ == "__main__":
    main()
