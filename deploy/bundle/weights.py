"""A float model as safetensors, and back."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from deploy.arrays import Array
from deploy.bundle.manifest import ModelEntry
from deploy.errors import BundleError, DeployError
from deploy.model import Affine, Decision, Equilibrium, Mlp, Model

__all__ = ["MODEL_FILE", "describe_model", "read_model", "write_model"]

MODEL_FILE = "model.safetensors"


def describe_model(model: Model) -> ModelEntry:
    """Everything of a model but its numbers."""
    mlp = isinstance(model, Mlp)
    return ModelEntry(
        kind=model.kind,
        widths=list(model.widths),
        parameters=model.parameters,
        decision=model.decision.rule,
        tolerance=model.decision.tolerance,
        activations=list(model.activations) if isinstance(model, Mlp) else [],
        tail=model.tail,
        input_shape=list(model.input_shape),
        classes=None if model.classes is None else list(model.classes),
        features=None if model.features is None else list(model.features),
        names=[layer.name for layer in cast(Mlp, model).affines] if mlp else [],
        notes=list(model.notes),
        sha256=model.sha256,
    )


def write_model(model: Model) -> bytes:
    """The weights as safetensors, float64."""
    from safetensors.numpy import save

    if isinstance(model, Mlp):
        tensors = {}
        for index, layer in enumerate(model.affines):
            tensors[f"affine.{index}.weight"] = layer.weight
            tensors[f"affine.{index}.bias"] = layer.bias
    else:
        tensors = {name: getattr(model, name) for name in ("W", "U", "b", "V", "c")}
    return cast(bytes, save({name: np.ascontiguousarray(value) for name, value in tensors.items()}))


def read_model(entry: ModelEntry, data: bytes) -> Model:
    """Put a model together again.

    Raises
    ------
    BundleError : the weights do not fit what the manifest says.
    """
    try:
        model = _build(entry, _tensors(data))
    except BundleError:
        raise
    except DeployError as error:
        raise BundleError(
            error.cause, remedy="convert again", place=f"{MODEL_FILE} {error.place}".strip()
        ) from None
    except (KeyError, ValueError, TypeError) as error:
        raise BundleError(f"does not fit the manifest: {error}", place=MODEL_FILE) from None
    if model.sha256 != entry.sha256:
        raise BundleError("is not the model that the manifest names", place=MODEL_FILE, remedy="convert again")
    return model


def _tensors(data: bytes) -> dict[str, Array]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise BundleError(f"is no safetensors file: {error}", place=MODEL_FILE) from None
    return cast(dict[str, Array], tensors)


def _build(entry: ModelEntry, tensors: dict[str, Array]) -> Model:
    common: dict[str, Any] = {
        "decision": Decision(cast(Any, entry.decision), entry.tolerance),
        "input_shape": tuple(entry.input_shape),
        "tail": entry.tail,
        "classes": None if entry.classes is None else tuple(entry.classes),
        "features": None if entry.features is None else tuple(entry.features),
        "notes": tuple(entry.notes),
    }
    if entry.kind == "equilibrium":
        return Equilibrium(tensors["W"], tensors["U"], tensors["b"], tensors["V"], tensors["c"], **common)
    layers = []
    for index in range(len(entry.widths) - 1):
        name = entry.names[index] if index < len(entry.names) else ""
        layers.append(Affine(tensors[f"affine.{index}.weight"], tensors[f"affine.{index}.bias"], name))
    return Mlp(tuple(layers), cast(Any, tuple(entry.activations)), **common)
