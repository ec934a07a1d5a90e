"""The configuration and the weights of a Keras file, by h5py alone.

Axes and layouts are Keras's own: kernels (inputs, outputs) and (*kernel, channels, outputs), channels last.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders.archive import Archive
from deploy.loaders.damage import DAMAGE, one_line
from deploy.loaders.weights import check_size
from deploy.requirement import require

__all__ = ["KerasFile", "Layer", "read_h5", "read_keras"]

Config = Mapping[str, Any]
_MAX_LAYERS = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One layer of a chain: its class, its configuration, and its weights in Keras's order."""

    kind: str
    name: str
    config: Config
    weights: Sequence[Array]


@dataclass(frozen=True, slots=True, eq=False)
class KerasFile:
    """The layers in the order in which they are applied, and the shape of one row, where the file states it."""

    layers: tuple[Layer, ...]
    input_shape: tuple[int | None, ...] | None


def read_keras(path: Path, limit: int) -> KerasFile:
    """Read a .keras archive: config.json, and weights under layers/NAME/vars/N."""
    h5py = require("h5py", extra="keras")
    with Archive(path) as archive:
        config = _parse(archive.read(archive.find("config.json") or "config.json"))
        stored = archive.read(archive.find("model.weights.h5") or "model.weights.h5")
    try:
        with h5py.File(io.BytesIO(stored), "r") as file:
            return _chain(config, lambda path: _saved_weights(file, path, limit))
    except LoadError:
        raise
    except DAMAGE as error:
        raise LoadError(f"the weights cannot be read: {one_line(error)}", place="model.weights.h5") from None


def read_h5(path: Path, limit: int) -> KerasFile:
    """Read a .h5 file: the configuration in an attribute, weights under model_weights/NAME."""
    h5py = require("h5py", extra="keras")
    with h5py.File(path, "r") as file:
        if "model_config" not in file.attrs:
            raise LoadError(
                "the file holds weights and no configuration",
                remedy="save the whole model (model.save), not its weights alone",
            )
        config = _parse(file.attrs["model_config"])
        group = file["model_weights"]
        return _chain(config, lambda path: _legacy_weights(group, path, limit))


def _parse(text: str | bytes) -> Config:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LoadError(f"the configuration is no JSON ({one_line(error)})") from None
    if not isinstance(config, dict):
        raise LoadError("the configuration is no JSON object")
    return config


Path_ = tuple[tuple[str, str], ...]
"""(key, name) of each layer from the outermost to the one that is meant."""

Weights = Callable[[Path_], list[Array]]


def _chain(config: Config, weights: Weights, above: Path_ = ()) -> KerasFile:
    """Follow a Sequential or Functional model from its input to its output."""
    kind, inner = config.get("class_name"), config.get("config")
    if kind == "Sequential":
        listed = inner.get("layers") if isinstance(inner, dict) else inner
        entries = _entries(listed)
        order = list(range(len(entries)))
    elif kind in ("Functional", "Model") and isinstance(inner, dict):
        entries = _entries(inner.get("layers"))
        order = _functional_order(inner, entries)
    else:
        raise LoadError(
            f"a model of class {kind}",
            remedy="supported are Sequential and Functional models; export others as ONNX",
        )
    keys = _saved_keys(entries)
    layers: list[Layer] = []
    shape = _stated_shape(inner if isinstance(inner, dict) else {}, entries)
    for index in order:
        entry = entries[index]
        settings = entry["config"]
        name = str(settings.get("name", keys[index]))
        path = (*above, (keys[index], name))
        if entry["class_name"] in ("Sequential", "Functional", "Model"):
            nested = _chain(entry, weights, path)
            layers.extend(nested.layers)
            shape = shape or nested.input_shape
        else:
            layers.append(Layer(str(entry["class_name"]), name, settings, weights(path)))
    return KerasFile(tuple(layers), shape)


def _entries(listed: object) -> list[Config]:
    if not isinstance(listed, list) or not listed or len(listed) > _MAX_LAYERS:
        raise LoadError("the configuration lists no layers")
    for entry in listed:
        if not isinstance(entry, dict) or not isinstance(entry.get("config"), dict) or "class_name" not in entry:
            raise LoadError(f"the configuration has a layer without class and config: {str(entry)[:60]}")
    return listed


