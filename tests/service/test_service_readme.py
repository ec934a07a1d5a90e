"""README's two shells and five commands, as a new user would type them."""

from __future__ import annotations

import csv
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

import deploy
from deploy.demo import HELD_OUT

README = Path(__file__).parents[2] / "README.md"


def free_port() -> int:
    """A port that nobody uses right now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.long
def test_five_commands_of_the_readme_give_the_right_digits(tmp_path) -> None:
    section = README.read_text().split("## An encrypted prediction in five commands")[1].split("\n## ")[0]
    first, second = (block.strip() for block in re.findall(r"```\n(.*?)```", section, re.DOTALL))
    assert len([*first.splitlines(), *second.splitlines()]) == 5
    port = free_port()
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python").symlink_to(sys.executable)
    script = f"#!/bin/sh\nexec '{sys.executable}' -P -c 'from deploy.cli.main import main; main()' \"$@\"\n"
    (folder / "relu-deploy").write_text(script)
    (folder / "relu-deploy").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "RELU_DEPLOY_PORT": str(port),
        "RELU_DEPLOY_METRICS_PORT": "-1",
        "RELU_DEPLOY_STORE": str(tmp_path / "store"),
    }
    shell = subprocess.Popen(
        ["sh", "-e", "-c", first], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + 600
        while True:
            assert shell.poll() is None and time.monotonic() < end, "the service did not come up"
            try:
                if httpx2.get(f"http://127.0.0.1:{port}/v2/health/ready").status_code == 200:
                    break
            except httpx2.TransportError:
                time.sleep(0.5)
        found = subprocess.run(
            ["sh", "-e", "-c", second.replace("8080", str(port))],
            cwd=tmp_path, env=environment, capture_output=True, text=True,
        )  # fmt: skip
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        shell.wait(60)
    assert found.returncode == 0, found.stderr
    lines = found.stdout[found.stdout.index("row,decision") :].splitlines()
    table = list(csv.DictReader(lines))
    held_out = deploy.HeldOut.read(HELD_OUT)
    assert held_out.y is not None and len(table) == len(held_out)
    right = [int(line["decision"]) == int(label) for line, label in zip(table, held_out.y, strict=True)]
    assert right[0]
    assert sum(right) / len(right) > 0.95  # the network itself is right on 97 %
