"""What every format's reader gives back, and how it becomes a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from deploy.errors import InputError, LoadError
from deploy.loaders.chain import Chain
from deploy.loaders.tails import Ending, infer_rule
from deploy.loaders.weights import MAX_PARAMETERS
from deploy.model import Decision, Mlp

__all__ = ["Loaded", "Settings", "build_model"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the caller says about a file; None leaves it to the file."""

    decision: Decision | None = None
    layers: tuple[str, ...] | None = None
    classes: tuple[str | int, ...] | None = None
    features: tuple[str, ...] | None = None
    input_shape: tuple[int, ...] | None = None
    max_parameters: int = MAX_PARAMETERS


@dataclass(frozen=True, slots=True)
class Loaded:
    """A finished chain, its ending, and the shape of one row."""

    chain: Chain
    ending: Ending
    input_shape: tuple[int, ...]
    features: tuple[str, ...] | None = None
    notes: Sequence[str] = field(default=())


def build_model(loaded: Loaded, settings: Settings) -> Mlp:
    """Put a reader's findings and the caller's wishes together."""
    chain, ending = loaded.chain, loaded.ending
    n_out = chain.affines[-1].n_out
    decision = settings.decision or Decision(ending.rule or infer_rule(n_out, ending.tail))
    classes = settings.classes or ending.classes
    notes = [*loaded.notes, *chain.notes]
    if ending.tail != "none":
        notes.append(f"{ending.tail} at the end was stripped; outputs() applies it again")
    if settings.decision is None and decision.rule == "value":
        notes.append(
            "one output decides by value, equal to the last bit: give a tolerance (--decision value --tolerance T), or "
            "--decision sign where it is a score"
        )
    expected = 2 if decision.rule == "sign" else n_out
    if classes is not None and len(classes) != expected:
        if settings.classes is not None:
            raise LoadError(f"{len(classes)} class labels for {expected} classes")
        notes.append(f"{len(classes)} class labels were dropped: the decision has {expected} classes")
        classes = None
    try:
        return Mlp(
            tuple(chain.affines),
            tuple(chain.activations),
            decision,
            input_shape=loaded.input_shape,
            tail=ending.tail,
            classes=classes,
            features=settings.features or loaded.features,
            notes=tuple(notes),
        )
    except InputError as error:
        raise LoadError(error.cause, remedy=error.remedy, place=error.place) from None
