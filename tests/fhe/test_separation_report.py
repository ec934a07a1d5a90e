"""The report of a separation, edited: one error that names the place, or panels that can be drawn; nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from networks import random_mlp

from deploy.errors import BundleError
from fhe.deployment import CkksDeployment, convert_model
from fhe.options import CkksOptions

VALUES: list[Any] = [None, True, -1, 1e308, 10**400, "", [], {}, [[1]], ["a"] * 30]


@pytest.fixture(scope="module")
def converted() -> tuple[CkksDeployment, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    model = random_mlp(rng, (4, 6, 3))
    return convert_model(model, x, CkksOptions(), rng=rng), x


def places(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, value in document.items() if isinstance(document, dict) else enumerate(document[:1]):
        yield (*at, key)
        if isinstance(value, dict | list):
            yield from places(value, (*at, key))


def test_every_changed_place_is_refused_by_name_or_harmless(converted) -> None:
    deployment, x = converted
    files = dict(deployment.files())
    original = json.loads(files["separation.json"])
    refused = set()
    for where in places(original):
        for value in VALUES:
            document = copy.deepcopy(original)
            node = document
            for key in where[:-1]:
                node = node[key]
            node[where[-1]] = value
            files["separation.json"] = json.dumps(document).encode()
            try:
                forged = CkksDeployment.from_files(files, deployment.model)
            except BundleError as error:
                assert error.place == "separation.json"
                assert str(where[0]) in error.cause
                assert error.remedy
                refused.add(where)
            else:
                forged.summary()
                for panel in forged.panels(x):
                    json.dumps(panel.data, allow_nan=False)
    assert {("guard", 0, "high", 0), ("selection", "candidates", 0, "agreement"), ("warnings",)} <= refused


def test_a_report_of_other_layers_is_refused(converted) -> None:
    deployment, _ = converted
    files = dict(deployment.files())
    document = json.loads(files["separation.json"])
    document["guard"][0]["low"].pop()
    files["separation.json"] = json.dumps(document).encode()
    with pytest.raises(BundleError, match=r"guard has boxes of \[\(5, 6\)\] units, .* hidden layers of \[6\]"):
        CkksDeployment.from_files(files, deployment.model)
