"""state_dicts: tensors by name, through ``torch.load(weights_only=True)``, the loader that runs no code."""

from __future__ import annotations

import io
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders.damage import DAMAGE, one_line
from deploy.loaders.pickles import refuse_module_pickle
from deploy.requirement import require

__all__ = ["as_array", "load_weights_only", "read_state", "tensors_of"]

_KNOWN = ("state_dict", "model_state_dict", "model", "net", "network", "module", "params", "weights")
"""Where checkpoint dictionaries keep the network, the likeliest first."""


def read_state(source: Path | io.BytesIO) -> dict[str, Array]:
    """Tensors by name, from a state_dict or from the checkpoint dictionary that holds one."""
    return tensors_of(load_weights_only(source))


def load_weights_only(source: Path | io.BytesIO) -> Any:
    """torch.load without code.

    Raises
    ------
    LoadError : a pickle of code, with the lines that convert it; or damage.
    """
    torch = require("torch", extra="torch")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        text = one_line(error, 2000)
        if "GLOBAL" in text or "not allowed" in text or "Unsupported" in text:
            name = re.search(r"GLOBAL (\S+)", text)
            raise refuse_module_pickle(f"it asks for {name[1] if name else 'code'}") from None
        raise LoadError(f"damaged ({one_line(error)})", remedy="copy it again") from None
    except DAMAGE as error:
        raise LoadError(f"damaged, or no PyTorch file ({one_line(error)})", remedy="copy it again") from None


def tensors_of(content: object) -> dict[str, Array]:
    """Find the state_dict in what was loaded."""
    if not isinstance(content, Mapping):
        raise LoadError(f"holds a {type(content).__name__}, not a state_dict", remedy="save module.state_dict()")
    if _is_state(content):
        return {name: as_array(value, f"tensor {name}") for name, value in content.items()}
    inner = {key: value for key, value in content.items() if isinstance(value, Mapping) and _is_state(value)}
    for key in _KNOWN:
        if key in inner:
            return tensors_of(inner[key])
    if len(inner) == 1:
        return tensors_of(next(iter(inner.values())))
    found = ", ".join(str(key) for key in content)[:200]
    raise LoadError(
        f"{len(inner)} state_dicts among the entries {found}"
        if inner
        else f"no state_dict among the entries {found}",
        remedy="save module.state_dict() alone",
    )


def _is_state(content: Mapping[Any, Any]) -> bool:
    return bool(content) and all(
        isinstance(key, str) and (hasattr(value, "detach") or isinstance(value, np.ndarray))
        for key, value in content.items()
    )


def as_array(tensor: Any, place: str) -> Array:
    """A torch tensor as an array; bfloat16 becomes float32, exactly."""
    if isinstance(tensor, np.ndarray):
        return tensor
    if getattr(tensor, "is_quantized", False) or str(getattr(tensor, "layout", "torch.strided")) != "torch.strided":
        raise LoadError(f"is a {tensor.layout} tensor of {tensor.dtype}", place=place, remedy="save dense weights")
    try:
        plain = tensor.detach().cpu()
        return np.asarray(plain.float() if str(plain.dtype) == "torch.bfloat16" else plain)
    except DAMAGE as error:
        raise LoadError(f"cannot be read: {one_line(error)}", place=place) from None
