"""What became of each layer, in numbers.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

import numpy as np

from deploy.arrays import Array
from deploy.model import Mlp
from deploy.target import Json
from quantization.files import stored_codes
from quantization.network import QuantizedMlp
from quantization.packing import packed_bytes

__all__ = ["report_layers"]


def report_layers(model: Mlp, network: QuantizedMlp, x: Array) -> list[Json]:
    """One record a layer, from calibration rows x (batch, n_in).

    ``zeros``: share of zero codes. ``sign_flips``: share of the non-zero codes whose sign is not their weight's;
    good rounding with feedback flips some. ``weight_error``, ``output_error``: squared error over energy of the
    weights, and of the pre-activations with every layer before it quantised too. ``bits_per_weight``: codes and
    scales on disk.
    """
    records: list[Json] = []
    theirs, ours = model.preactivations(x), network.preactivations(x)
    scales_before = np.ones(model.n_in)
    for index, (affine, layer) in enumerate(zip(model.affines, network.layers, strict=True)):
        following = network.layers[index + 1] if index + 1 < len(network.layers) else None
        ratio = np.ones(affine.n_out) if following is None else _gain(theirs[index], ours[index])
        effective = layer.weight / ratio[:, None] * scales_before
        nonzero = layer.weight != 0
        plane_bytes = sum(
            packed_bytes(stored_codes(plane).size, plane.levels) + 4 * plane.scales.size for plane in layer.planes
        )
        records.append(
            {
                "name": layer.name,
                "method": layer.method,
                "shape": list(layer.shape),
                "zeros": float(np.mean([np.mean(plane.codes == 0) for plane in layer.planes])),
                "sign_flips": float(np.mean((np.sign(layer.weight) != np.sign(affine.weight))[nonzero]))
                if nonzero.any()
                else 0.0,
                "weight_error": _relative(effective - affine.weight, affine.weight),
                "output_error": _relative(
                    ours[index] / ratio - theirs[index], theirs[index] - theirs[index].mean(axis=0)
                ),
                "bits_per_weight": 8 * plane_bytes / affine.weight.size,
                "zero_rows": int((~layer.weight.any(axis=1)).sum()),
            }
        )
        scales_before = ratio
    return records


def _gain(theirs: Array, ours: Array) -> Array:
    """Power of two that each unit was scaled by, see :meth:`quantization.network.QuantizedMlp.of`: (units,)."""
    energy = (theirs**2).sum(axis=0)
    slope = np.where(energy > 0, (theirs * ours).sum(axis=0) / np.where(energy > 0, energy, 1.0), 1.0)
    return np.asarray(2.0 ** np.rint(np.log2(np.maximum(slope, 2.0**-60))))


def _relative(difference: Array, whole: Array) -> float:
    energy = float(np.sum(whole**2))
    return float(np.sum(difference**2)) / energy if energy > 0 else 0.0
