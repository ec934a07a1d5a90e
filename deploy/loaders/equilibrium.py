"""Monotone equilibrium networks from named arrays.

Two spellings: W itself, or the parametrisation of Winston and Kolter (NeurIPS 2020) that is well-posed by
construction, W = (1 - m) I - A'A + B - B'. The names are W or A, B and m; U, b; and the readout V, c. A PyTorch
state_dict of the authors' layout (U, A, B and the readout as Linear layers) reads as the same arrays; it does not
hold m, which the layer list then gives as "m=1.0".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from deploy.arrays import Array
from deploy.errors import InputError, LoadError
from deploy.loaders.result import Settings
from deploy.loaders.tails import infer_rule
from deploy.loaders.weights import check_finite
from deploy.model import Decision, Equilibrium

__all__ = ["is_equilibrium", "load_equilibrium"]

_AGREEMENT = 1e-5
"""Largest |W - its parametrisation| that float32 storage explains, relative to 1 + max |W|."""


def is_equilibrium(tensors: Mapping[str, Array]) -> bool:
    """The names are those of an equilibrium network."""
    names = set(_plain_names(tensors))
    return {"U"} <= names and ({"W"} <= names or {"A", "B"} <= names)


def load_equilibrium(tensors: Mapping[str, Array], settings: Settings) -> Equilibrium:
    """Build the network and check that it is well-posed.

    Raises
    ------
    LoadError : an array is missing or does not fit, W disagrees with A, B and m, or there is no unique equilibrium.
    """
    arrays = {
        name: np.asarray(check_finite(a, name), dtype=np.float64) for name, a in _plain_names(tensors).items()
    }
    notes: list[str] = []
    W = _recurrent_weight(arrays, settings, notes)
    U = _need(arrays, "U")
    V = arrays.get("V", np.eye(len(W)))
    if "V" not in arrays:
        notes.append("no readout V was given: the logits are the equilibrium itself")
    b = arrays.get("b", np.zeros(len(W))).ravel()
    c = arrays.get("c", np.zeros(len(V))).ravel()
    try:
        decision = settings.decision or Decision(infer_rule(len(V), "none"))
        model = Equilibrium(
            W,
            U,
            b,
            V,
            c,
            decision,
            input_shape=settings.input_shape or (),
            classes=settings.classes,
            features=settings.features,
        )
        notes.append(f"well-posed: I - W is strongly monotone with m = {model.monotonicity:.4g}")
        return model.with_(notes=tuple(notes))
    except InputError as error:
        raise LoadError(error.cause, remedy=error.remedy, place=error.place) from None
    except (IndexError, ValueError) as error:
        raise LoadError(f"arrays that do not fit: {error}") from None


def _plain_names(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Arrays by the names of the paper; those of a state_dict are translated."""
    plain = {name: array for name, array in tensors.items() if name in ("W", "A", "B", "m", "U", "b", "V", "c")}
    if "U" in plain:
        return plain
    rest: list[str] = []
    for name, array in tensors.items():
        parts = name.split(".")
        owner = parts[-2] if len(parts) > 1 and parts[-1] in ("weight", "bias") else parts[-1]
        kind = parts[-1] if parts[-1] in ("weight", "bias") else "weight"
        if owner in ("U", "A", "B", "W", "m") and kind == "weight":
            plain[owner] = array
        elif owner == "U" or (owner == "b" and "b" not in plain):
            plain["b"] = array
        else:
            rest.append(name)
    readout = [name for name in rest if name.endswith(("weight", "V"))]
    if "U" in plain and len(readout) == 1:
        plain["V"] = tensors[readout[0]]
        biases = [name for name in rest if name.endswith(("bias", "c"))]
        if len(biases) == 1:
            plain["c"] = tensors[biases[0]]
    return plain


def _recurrent_weight(arrays: Mapping[str, Array], settings: Settings, notes: list[str]) -> Array:
    if "A" not in arrays or "B" not in arrays:
        W = _need(arrays, "W")
        if W.ndim != 2 or W.shape[0] != W.shape[1]:
            raise LoadError(f"shape {list(W.shape)}", place="W", remedy="W is square")
        return W
    A, B = arrays["A"], arrays["B"]
    n = A.shape[-1]
    if A.ndim != 2 or B.shape != (n, n):
        raise LoadError(
            f"A of shape {list(A.shape)}, B of shape {list(B.shape)}", remedy="A is (k, n), B is (n, n)"
        )
    m = _monotonicity(arrays, settings)
    W = (1 - m) * np.eye(n) - A.T @ A + B - B.T
    notes.append(f"W was computed as (1 - m) I - A'A + B - B' with m = {m:g}")
    if "W" in arrays:
        given = arrays["W"]
        gap = float(np.abs(given - W).max()) if given.shape == W.shape else np.inf
        if gap > _AGREEMENT * (1 + np.abs(W).max()):
            raise LoadError(f"W differs from (1 - m) I - A'A + B - B' by {gap:.3g}", remedy="save W, or A, B and m")
    return np.asarray(W)


def _monotonicity(arrays: Mapping[str, Array], settings: Settings) -> float:
    for entry in settings.layers or ():
        if entry.startswith("m="):
            try:
                return float(entry[2:])
            except ValueError:
                raise LoadError(f"{entry!r} is no number", remedy="write m=1.0") from None
    if "m" not in arrays:
        raise LoadError(
            "the file has A and B, but not m of W = (1 - m) I - A'A + B - B'",
            remedy='give it: --layers m=1.0 (layers=["m=1.0"])',
        )
    if arrays["m"].size != 1:
        raise LoadError(f"m has {arrays['m'].size} entries", place="m")
    return float(arrays["m"].ravel()[0])


def _need(arrays: Mapping[str, Array], name: str) -> Array:
    if name not in arrays:
        raise LoadError(f"array {name} is missing", remedy="an equilibrium network has W (or A, B, m), U, b, V, c")
    return arrays[name]
