"""The service over a local Ray cluster of two nodes, one of which is killed under load."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import numpy as np
import pytest
from asking import Caller, refused
from standing import N_IN, N_OUT, running, served

from deploy import EncryptedClient

pytestmark = pytest.mark.long


@pytest.fixture
def cluster(standin, tmp_path) -> Iterator[Any]:
    """Two nodes of two processors each, on loopback."""
    pytest.importorskip("ray", reason='ray is not installed: pip install "relu-deploy[cluster]"')
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_DISABLE_IMPORT_WARNING="1")
    from ray.cluster_utils import Cluster

    shared: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 100 << 20}
    nodes = Cluster(initialize_head=True, connect=False, head_node_args={**shared, "include_dashboard": False})
    try:
        nodes.second = nodes.add_node(**shared)
        yield nodes
    finally:
        nodes.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_cluster_answers_as_one_machine_does_and_survives_a_node(cluster, tmp_path, rng) -> None:
    models = [served(settings={"seconds": 0.02}), served("standin-keyless")]
    with running(models, tmp_path / "server", cluster=cluster.address, cluster_replicas=3) as server:
        rows = rng.random((40, N_IN))
        wanted = rows[:, :N_OUT].argmax(axis=1)
        with EncryptedClient(server.url, model="toy-standin-keyless") as client:
            assert client.predict(rows).labels == tuple(wanted)
        stop = threading.Event()
        killed = threading.Event()

        def ask(first: int) -> tuple[int, int]:
            """Right answers before and after the node was killed."""
            right = [0, 0]
            with EncryptedClient(server.url, model="toy-standin") as client:
                turn = first
                while not stop.is_set():
                    is_late = killed.is_set()
                    assert client.predict(rows[turn % 40]).labels == (wanted[turn % 40],)
                    right[is_late] += 1
                    turn += 1
            return right[0], right[1]

        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(ask, first) for first in range(4)]
            threading.Event().wait(5)
            cluster.remove_node(cluster.second, allow_graceful=False)
            killed.set()
            threading.Event().wait(20)
            stop.set()
            counts = np.array([answer.result() for answer in answers])
        assert (counts > 0).all(), counts  # every client was answered before and after, and no answer was wrong
        with Caller(server.url) as caller:
            assert refused(caller.infer()) == (404, "key_not_found")
            assert caller.http.get("/v2/health/ready").status_code == 200
        assert re.search(r"deploy_in_progress \d", httpx2.get(server.metrics_url).text)