def _stated_shape(inner: Config, entries: Sequence[Config]) -> tuple[int | None, ...] | None:
    """The shape of one row from the input layer, the model, or the first layer."""
    candidates: list[object] = []
    for entry in entries[:1]:
        settings = entry["config"]
        candidates += [settings.get("batch_shape"), settings.get("batch_input_shape")]
        if isinstance(settings.get("input_dim"), int):
            candidates.append([None, settings["input_dim"]])
        candidates.append((entry.get("build_config") or {}).get("input_shape"))
    candidates.append(inner.get("build_input_shape"))
    for entry in entries:
        if entry["class_name"] == "InputLayer":
            candidates += [entry["config"].get("batch_shape"), entry["config"].get("batch_input_shape")]
    for shape in candidates:
        if isinstance(shape, list) and shape and all(n is None or isinstance(n, int) for n in shape):
            return tuple(shape[1:])
    return None


def _functional_order(inner: Config, entries: Sequence[Config]) -> list[int]:
    """Indices of the layers on the one way from input to output."""
    names = [str(entry.get("name", entry["config"].get("name"))) for entry in entries]
    sources = {name: _inbound(entry.get("inbound_nodes")) for name, entry in zip(names, entries, strict=True)}
    outputs = _endpoints(inner.get("output_layers"))
    if len(outputs) != 1:
        raise LoadError(f"{len(outputs)} outputs that matter: {', '.join(outputs[:5])}", remedy="keep one output")
    order: list[int] = []
    name = outputs[0]
    while True:
        if name not in sources or names.index(name) in order:
            raise LoadError(f"the layers do not lead from an input to {outputs[0]}", place=f"layer {name}")
        order.append(names.index(name))
        before = sources[name]
        if not before:
            return order[::-1]
        if len(before) > 1:
            raise LoadError(
                f"joins {', '.join(before[:5])}: a residual or a branch",
                place=f"layer {name}",
                remedy="supported is one chain of layers",
            )
        name = before[0]


def _endpoints(value: object) -> list[str]:
    if isinstance(value, list) and value and isinstance(value[0], str):
        return [value[0]]
    return [str(entry[0]) for entry in value if entry] if isinstance(value, list) else []


def _inbound(nodes: object) -> list[str]:
    """Names of the layers that feed one, in the notations of Keras 2 and 3."""
    found: list[str] = []
    stack = [nodes]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            history = item.get("keras_history")
            if isinstance(history, list) and history:
                found.append(str(history[0]))
            else:
                stack.extend(item.values())
        elif isinstance(item, list):
            if len(item) >= 3 and isinstance(item[0], str) and isinstance(item[1], int):
                found.append(item[0])
            else:
                stack.extend(item)
    return found


def _saved_keys(entries: Sequence[Config]) -> list[str]:
    """Under what each layer is saved: its class in snake case, numbered."""
    counts: dict[str, int] = {}
    keys: list[str] = []
    for entry in entries:
        name = re.sub(r"\W+", "", str(entry["class_name"]))
        name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
        name = re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
        number = counts.get(name, 0)
        counts[name] = number + 1
        keys.append(f"{name}_{number}" if number else name)
    return keys


def _saved_weights(file: Any, path: Path_, limit: int) -> list[Array]:
    """Weights of a layer of a .keras file, by the name that the group states or by its numbered class."""
    group = file
    for key, name in path:
        layers = group.get("layers", group.get("_layer_checkpoint_dependencies"))
        if layers is None:
            return []
        named = [child for child in layers.values() if _stated_name(child) == name]
        if named:
            group = named[0]
        elif key in layers and _stated_name(layers[key]) in (None, name):
            group = layers[key]
        elif name in layers:
            group = layers[name]
        else:
            return []
    saved = group.get("vars")
    if saved is None:
        return []
    return [_read(saved[number], limit) for number in sorted(saved, key=lambda number: (len(number), number))]


def _stated_name(group: Any) -> str | None:
    saved = group.get("vars") if hasattr(group, "get") else None
    name = None if saved is None else saved.attrs.get("name")
    return name.decode() if isinstance(name, bytes) else name


def _legacy_weights(group: Any, path: Path_, limit: int) -> list[Array]:
    """Weights of a layer of a .h5 file; those of a nested model lie in its outermost layer's group."""
    outer, leaf = path[0][1], path[-1][1]
    if outer not in group:
        return []
    names = [n.decode() if isinstance(n, bytes) else str(n) for n in group[outer].attrs.get("weight_names", ())]
    if len(path) > 1:
        names = [name for name in names if leaf in name.split("/")]
    return [_read(group[outer][name], limit) for name in names]


def _read(dataset: Any, limit: int) -> Array:
    check_size(math.prod(dataset.shape), limit, f"array {dataset.name}")
    return np.asarray(dataset[()])
