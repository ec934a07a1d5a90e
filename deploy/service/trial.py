"""A service for a moment: started in a process of its own, asked, and drained again."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.errors import ServiceError
from deploy.requirement import require

__all__ = ["predict_served", "served_for_a_moment"]

_READY = re.compile(r"^ready: .* on (?P<url>http\S+)", re.MULTILINE)
_PATIENCE_S = 120.0


@contextmanager
def served_for_a_moment(bundle: Path, *options: str) -> Iterator[str]:
    """Serve a bundle on a free port of loopback, with a key store that goes away; gives the address.

    Raises
    ------
    RequirementMissing : the extra ``serve`` is not installed.
    ServiceError : the service does not come up; its last words are in the text.
    """
    for module in ("fastapi", "uvicorn", "prometheus_client", "pydantic_settings"):
        require(module, extra="serve")
    with tempfile.TemporaryDirectory(prefix="relu-deploy-") as folder:
        log = Path(folder) / "log"
        store = str(Path(folder) / "keys")
        command = [sys.executable, "-P", "-c", "from deploy.cli.main import main; main()", "serve", str(bundle)]
        ports = ["--port", "0", "--metrics-port", "-1", "--store", store]
        with log.open("w") as sink:
            process = subprocess.Popen([*command, *ports, *options], stdout=subprocess.DEVNULL, stderr=sink)
        try:
            yield _wait_for_address(process, log)
            process.terminate()
            process.wait(_PATIENCE_S)
        finally:
            process.kill()
            process.wait()


def _wait_for_address(process: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + _PATIENCE_S
    while True:
        found = _READY.search(log.read_text())
        if found is not None:
            return found["url"].rstrip(",")
        if process.poll() is not None or time.monotonic() > end:
            last = log.read_text().strip().splitlines()[-1:] or ["it said nothing"]
            raise ServiceError(f"the service did not come up: {last[0][:300]}", code="not_ready")
        time.sleep(0.05)


def predict_served(bundle: Path, rows: Any, *, targets: Sequence[str] = ()) -> Mapping[str, Mapping[str, Any]]:
    """Serve a bundle and have each of its served targets decide rows (batch, n_in), as any client would.

    Returns
    -------
    By model name: target, labels, logits (batch, n_out), seconds for all rows (keys and upload apart), bytes of keys.
    """
    from deploy.client import EncryptedClient
    from deploy.service.models import open_sources, parse_source

    found = {}
    models = open_sources([parse_source(str(bundle))], targets=targets)
    options = [option for name in targets for option in ("--target", name)]
    with served_for_a_moment(bundle, "--workers", "1", *options) as url:
        for model in models:
            with EncryptedClient(url, model=model.name) as client:
                keys = client.upload_keys()
                began = time.perf_counter()
                prediction = client.predict(rows)
                found[model.name] = {
                    "target": model.target,
                    "labels": list(prediction.labels),
                    "logits": prediction.logits,
                    "seconds": time.perf_counter() - began,
                    "key_bytes": len(keys.evaluation) if keys is not None else 0,
                }
    return found
