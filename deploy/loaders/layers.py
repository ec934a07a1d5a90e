"""Networks from named weights alone: a state_dict, a safetensors file.

Such a file holds no order and no activations. The order is the one in which the widths fit, the stored order first;
between two affine layers a ReLU is assumed. Both are said in the notes, and a layer list overrides them:

    fc1, bn1, relu, fc2, relu, fc3, softmax

A layer list without any activation is an order alone.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders import activations, linear
from deploy.loaders.chain import Chain
from deploy.loaders.result import Loaded, Settings
from deploy.loaders.signal import Signal
from deploy.loaders.tails import Tailed, close_tail, end_network
from deploy.loaders.weights import check_finite

__all__ = ["load_layers"]

_EPSILON = 1e-5
"""PyTorch's default of BatchNorm; a state_dict does not hold it."""

_PREFIXES = ("module.", "_orig_mod.", "_forward_module.", "model.", "net.", "network.")
_STATISTICS = ("running_mean", "running_var")
_ENDINGS = ("softmax", "log_softmax", "sigmoid")
_SHOWN = 12


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The tensors of one layer: affine (weight 2-D), normalisation (running statistics) or a PReLU slope."""

    name: str
    tensors: Mapping[str, Array]

    @property
    def kind(self) -> str:
        """ "affine", "normalisation" or "slope"."""
        if "running_var" in self.tensors:
            return "normalisation"
        weight = self.tensors.get("weight")
        if weight is not None and weight.ndim == 2:
            return "affine"
        return "slope" if set(self.tensors) == {"weight"} and weight is not None and weight.ndim == 1 else "unknown"

    @property
    def shape(self) -> tuple[int, int]:
        """(n_out, n_in) of an affine layer."""
        n_out, n_in = self.tensors["weight"].shape
        return int(n_out), int(n_in)

    @property
    def title(self) -> str:
        """Name and widths, for people."""
        n_out, n_in = self.shape
        return f"{self.name} ({n_in} to {n_out})"


def load_layers(tensors: Mapping[str, Array], settings: Settings, *, is_ordered: bool) -> Loaded:
    """Build a chain from named weights.

    Parameters
    ----------
    tensors : arrays by name, as ``fc1.weight``, ``fc1.bias``, ``bn1.running_mean`` and so on.
    is_ordered : the stored order means something (a state_dict), or does not (safetensors).

    Raises
    ------
    LoadError : a tensor of no supported layer, or no order or more than one in which the widths fit.
    """
    chain = Chain(limit=settings.max_parameters)
    parts = {part.name: part for part in _read_parts(_strip_prefix(tensors, chain))}
    unknown = [part for part in parts.values() if part.kind == "unknown"]
    if unknown and settings.layers is None:
        raise _unknown(unknown[0])
    steps = _listed_steps(settings.layers, parts, chain) if settings.layers else _inferred_steps(parts, is_ordered)
    if not settings.layers:
        chain.note(f"the file holds no order and no activations; read as {' - '.join(steps)}")
    first = next((parts[step] for step in steps if step in parts and parts[step].kind == "affine"), None)
    if first is None:
        raise LoadError("there is no affine layer", remedy="a weight of two axes is one")
    n_in = first.shape[1]
    value: Signal | Tailed = chain.input((1, n_in))
    for step in steps:
        if isinstance(value, Tailed):
            raise LoadError(f"layer {step} comes after {value.function}")
        try:
            value = _apply(chain, value, step, parts.get(step))
        except LoadError as error:
            raise error.at(f"layer {step}") from None
    ending = close_tail([("logits", value)])
    chain.finish(ending.logits, "logits")
    return Loaded(chain, ending, settings.input_shape or (n_in,))


def _strip_prefix(tensors: Mapping[str, Array], chain: Chain) -> dict[str, Array]:
    stripped = {name: array for name, array in tensors.items() if not name.endswith("num_batches_tracked")}
    if not stripped:
        raise LoadError("the file holds no tensors")
    is_changed = True
    while is_changed:
        is_changed = False
        for prefix in _PREFIXES:
            if all(name.startswith(prefix) and name.count(".") > 1 for name in stripped):
                stripped = {name.removeprefix(prefix): array for name, array in stripped.items()}
                chain.note(f"the prefix {prefix} was dropped from every name")
                is_changed = True
    return stripped


def _read_parts(tensors: Mapping[str, Array]) -> Iterator[Part]:
    groups: dict[str, dict[str, Array]] = {}
    for name, array in tensors.items():
        owner, _, kind = name.replace(".parametrizations.weight.", ".weight_").rpartition(".")
        groups.setdefault(owner or name, {})[kind or "weight"] = array
    for owner, group in groups.items():
        for name, array in group.items():
            check_finite(array, f"{owner}.{name}")
        yield Part(owner, _plain_weight(owner, group))


def _plain_weight(owner: str, group: dict[str, Array]) -> dict[str, Array]:
    """Undo reparametrisations: flax kernels, weight norm, pruning masks."""
    rest = {name: array for name, array in group.items() if name in ("weight", "bias", *_STATISTICS)}
    names = set(group) - set(rest)
    if names == {"kernel"} and group["kernel"].ndim == 2:
        return {**rest, "weight": group["kernel"].T}
    if names == {"weight_orig", "weight_mask"}:
        return {**rest, "weight": group["weight_orig"] * group["weight_mask"]}
    for magnitude, direction in (("weight_g", "weight_v"), ("weight_original0", "weight_original1")):
        if names == {magnitude, direction} and group[direction].ndim == 2:
            v = np.asarray(group[direction], dtype=np.float64)
            g = np.asarray(group[magnitude], dtype=np.float64).reshape(-1, 1)
            return {**rest, "weight": g * v / np.linalg.norm(v, axis=1, keepdims=True)}
    return group


def _unknown(part: Part) -> LoadError:
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in part.tensors.items())
    is_conv = any(array.ndim > 2 for array in part.tensors.values())
    kind = "a convolution, whose stride and padding no state_dict holds" if is_conv else "no known layer"
    return LoadError(
        f"{shapes}: {kind}",
        place=f"layer {part.name}",
        remedy="export the module as ONNX or with torch.export, or give the layer list without it",
    )


def _listed_steps(layers: Sequence[str], parts: Mapping[str, Part], chain: Chain) -> list[str]:
    steps: list[str] = []
    by_name = {_short(name): name for name in parts}
    for entry in layers:
        name = entry.strip()
        if name in parts or _is_activation(name):
            steps.append(name)
        elif _short(name) in by_name:
            steps.append(by_name[_short(name)])
        else:
            raise LoadError(f"there is no layer {name!r}", remedy=f"the file has {', '.join(parts)}")
    unknown = next((parts[step] for step in steps if step in parts and parts[step].kind == "unknown"), None)
    if unknown is not None:
        raise _unknown(unknown)
    left = [name for name in parts if name not in steps]
    if left:
        chain.note(f"the layers {', '.join(left[:_SHOWN])} were left out, as the layer list says")
    if not any(_is_activation(step) and step not in _ENDINGS for step in steps):
        steps = _with_relus([step for step in steps if step in parts], parts) + [s for s in steps if s in _ENDINGS]
        chain.note(f"no activation was listed; read as {' - '.join(steps)}")
    return steps


def _short(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _is_activation(step: str) -> bool:
    word = step.partition(":")[0]
    return word in ("relu", "square", "leaky_relu", "relu6", "abs", "identity", *_ENDINGS)


def _inferred_steps(parts: Mapping[str, Part], is_ordered: bool) -> list[str]:
    names = list(parts) if is_ordered else sorted(parts, key=_natural)
    affine = [name for name in names if parts[name].kind == "affine"]
    if not affine:
        raise LoadError("there is no affine layer", remedy="a weight of two axes is one")
    if not _fits(affine, parts):
        others = [name for name in names if parts[name].kind != "affine"]
        if others:
            raise _ambiguous(parts, f"the place of {', '.join(others[:_SHOWN])} is not known")
        names = _search_order(affine, parts)
    return _with_relus(names, parts)


def _natural(name: str) -> list[tuple[int, int, str]]:
    return [
        (0, int(piece), "") if piece.isdigit() else (1, 0, piece) for piece in re.split(r"(\d+)", name) if piece
    ]


def _fits(names: Sequence[str], parts: Mapping[str, Part]) -> bool:
    return all(parts[a].shape[0] == parts[b].shape[1] for a, b in itertools.pairwise(names))


def _search_order(names: Sequence[str], parts: Mapping[str, Part]) -> list[str]:
    """The only order in which the widths fit, by depth-first search for two."""
    found: list[list[str]] = []
    stack: list[list[str]] = [[name] for name in names]
    budget = 20_000
    while stack and len(found) < 2 and budget:
        budget -= 1
        path = stack.pop()
        if len(path) == len(names):
            found.append(path)
            continue
        width = parts[path[-1]].shape[0]
        stack.extend([*path, name] for name in names if name not in path and parts[name].shape[1] == width)
    if len(found) != 1:
        how_many = "no order" if not found and budget else "more than one order"
        raise _ambiguous(parts, f"there is {how_many} in which the widths fit")
    return found[0]


def _ambiguous(parts: Mapping[str, Part], cause: str) -> LoadError:
    shown = ", ".join(part.title if part.kind == "affine" else part.name for part in list(parts.values())[:_SHOWN])
    return LoadError(f"{cause}: {shown}", remedy=_suggest(parts))


def _suggest(parts: Mapping[str, Part]) -> str:
    """A layer list of the file's own names, in their natural order, with a ReLU between any two affine layers."""
    steps: list[str] = []
    for name in sorted(parts, key=_natural)[:_SHOWN]:
        if parts[name].kind == "affine" and any(parts[step].kind == "affine" for step in steps if step in parts):
            steps.append("relu")
        steps.append(name)
    more = ",…" if len(parts) > _SHOWN else ""
    listed = ",".join(steps) + more
    return f"give the layers in the network's order, if this is it: --layers {listed} (or layers=[…])"


