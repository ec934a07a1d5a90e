"""Keras files without Keras: what ``model.save`` writes, for tests of the reader."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class KerasLayer:
    kind: str
    config: dict[str, Any] = field(default_factory=dict)
    weights: tuple[Any, ...] = ()


def _snake(kind: str) -> str:
    return re.sub("([a-z])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z]+)", r"\1_\2", kind)).lower()


def _names(layers: Sequence[KerasLayer], offset: int) -> list[str]:
    """Names as a session that made `offset` layers of each kind before gives them."""
    counts: dict[str, int] = {}
    names = []
    for layer in layers:
        number = counts.get(layer.kind, 0)
        counts[layer.kind] = number + 1
        names.append(f"{_snake(layer.kind)}_{number + offset}" if number + offset else _snake(layer.kind))
    return names


def config(layers: Sequence[KerasLayer], shape: Sequence[int], *, offset: int = 0, functional: bool = False) -> str:
    names = _names(layers, offset)
    entries: list[dict[str, Any]] = [
        {
            "class_name": "InputLayer",
            "config": {"batch_shape": [None, *shape], "name": "input"},
            "inbound_nodes": [],
        }
    ]
    for index, (layer, name) in enumerate(zip(layers, names, strict=True)):
        before = names[index - 1] if index else "input"
        tensor = {"class_name": "__keras_tensor__", "config": {"keras_history": [before, 0, 0]}}
        entry = {"class_name": layer.kind, "config": {"name": name, **layer.config}, "name": name}
        if functional:
            entry["inbound_nodes"] = [{"args": [tensor], "kwargs": {}}]
        entries.append(entry)
    if functional:
        entries[0]["name"] = "input"
        ends = {"input_layers": [["input", 0, 0]], "output_layers": [[names[-1], 0, 0]]}
        return json.dumps({"class_name": "Functional", "config": {"name": "model", "layers": entries, **ends}})
    return json.dumps({"class_name": "Sequential", "config": {"name": "sequential", "layers": entries}})


def write_keras(
    path: Path, layers: Sequence[KerasLayer], shape: Sequence[int], *, offset: int = 0, functional: bool = False
) -> None:
    """A Keras 3 archive; with `offset`, layer names that differ from the keys of the weights."""
    import h5py

    stored = io.BytesIO()
    keys = _names(layers, 0)
    with h5py.File(stored, "w") as file:
        for layer, key in zip(layers, keys, strict=True):
            group = file.create_group(f"layers/{key}/vars")
            for index, weight in enumerate(layer.weights):
                group.create_dataset(str(index), data=np.asarray(weight))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", '{"keras_version": "3.3.3"}')
        archive.writestr("config.json", config(layers, shape, offset=offset, functional=functional))
        archive.writestr("model.weights.h5", stored.getvalue())


def write_h5(path: Path, layers: Sequence[KerasLayer], shape: Sequence[int], *, functional: bool = False) -> None:
    """The older HDF5 layout."""
    import h5py

    names = _names(layers, 0)
    with h5py.File(path, "w") as file:
        file.attrs["model_config"] = config(layers, shape, functional=functional)
        for layer, name in zip(layers, names, strict=True):
            group = file.create_group(f"model_weights/{name}")
            stored = [f"{name}/weight_{index}:0" for index in range(len(layer.weights))]
            group.attrs["weight_names"] = [name.encode() for name in stored]
            for weight_name, weight in zip(stored, layer.weights, strict=True):
                group.create_dataset(weight_name, data=np.asarray(weight))
