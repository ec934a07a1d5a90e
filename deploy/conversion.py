"""From a model and calibration rows to deployments, and from those to a bundle.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from deploy.bundle import Bundle, TargetEntry, bundle_files, write_bundle
from deploy.dataset import Calibration, HeldOut, check_disjoint, row_hashes
from deploy.errors import DataError, ModelRefused, PlanError, UsageError
from deploy.fidelity import Fidelity, measure_fidelity
from deploy.interface import Feature, InputGuard, Interface
from deploy.progress import SILENT, Progress
from deploy.ranges import calibrated_boxes, calibration_guard
from deploy.registry import target

if TYPE_CHECKING:
    from deploy.arrays import Array
    from deploy.model import Model
    from deploy.target import Deployment, Refusal

__all__ = ["Conversion", "Converted", "check_inputs", "check_width", "convert", "extend", "interface_of"]


@dataclass(frozen=True, eq=False)
class Converted:
    """One target's deployment, how it did, and how long it took."""

    deployment: Deployment
    options: BaseModel
    calibration: Fidelity
    held_out: Fidelity | None
    seconds: float


@dataclass(frozen=True, eq=False)
class Conversion:
    """A model's deployments, not yet written.

    Parameters
    ----------
    model : the float model.
    calibration : rows that were looked at.
    interface : what clients will know.
    converted : by target name.
    refused : targets that cannot take the model, and why.
    seed : what the random numbers came from.
    kept : the bundle that is extended, or None.
    """

    model: Model
    calibration: Calibration
    interface: Interface
    converted: Mapping[str, Converted]
    refused: Mapping[str, Refusal]
    seed: int
    kept: Bundle | None = field(default=None)

    def files(self) -> dict[str, bytes]:
        """Every file of the bundle; byte-identical when made again."""
        boxes = calibrated_boxes(self.model, self.calibration.x)
        guard = {
            "kind": "estimated",
            "boxes": [{"low": box.low.tolist(), "high": box.high.tolist()} for box in boxes],
        }
        entries = {
            name: TargetEntry(
                item.deployment,
                item.options,
                {"agreement": item.calibration.agreement, "kl": item.calibration.kl},
                target(name).guarantee,
                target(name).non_guarantee,
            )
            for name, item in self.converted.items()
        }
        return bundle_files(
            self.model,
            entries,
            interface=self.interface,
            calibration_hashes=row_hashes(self.calibration.x),
            activation_guard=guard,
            seed=self.seed,
            kept=self.kept,
        )

    def write(self, path: str | Path, *, force: bool = False) -> Bundle:
        """Write the bundle whole or not at all, and read it back.

        Raises
        ------
        OutputExists, StorageError : nothing was changed.
        ModelRefused : every target refused the model.
        BundleError : the bundle that is extended was replaced by another one in the meantime.
        """
        if not self.converted:
            name, refusal = next(iter(self.refused.items()))
            raise ModelRefused(refusal.cause, remedy=refusal.remedy, place=f"target {name}")
        now = self
        if self.kept is not None and Path(path) == self.kept.path:
            now = replace(self, kept=self.kept.read_again())
        write_bundle(Path(path), now.files(), force=force)
        return Bundle.read(path)

    def document(self, bundle: str | None = None) -> dict[str, Any]:
        """The JSON of ``convert``."""
        targets: dict[str, Any] = {}
        for name, item in self.converted.items():
            held_out = item.held_out
            targets[name] = {
                **dict(item.deployment.summary()),
                "calibration_agreement": item.calibration.agreement,
                "held_out_agreement": None if held_out is None else held_out.agreement,
                "held_out_interval": None if held_out is None else list(held_out.agreement_interval),
                "kl": (held_out or item.calibration).kl,
                "seconds": item.seconds,
                "cost": [quantity.document() for quantity in item.deployment.cost()],
            }
        refused = {name: {"cause": item.cause, "remedy": item.remedy} for name, item in self.refused.items()}
        return {"bundle": bundle, "model": dict(self.model.summary()), "targets": targets, "refused": refused}


def interface_of(model: Model, guard: InputGuard) -> Interface:
    """What clients will know of a model."""
    return Interface(model.decision, model.classes, model.n_out, model.input_shape, model.tail, guard)


def check_width(model: Model, rows: Calibration | HeldOut) -> Array:
    """Give the rows (batch, n_in) back, or raise :class:`deploy.errors.DataError` naming their file."""
    try:
        return model.check_rows(rows.x)
    except DataError as error:
        raise error.at(rows.source) from None