def _with_relus(names: Sequence[str], parts: Mapping[str, Part]) -> list[str]:
    """Put a ReLU between two affine layers: where a Sequential left room for it, else before the second one."""
    steps: list[str] = []
    stretch: list[str] = []
    for name in names:
        if parts[name].kind == "affine" and stretch:
            steps.extend(_place_relu([*stretch, name], parts)[:-1])
            stretch = []
        stretch.append(name)
    return [*steps, *stretch]


def _place_relu(stretch: Sequence[str], parts: Mapping[str, Part]) -> list[str]:
    """A stretch from one affine layer up to the next, with its ReLU."""
    if any(parts[name].kind == "slope" for name in stretch):
        return list(stretch)
    positions = [_position(name) for name in stretch]
    at = len(stretch) - 1
    if all(position is not None and position[0] == (positions[0] or ("", 0))[0] for position in positions):
        numbers = [position[1] for position in positions if position is not None]
        gaps = [index for index, (a, b) in enumerate(itertools.pairwise(numbers), 1) if b - a > 1]
        is_sequential = any(not parts[name].name.rpartition(".")[0] for name in stretch)
        if (not gaps and is_sequential) or len(gaps) > 1:
            where = " and ".join(stretch)
            raise LoadError(
                f"where the activation between {where} stands is not known",
                remedy=_suggest(parts),
            )
        at = gaps[0] if gaps else at
    return [*stretch[:at], "relu", *stretch[at:]]


