"""One error tree, and what it looks like from outside."""

from __future__ import annotations

import inspect
import pickle

import pytest

import deploy.errors
from deploy.errors import BundleError, DeployError, LoadError, ServiceError, WireError

CLASSES = [
    value for _, value in inspect.getmembers(deploy.errors, inspect.isclass) if issubclass(value, DeployError)
]


@pytest.mark.parametrize("kind", CLASSES)
def test_the_tree_in_the_docstring_is_the_tree(kind: type[DeployError]) -> None:
    line = next(
        line
        for line in (deploy.errors.__doc__ or "").splitlines()
        if f" {kind.__name__} " in f" {line.strip('│├└─ ')}"
    )
    exit_code, status = line.split(kind.__name__)[1].split()[:2]
    assert int(exit_code) == kind.exit_code
    assert status == ("4xx" if kind is WireError else str(kind.http_status))


@pytest.mark.parametrize("kind", CLASSES)
def test_errors_cross_process_borders_whole(kind: type[DeployError]) -> None:
    on_wire = kind in (WireError, ServiceError)
    extra = {"code": "size", "http_status": 413} if on_wire else {}
    key = "hint" if on_wire else "remedy"
    error = kind("broken", **{key: "mend it"}, **extra).at("here")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(again) is kind
    assert str(again) == "here: broken; mend it"
    assert (again.code, again.http_status, again.exit_code) == (error.code, error.http_status, error.exit_code)


def test_places_nest_from_the_outside_in() -> None:
    error = LoadError("Tanh is no ReLU", place="node 3").at("model.onnx")
    assert str(error) == "model.onnx, node 3: Tanh is no ReLU"
    assert str(BundleError("broken")) == "broken"
    assert WireError("x", code="c", hint="h").hint == "h"