def check_inputs(
    model: Model,
    calibration: Calibration,
    *,
    held_out: HeldOut | None = None,
    guard: InputGuard | None = None,
    seen: frozenset[bytes] = frozenset(),
) -> None:
    """Check what a conversion is given, before its work and in a dry run.

    Parameters
    ----------
    seen : hashes of rows that were calibrated on before (of a bundle that is extended).

    Raises
    ------
    DataError : rows or a box of the wrong width. OverlapError : held-out rows that were calibrated on.
    """
    check_width(model, calibration)
    if held_out is not None:
        check_width(model, held_out)
        check_disjoint(held_out, seen | frozenset(row_hashes(calibration.x)))
    if guard is not None and len(guard.features) != model.n_in:
        raise DataError(f"the stated input box has {len(guard.features)} features, the model {model.n_in}")


def convert(
    model: Model,
    calibration: Calibration,
    options: Mapping[str, BaseModel],
    *,
    seed: int = 0,
    held_out: HeldOut | None = None,
    guard: InputGuard | None = None,
    progress: Progress = SILENT,
) -> Conversion:
    """Convert a model for each target.

    Parameters
    ----------
    model : what was loaded.
    calibration : rows (rows, n_in); labels are not used.
    options : options of each wanted target by its name, see :func:`deploy.options.parse_options`.
    seed : the same seed gives the same bytes.
    held_out : rows to judge on, not looked at by any conversion.
    guard : box of each input, stated by the user; without it, one is rounded from the calibration rows.
    progress : shows the stages.

    Raises
    ------
    DataError : rows of the wrong width. OverlapError : held-out rows among the calibration rows.
    RequirementMissing : a target needs something that is not installed.
    """
    if not options:
        raise UsageError("no target was chosen", remedy="give --target, relu-deploy targets lists them")
    check_inputs(model, calibration, held_out=held_out, guard=guard)
    x = model.check_rows(calibration.x)
    if guard is None:
        guard = calibration_guard(x, model.features or calibration.features)
    original = model.logits(x)
    converted: dict[str, Converted] = {}
    refused: dict[str, Refusal] = {}
    for name, choice in options.items():
        result = _convert_one(name, model, calibration, choice, seed=seed, progress=progress)
        if not isinstance(result, tuple):
            refused[name] = result
            continue
        deployment, seconds = result
        converted[name] = Converted(
            deployment,
            choice,
            measure_fidelity(model.decision, original, deployment.logits(x), x),
            None if held_out is None else _judge(model, deployment, held_out),
            seconds,
        )
    return Conversion(model, calibration, interface_of(model, guard), converted, refused, seed)


def _convert_one(
    name: str, model: Model, calibration: Calibration, options: BaseModel, *, seed: int, progress: Progress
) -> tuple[Deployment, float] | Refusal:
    from deploy.target import Refusal

    found = target(name)
    refusal = found.accepts(model, options)
    if refusal is not None:
        return refusal
    word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    started = time.perf_counter()
    try:
        deployment = found.convert(
            model, calibration, options, rng=np.random.default_rng([seed, word]), progress=progress
        )
    except (ModelRefused, PlanError) as error:
        place = f"{error.place}: " if error.place else ""
        return Refusal(f"{place}{error.cause}", error.remedy)
    return deployment, time.perf_counter() - started


def _judge(model: Model, deployment: Deployment, rows: HeldOut) -> Fidelity:
    return measure_fidelity(
        model.decision, model.logits(rows.x), deployment.logits(rows.x), rows.x, numbers=rows.numbers
    )


def extend(
    bundle: Bundle,
    calibration: Calibration,
    options: Mapping[str, BaseModel],
    *,
    seed: int | None = None,
    held_out: HeldOut | None = None,
    progress: Progress = SILENT,
) -> Conversion:
    """Convert a bundle's model for more targets; writing keeps the targets that are there.

    Parameters are those of :func:`convert`; the seed defaults to the bundle's.
    """
    if held_out is not None:
        check_disjoint(held_out, bundle.calibration_hashes)
    conversion = convert(
        bundle.model,
        calibration,
        options,
        seed=bundle.manifest.seed if seed is None else seed,
        held_out=held_out,
        guard=bundle.interface.guard,
        progress=progress,
    )
    return Conversion(
        conversion.model,
        calibration,
        bundle.interface,
        conversion.converted,
        conversion.refused,
        conversion.seed,
        kept=bundle,
    )


def stated_guard(low: Array, high: Array, names: tuple[str, ...] | None = None) -> InputGuard:
    """An input box that the user vouches for: (n_in,) lower and upper ends."""
    if low.shape != high.shape or low.ndim != 1:
        raise DataError(f"an input box needs two ends per feature, given {low.shape} and {high.shape}")
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        feature = int(np.argmin(np.isfinite(low) & np.isfinite(high)))
        raise DataError(f"the input box is not finite at feature {feature}: {low[feature]}:{high[feature]}")
    if not (low <= high).all():
        raise DataError(f"the lower end exceeds the upper end at feature {int(np.argmax(low > high))}")
    features = tuple(
        Feature(names[index] if names else f"x{index}", float(a), float(b))
        for index, (a, b) in enumerate(zip(low, high, strict=True))
    )
    return InputGuard(features, "stated")
