"""Model files and objects into networks, exactly or with a named refusal: :func:`load`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deploy.errors import DeployError, LoadError
from deploy.loaders.result import Settings, build_model
from deploy.loaders.signal import MAX_PARAMETERS
from deploy.model import Decision, Model

__all__ = ["MAX_PARAMETERS", "load"]


def load(
    source: object,
    *,
    decision: Decision | None = None,
    layers: Sequence[str] | None = None,
    classes: Sequence[str | int] | None = None,
    features: Sequence[str] | None = None,
    max_parameters: int = MAX_PARAMETERS,
) -> Model:
    """Load a trained ReLU network."""
    settings = Settings(
        decision=decision,
        layers=None if layers is None else tuple(layers),
        classes=None if classes is None else tuple(classes),
        features=None if features is None else tuple(features),
        max_parameters=max_parameters,
    )
    if not isinstance(source, str | Path):
        raise LoadError(f"an object of type {type(source).__name__}")
    path = Path(source)
    if not path.is_file():
        raise LoadError("no such file", place=str(path))
    try:
        from deploy.loaders.onnx.lowering import load_onnx

        return build_model(load_onnx(path, settings), settings)
    except DeployError as error:
        raise error.at(str(path)) from None
