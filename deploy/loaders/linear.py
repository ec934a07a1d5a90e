"""Linear operators on signals by index arithmetic: matrix products, convolutions, pooling.

Each operator is written as out[i] = sum over k of coefficient[i, k] * x[index[i, k]]. Products with one row or
column go straight to a dense matrix; everything else becomes a sparse one.

Axes: ``batch`` (of the file, length 1), ``channels``, then spatial axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders.signal import Matrix, Signal
from deploy.loaders.weights import check_size, doubled

__all__ = [
    "average_pool",
    "convolve",
    "multiply_left",
    "multiply_right",
    "normalise",
    "pad",
    "reduce_axes",
    "transpose_convolve",
]

_ENTRY = 4
"""An entry of an index table needs as much memory, with its coefficient, as this many of a dense matrix."""


def multiply_right(signal: Signal, matrix: Array) -> Signal:
    """signal @ matrix, with numpy's rules for 1-D and batched operands."""
    shape = _product_shape(signal.shape, matrix.shape)
    if matrix.ndim == 2 and signal.size == matrix.shape[0]:
        return signal.mapped(doubled(matrix.T), shape)
    x = signal.indices()
    x = x.reshape(1, -1) if x.ndim == 1 else x
    c: Array = np.arange(matrix.size).reshape(matrix.shape)
    c = c.reshape(-1, 1) if c.ndim == 1 else c
    lead = np.broadcast_shapes(x.shape[:-2], c.shape[:-2])
    full: tuple[int, ...] = (*lead, x.shape[-2], c.shape[-1], x.shape[-1])
    check_size(math.prod(full), signal.limit // _ENTRY, "the index table of the matrix product")
    index = np.broadcast_to(x[..., :, None, :], full)
    coefficient = matrix.ravel()[np.broadcast_to(c.swapaxes(-1, -2)[..., None, :, :], full)]
    return signal.mapped(_sparse(index, coefficient, signal.size), shape)


def multiply_left(matrix: Array, signal: Signal) -> Signal:
    """matrix @ signal, with numpy's rules for 1-D and batched operands."""
    shape = _product_shape(matrix.shape, signal.shape)
    if matrix.ndim == 2 and signal.size == matrix.shape[1]:
        return signal.mapped(doubled(matrix), shape)
    x = signal.indices()
    x = x.reshape(-1, 1) if x.ndim == 1 else x
    c: Array = np.arange(matrix.size).reshape(matrix.shape)
    c = c.reshape(1, -1) if c.ndim == 1 else c
    lead = np.broadcast_shapes(x.shape[:-2], c.shape[:-2])
    full: tuple[int, ...] = (*lead, c.shape[-2], x.shape[-1], x.shape[-2])
    check_size(math.prod(full), signal.limit // _ENTRY, "the index table of the matrix product")
    index = np.broadcast_to(x.swapaxes(-1, -2)[..., None, :, :], full)
    coefficient = matrix.ravel()[np.broadcast_to(c[..., :, None, :], full)]
    return signal.mapped(_sparse(index, coefficient, signal.size), shape)


def _product_shape(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    if not left or not right:
        raise LoadError(f"a matrix product of shapes {list(left)} and {list(right)}")
    inner, outer = left[-1], right[max(len(right) - 2, 0)]
    if inner != outer:
        raise LoadError(f"a matrix product of shapes {list(left)} and {list(right)}: {inner} is not {outer}")
    try:
        lead = np.broadcast_shapes(left[:-2], right[:-2])
    except ValueError:
        raise LoadError(f"a matrix product of shapes {list(left)} and {list(right)}") from None
    return (*lead, *left[-2:-1], *(right[-1:] if len(right) > 1 else ()))


def _sparse(index: Array, coefficient: Array, size: int) -> Matrix:
    """Rows of `coefficient` (…, k) at columns `index` (…, k); index -1 is padding and counts nothing."""
    columns = index.reshape(-1, index.shape[-1])
    values = np.asarray(np.broadcast_to(coefficient, index.shape), dtype=np.float64).reshape(columns.shape)
    inside = columns >= 0
    starts = np.concatenate([[0], np.cumsum(inside.sum(axis=1))])
    matrix: Matrix = csr_array((values[inside], columns[inside], starts), shape=(len(columns), size))
    matrix.sum_duplicates()
    return matrix


def _windows(
    shape: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> tuple[Array, tuple[int, ...]]:
    """Flat spatial index of every window position (positions, taps), -1 in the padding, and the output's shape.

    `pads` lists the starts, then the ends, as ONNX does.
    """
    axes = len(kernel)
    flat = np.zeros((1, 1), dtype=np.int64)
    inside = np.ones((1, 1), dtype=bool)
    out: list[int] = []
    for axis in range(axes):
        span = dilations[axis] * (kernel[axis] - 1) + 1
        length = (shape[axis] + pads[axis] + pads[axis + axes] - span) // strides[axis] + 1
        if length < 1:
            raise LoadError(f"a kernel of {span} does not fit into {shape[axis]} entries of axis {axis + 2}")
        start = np.arange(length)[:, None] * strides[axis] - pads[axis]
        place = start + np.arange(kernel[axis])[None] * dilations[axis]
        good = (place >= 0) & (place < shape[axis])
        positions, taps = len(flat) * length, flat.shape[1] * kernel[axis]
        flat = (flat[:, None, :, None] * shape[axis] + place[None, :, None, :]).reshape(positions, taps)
        inside = (inside[:, None, :, None] & good[None, :, None, :]).reshape(positions, taps)
        out.append(length)
    return np.where(inside, flat, -1), tuple(out)


def convolve(
    signal: Signal,
    weight: Array,
    *,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Signal:
    """Convolution of (1, channels, *spatial) with weight (outputs, channels / groups, *kernel)."""
    _, channels, *spatial = signal.shape
    outputs, depth, *kernel = weight.shape
    if groups < 1 or depth * groups != channels or outputs % groups:
        raise LoadError(f"Conv weight of shape {list(weight.shape)} in {groups} groups over {channels} channels")
    taps = math.prod(kernel)
    places, out = _window_table(signal, spatial, kernel, strides, pads, dilations, outputs * depth)
    count = math.prod(spatial)
    group = np.arange(outputs) // (outputs // groups)
    channel = group[:, None] * depth + np.arange(depth)[None]
    index = places[None, :, None, :] + (channel * count)[:, None, :, None]
    index = np.where(places[None, :, None, :] < 0, -1, index)
    full = (outputs, len(places), depth, taps)
    coefficient = np.broadcast_to(weight.reshape(outputs, 1, depth, taps), full)
    matrix = _sparse(index.reshape(*full[:2], -1), coefficient.reshape(*full[:2], -1), signal.size)
    return signal.mapped(matrix, (1, outputs, *out))


def transpose_convolve(
    signal: Signal,
    weight: Array,
    *,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    output_padding: Sequence[int],
) -> Signal:
    """Transposed convolution with weight (channels, outputs / groups, *kernel): the adjoint of a convolution."""
    _, channels, *spatial = signal.shape
    _, depth, *kernel = weight.shape
    axes = len(kernel)
    out = [
        strides[a] * (spatial[a] - 1)
        + output_padding[a]
        + dilations[a] * (kernel[a] - 1)
        + 1
        - pads[a]
        - pads[a + axes]
        for a in range(axes)
    ]
    if weight.shape[0] != channels or groups < 1 or channels % groups or min(out) < 1:
        raise LoadError(f"ConvTranspose weight of shape {list(weight.shape)} in {groups} groups, output {out}")
    target = Signal(0, depth * groups * math.prod(out), (1, depth * groups, *out), limit=signal.limit)
    ends = [
        (spatial[a] - 1) * strides[a] + dilations[a] * (kernel[a] - 1) + 1 - out[a] - pads[a] for a in range(axes)
    ]
    forward = convolve(
        target, weight, strides=strides, pads=[*pads[:axes], *ends], dilations=dilations, groups=groups
    )
    assert forward.matrix is not None
    return signal.mapped(csr_array(forward.matrix.T), target.shape)


def average_pool(
    signal: Signal,
    kernel: Sequence[int],
    *,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    count_padding: bool,
) -> Signal:
    """Mean over windows of (1, channels, *spatial); padding counts in the mean where `count_padding` says so."""
    _, channels, *spatial = signal.shape
    places, out = _window_table(signal, spatial, kernel, strides, pads, dilations, channels)
    inside = places >= 0
    counts = np.full(len(places), math.prod(kernel)) if count_padding else inside.sum(axis=1)
    if not counts.all():
        raise LoadError("an average over a window that lies in the padding alone")
    index = np.where(inside[None], places[None] + (np.arange(channels) * math.prod(spatial))[:, None, None], -1)
    coefficient = np.broadcast_to((1.0 / counts)[None, :, None], index.shape)
    return signal.mapped(_sparse(index, coefficient, signal.size), (1, channels, *out))


def _window_table(
    signal: Signal,
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    copies: int,
) -> tuple[Array, tuple[int, ...]]:
    """Check the geometry and its size, then list the windows."""
    axes = len(kernel)
    geometry = (len(spatial), len(strides), len(dilations), len(pads) // 2)
    if signal.shape[0] != 1 or not axes or any(length != axes for length in geometry):
        raise LoadError(f"a window of shape {list(kernel)} over a tensor of shape {list(signal.shape)}")
    if min(*kernel, *strides, *dilations) < 1 or max(map(abs, pads), default=0) > signal.limit:
        raise LoadError(
            f"kernel {list(kernel)}, strides {list(strides)}, dilations {list(dilations)}, pads {list(pads)}"
        )
    positions = [
        (spatial[a] + pads[a] + pads[a + axes] - dilations[a] * (kernel[a] - 1) - 1) // strides[a] + 1
        for a in range(axes)
    ]
    entries = math.prod(max(length, 0) for length in positions) * math.prod(kernel) * copies
    check_size(entries, signal.limit // _ENTRY, "the index table of the windows")
    return _windows(spatial, kernel, strides, pads, dilations)


def reduce_axes(signal: Signal, axes: Sequence[int], *, keep: bool, mean: bool) -> Signal:
    """Sum or mean over axes (all of them where none are given)."""
    rank = len(signal.shape)
    if any(not -rank <= axis < rank for axis in axes):
        raise LoadError(f"axes {list(axes)} of a tensor of shape {list(signal.shape)}")
    gone = sorted({axis % rank for axis in axes}) if axes else list(range(rank))
    rest = [axis for axis in range(rank) if axis not in gone]
    count = math.prod(signal.shape[axis] for axis in gone)
    index = signal.indices().transpose(*rest, *gone).reshape(-1, count)
    matrix = _sparse(index, np.full((1, 1), 1.0 / count if mean else 1.0), signal.size)
    kept = [1 if axis in gone else signal.shape[axis] for axis in range(rank)]
    return signal.mapped(matrix, tuple(kept if keep else [signal.shape[axis] for axis in rest]))


def pad(signal: Signal, widths: Sequence[tuple[int, int]], value: float) -> Signal:
    """Surround with a constant; negative widths crop."""
    shape = [length + before + after for length, (before, after) in zip(signal.shape, widths, strict=True)]
    if min(shape) < 1:
        raise LoadError(f"padding {list(widths)} of shape {list(signal.shape)} leaves nothing")
    check_size(math.prod(shape), signal.limit, "the padded tensor")
    crop = tuple(slice(max(0, -a), n + min(0, b)) for n, (a, b) in zip(signal.shape, widths, strict=True))
    grow = [(max(0, before), max(0, after)) for before, after in widths]
    index = np.pad(signal.indices()[crop], grow, constant_values=-1)
    padded = signal.mapped(_sparse(index.reshape(-1, 1), np.ones((1, 1)), signal.size), tuple(shape))
    return padded.shifted(np.where(index < 0, value, 0.0)) if value else padded


def normalise(
    signal: Signal,
    shape: Sequence[int],
    scale: Array,
    shift: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: float,
) -> Signal:
    """Batch normalisation: scale * (x - mean) / sqrt(variance + epsilon) + shift, parameters read in `shape`."""
    parameters = [np.asarray(array, dtype=np.float64) for array in (scale, shift, mean, variance)]
    if any(array.size != math.prod(shape) for array in parameters):
        raise LoadError(
            f"parameters of {[array.size for array in parameters]} entries for {math.prod(shape)} channels"
        )
    if not math.isfinite(epsilon) or not np.all(parameters[3] + epsilon > 0):
        raise LoadError(f"variance + epsilon is not positive (least variance {parameters[3].min():.3g})")
    gain = parameters[0] / np.sqrt(parameters[3] + epsilon)
    return signal.scaled(gain.reshape(shape)).shifted((parameters[1] - parameters[2] * gain).reshape(shape))
