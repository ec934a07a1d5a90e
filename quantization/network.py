"""A network whose weights are sums of scaled integer codes.

A layer is ``z = (Σ_p scale_p ⊙ codes_p) h + bias``: one plane for ternary, two trit planes, or a ternary plane
and an int8 plane that holds only the protected columns. Everything downstream (files, engines, reports) reads
planes and never asks which quantiser made them.

Axes: ``batch``, ``n_in``, ``n_out``, ``groups`` (runs of columns that share a scale).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from deploy.arrays import Array, frozen
from deploy.errors import InputError

__all__ = ["Plane", "QuantizedLayer", "QuantizedMlp", "round_to_float32"]


def round_to_float32(values: Array) -> Array:
    """Round to the nearest float32, kept as float64: what files hold is what is evaluated."""
    return np.asarray(values, dtype=np.float32).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Plane:
    """Integer codes with one scale for each row and each run of `group` columns.

    Parameters
    ----------
    codes : (n_out, n_in) int8 in -levels..levels.
    scales : (n_out, groups) float64, finite and >= 0; a zero scale goes with zero codes only.
    levels : 1 for ternary, 3 for seven levels, 7 for fifteen, 127 for int8.
    group : columns that share a scale; n_in where one scale holds for the whole row.

    Examples
    --------
    >>> plane = Plane(np.array([[1, 0, -1]], np.int8), np.array([[0.5]]))
    >>> plane.weight.tolist()
    [[0.5, 0.0, -0.5]]
    """

    codes: Array
    scales: Array
    levels: int = 1
    group: int = 0

    def __post_init__(self) -> None:
        codes = np.array(self.codes, dtype=np.int8, order="C")
        codes.flags.writeable = False
        object.__setattr__(self, "codes", codes)
        object.__setattr__(self, "scales", frozen(self.scales, ndim=2))
        if self.group <= 0:
            object.__setattr__(self, "group", codes.shape[1])
        groups = -(-codes.shape[1] // self.group)
        if self.scales.shape != (codes.shape[0], groups):
            raise InputError(f"scales of shape {self.scales.shape}, expected {(codes.shape[0], groups)}")
        if np.abs(codes.astype(np.int16)).max(initial=0) > self.levels:
            raise InputError(f"codes reach {np.abs(codes.astype(np.int16)).max()}, the grid ends at {self.levels}")
        if not (np.isfinite(self.scales).all() and (self.scales >= 0).all()):
            raise InputError("scales must be finite and >= 0")

    @property
    def spread_scales(self) -> Array:
        """Scale of each code: (n_out, n_in)."""
        return np.repeat(self.scales, self.group, axis=1)[:, : self.codes.shape[1]]

    @property
    def weight(self) -> Array:
        """codes times scales: (n_out, n_in) float64."""
        return np.asarray(self.codes * self.spread_scales)

    def with_scales(self, scales: Array) -> Plane:
        """The same codes under other scales (n_out, groups); a negative scale turns its codes round."""
        negative = scales < 0
        if negative.any():
            turned = np.repeat(negative, self.group, axis=1)[:, : self.codes.shape[1]]
            return replace(self, codes=np.where(turned, -self.codes, self.codes), scales=np.abs(scales))
        return replace(self, scales=scales)


@dataclass(frozen=True, eq=False)
class QuantizedLayer:
    """z = (Σ planes) (columns ⊙ h) + bias.

    Parameters
    ----------
    planes : all of shape (n_out, n_in).
    bias : (n_out,).
    columns : (n_in,) powers of two that the inputs are multiplied by, or None for ones. Inside a network they cost
        nothing, see :meth:`QuantizedMlp.of`.
    method : which quantiser made it, for reports.
    """

    planes: tuple[Plane, ...]
    bias: Array
    method: str = ""
    name: str = ""
    columns: Array | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "bias", frozen(self.bias, ndim=1))
        if self.columns is not None:
            object.__setattr__(self, "columns", frozen(self.columns, ndim=1))

    @property
    def shape(self) -> tuple[int, int]:
        """(n_out, n_in)."""
        n_out, n_in = self.planes[0].codes.shape
        return int(n_out), int(n_in)

    @cached_property
    def weight(self) -> Array:
        """Sum of the planes times the column factors: (n_out, n_in) float64, read-only."""
        total = self.planes[0].weight
        for plane in self.planes[1:]:
            total = total + plane.weight
        return frozen(total if self.columns is None else total * self.columns)

    def __call__(self, h: Array) -> Array:
        """Apply to rows: (batch, n_in) -> (batch, n_out)."""
        return np.asarray(h @ self.weight.T + self.bias)

    def times(self, factors: Array) -> QuantizedLayer:
        """The layer whose outputs are multiplied by `factors` (n_out,) > 0."""
        planes = tuple(replace(plane, scales=plane.scales * factors[:, None]) for plane in self.planes)
        return replace(self, planes=planes, bias=self.bias * factors)

    def rounded(self) -> QuantizedLayer:
        """The same layer with scales and bias as float32 holds them; a scale that vanishes drops its codes."""
        planes = []
        for plane in self.planes:
            scales = round_to_float32(plane.scales)
            codes = np.where(np.repeat(scales == 0, plane.group, axis=1)[:, : self.shape[1]], 0, plane.codes)
            planes.append(replace(plane, codes=codes, scales=scales))
        return replace(self, planes=tuple(planes), bias=round_to_float32(self.bias))


@dataclass(frozen=True, eq=False)
class QuantizedMlp:
    """Quantised layers with a ReLU between each two.

    :meth:`logits` is evaluated in float64 from codes and scales as they are stored.
    """

    layers: tuple[QuantizedLayer, ...]

    @property
    def n_in(self) -> int:
        """Number of inputs."""
        return self.layers[0].shape[1]

    @property
    def n_out(self) -> int:
        """Number of logits."""
        return self.layers[-1].shape[0]

    @property
    def weights(self) -> int:
        """Number of weights, biases apart."""
        return sum(layer.shape[0] * layer.shape[1] for layer in self.layers)

    def preactivations(self, x: Array) -> list[Array]:
        """z of each layer, the logits last: arrays (batch, n_out) of rows (batch, n_in)."""
        found: list[Array] = []
        h = np.asarray(x, dtype=np.float64)
        for layer in self.layers:
            z = layer(h)
            found.append(z)
            h = np.maximum(z, 0.0)
        return found

    def logits(self, x: Array) -> Array:
        """Evaluate rows: (batch, n_in) -> (batch, n_out)."""
        return self.preactivations(x)[-1]

    @classmethod
    def of(cls, layers: Sequence[QuantizedLayer]) -> QuantizedMlp:
        """Put layers together as float32 holds them.

        Column factors c of a hidden layer move into the rows before it, since ``c relu(z) = relu(c z)`` for c >
        0; only the first layer keeps its own, as a scaling of the network's inputs.
        """
        folded = list(layers)
        for index in range(1, len(folded)):
            factors = folded[index].columns
            if factors is not None:
                folded[index - 1] = folded[index - 1].times(factors)
                folded[index] = replace(folded[index], columns=None)
        return cls(tuple(layer.rounded() for layer in folded))
