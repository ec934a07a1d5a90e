"""Model files and objects into networks, exactly or with a named refusal: :func:`load`.

Formats: ONNX; PyTorch state_dicts, TorchScript and torch.export archives; Keras .keras and .h5; .nnet; safetensors;
npz of an equilibrium network. Objects: torch modules, scikit-learn estimators, ONNX models, dictionaries of arrays.
What is folded, rewritten and refused is listed in docs/loaders.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.errors import DeployError, LoadError, UsageError

if TYPE_CHECKING:
    from deploy.arrays import Array
    from deploy.loaders.result import Loaded, Settings
    from deploy.model import Decision, Equilibrium, Model

__all__ = ["load"]


def load(
    source: object,
    *,
    decision: Decision | str | None = None,
    layers: Sequence[str] | str | None = None,
    classes: Sequence[str | int] | None = None,
    features: Sequence[str] | None = None,
    input_shape: Sequence[int] | None = None,
    max_parameters: int | None = None,
) -> Model:
    """Load a trained ReLU network from a file or an object, exactly.

    ``load(file).outputs(x)`` is what the file computes for the rows x, in float64. Nothing is approximated, no
    pickle is ever executed, and nothing outside the file's folder is read. A network that is no chain of affine
    layers and ReLUs (or squares), or no monotone equilibrium network, is refused with the node that stands in the
    way. What was folded, rewritten, stripped or assumed stands in the model's `notes`.

    Parameters
    ----------
    source : path of a model file; or a torch module, a fitted scikit-learn estimator or pipeline, an ONNX model, or
        a mapping from names to arrays (a state_dict).
    decision : rule over the logits, as :class:`~deploy.Decision` or as "argmax", "argmin", "sign" or
        "value:TOLERANCE"; None infers it: several outputs argmax, one sigmoid sign, one number value.
    layers : order of the layers of a file without one, with or without activations ("fc1,relu,fc2").
    classes : labels of the classes, in the order of the outputs.
    features : names of the inputs.
    input_shape : shape of one row, for files that do not state it.
    max_parameters : most entries of one dense layer; the default is 2^26.

    Returns
    -------
    Mlp or Equilibrium.

    Raises
    ------
    LoadError : the file is damaged or is no network that can be read exactly; cause, file, node and remedy.
    RequirementMissing : the format needs an extra that is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> weights = {"fc1.weight": np.eye(2), "fc1.bias": np.zeros(2), "fc2.weight": np.ones((1, 2))}
    >>> net = load(weights, decision="value:0.1")
    >>> net.widths, net.outputs(np.array([[3.0, -4.0]])).tolist()
    ((2, 2, 1), [[3.0]])
    """
    from deploy.loaders.damage import DAMAGE, one_line
    from deploy.loaders.result import Settings, build_model
    from deploy.loaders.weights import MAX_PARAMETERS
    from deploy.model import Equilibrium, Mlp

    if isinstance(source, Mlp | Equilibrium):
        return source
    settings = Settings(
        decision=_parse_decision(decision),
        layers=None if layers is None else tuple(layers.split(",") if isinstance(layers, str) else layers),
        classes=None if classes is None else tuple(classes),
        features=None if features is None else tuple(features),
        input_shape=None if input_shape is None else tuple(int(length) for length in input_shape),
        max_parameters=MAX_PARAMETERS if max_parameters is None else max_parameters,
    )
    place = str(source) if isinstance(source, str | Path) else type(source).__name__
    try:
        read = _load_path if isinstance(source, str | Path) else _load_object
        loaded = read(source, settings)
        return loaded if isinstance(loaded, Equilibrium) else build_model(loaded, settings)
    except DeployError as error:
        raise error.at(place) from None
    except MemoryError as error:
        raise LoadError(
            "it does not fit into memory", place=place, remedy="a damaged file may claim more than it holds"
        ) from error
    except DAMAGE as error:
        raise LoadError(
            f"damaged, or of an unknown kind ({type(error).__name__}: {one_line(error)})",
            place=place,
            remedy="export it again; check that the copy is complete",
        ) from error


def _parse_decision(decision: Decision | str | None) -> Decision | None:
    from deploy.model import Decision as Decided

    if not isinstance(decision, str):
        return decision
    rule, _, tolerance = decision.partition(":")
    try:
        return Decided(rule, float(tolerance or 0.0))  # type: ignore[arg-type]
    except ValueError:
        raise UsageError(f"tolerance {tolerance!r} is no number", remedy="write value:0.1") from None


def _load_path(source: object, settings: Settings) -> Loaded | Equilibrium:
    """Read a file by what its first bytes say."""
    from deploy.loaders.formats import recognise
    from deploy.loaders.pickles import refuse_pickle

    path = Path(str(source))
    kind = recognise(path)
    if settings.layers is not None and kind not in ("torch", "safetensors", "npz"):
        raise UsageError(f"a layer list was given, and {kind} files hold their own order", remedy="leave it out")
    if kind == "onnx":
        from deploy.loaders.onnx.lowering import load_onnx

        return load_onnx(path, settings)
    if kind in ("keras", "hdf5"):
        from deploy.loaders.keras.layers import load_keras

        return load_keras(path, settings, is_archive=kind == "keras")
    if kind == "nnet":
        from deploy.loaders.nnet import load_nnet

        return load_nnet(path, settings)
    if kind in ("torchscript", "exported"):
        from deploy.loaders.torch.exported import read_exported
        from deploy.loaders.torch.lowering import lower_program
        from deploy.loaders.torch.script import read_script

        program = read_script(path) if kind == "torchscript" else read_exported(path, settings.max_parameters)
        return lower_program(program, settings)
    if kind == "pickle":
        raise refuse_pickle()
    if kind == "torch":
        from deploy.loaders.torch.state import read_state

        return _load_tensors(read_state(path), settings, is_ordered=True)
    from deploy.loaders.arrays import read_npz, read_safetensors

    tensors = read_npz(path) if kind == "npz" else read_safetensors(path)
    return _load_tensors(tensors, settings, is_ordered=kind == "npz")


def _load_object(source: object, settings: Settings) -> Loaded | Equilibrium:
    """Read a Python object."""
    from deploy.loaders.estimators import is_estimator, load_estimator
    from deploy.loaders.torch.module import is_torch, read_module

    if is_torch(source):
        from deploy.loaders.torch.lowering import lower_program

        return lower_program(read_module(source, settings), settings)
    if is_estimator(source):
        return load_estimator(source, settings)
    if isinstance(source, Mapping):
        from deploy.loaders.torch.state import tensors_of

        return _load_tensors(tensors_of(source), settings, is_ordered=True)
    if type(source).__name__ == "ModelProto":
        from deploy.loaders.onnx.lowering import lower_model

        return lower_model(source, Path(), settings)
    raise LoadError(
        f"an object of type {type(source).__name__} is no model that is known",
        remedy="give a path, a torch module, a fitted scikit-learn estimator, an ONNX model or a state_dict",
    )


def _load_tensors(tensors: Mapping[str, Array], settings: Settings, *, is_ordered: bool) -> Loaded | Equilibrium:
    from deploy.loaders.equilibrium import is_equilibrium, load_equilibrium
    from deploy.loaders.layers import load_layers

    if is_equilibrium(tensors):
        return load_equilibrium(tensors, settings)
    return load_layers(tensors, settings, is_ordered=is_ordered)