def _position(name: str) -> tuple[str, int] | None:
    owner, _, last = name.rpartition(".")
    return (owner, int(last)) if last.isdigit() else None


def _apply(chain: Chain, signal: Signal, step: str, part: Part | None) -> Signal | Tailed:
    if part is None:
        return _activate(chain, signal, step)
    if part.kind == "affine":
        n_out, n_in = part.shape
        if n_in != signal.size:
            raise LoadError(f"takes {n_in} values, the layer before it gives {signal.size}")
        chain.weighted = True
        result = linear.multiply_right(signal, part.tensors["weight"].T)
        bias = part.tensors.get("bias")
        if bias is not None and bias.size != n_out:
            raise LoadError(f"bias of {bias.size} entries for {n_out} rows")
        return (result if bias is None else result.shifted(bias.ravel())).named(step)
    if part.kind == "slope":
        return activations.leaky_relu(chain, signal, part.tensors["weight"], step)
    mean, variance = (part.tensors.get(name, np.zeros(0)) for name in _STATISTICS)
    scale = part.tensors.get("weight", np.ones(mean.size))
    shift = part.tensors.get("bias", np.zeros(mean.size))
    chain.note(f"batch normalisation {step} was folded with epsilon {_EPSILON:g}, PyTorch's default")
    return linear.normalise(signal, (signal.size,), scale, shift, mean, variance, epsilon=_EPSILON).named(step)


def _activate(chain: Chain, signal: Signal, step: str) -> Signal | Tailed:
    word, _, argument = step.partition(":")
    if word in ("relu", "square"):
        return chain.activate(signal, "relu" if word == "relu" else "square", step)
    if word == "leaky_relu":
        try:
            slope = float(argument or 0.01)
        except ValueError:
            raise LoadError(f"slope {argument!r} is no number", remedy="write leaky_relu:0.01") from None
        return activations.leaky_relu(chain, signal, slope, step)
    if word == "relu6":
        return activations.clip(chain, signal, 0.0, 6.0, step)
    if word == "abs":
        return activations.absolute(chain, signal, step)
    if word == "identity":
        return signal
    return end_network(signal, "softmax" if word == "softmax" else word, step)  # type: ignore[arg-type]
