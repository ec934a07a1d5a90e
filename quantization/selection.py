"""Choose the network to keep by its loss on calibration rows.

The weight-only rules come first, with the bias kept and repaired: they are the floor. Then recipes for error
feedback are compared, on rows left out where rows are few, and the best of them are refined by beam search and
by distillation. Whatever has the least loss over all calibration rows is kept, so the kept network is never
worse there than any weight-only rule: by construction, not by hope.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from deploy.progress import SILENT, Progress
from quantization.distillation import distill
from quantization.evidence import Evidence
from quantization.layerwise import BiasRule, Memory, quantize_network
from quantization.network import QuantizedLayer, QuantizedMlp
from quantization.recipe import Recipe

__all__ = ["BASELINES", "Candidate", "Selection", "select"]

BASELINES = (
    Recipe("absmean", "tensor"),
    Recipe("twn", "tensor"),
    Recipe("exact", "row"),
)

FEW_ROWS = 2000
"""Below this recipes are compared on left-out rows, in four folds."""

_SMALL_WORK = 1e8

_BEAM_WORK = 8e8
"""Beam width times n_in² n_out that a layer is given: width 4 at 256 x 784, 32 up to 64 x 620."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A quantised network and its loss on all calibration rows."""

    name: str
    network: QuantizedMlp
    loss: float


@dataclass(frozen=True, eq=False)
class Selection:
    """What was tried, by loss; the first is kept."""

    tried: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """The candidate of least loss."""
        return self.tried[0]


def select(
    evidence: Evidence,
    *,
    template: Recipe | None = None,
    int8_last: bool = False,
    beam: int | None = None,
    rng: np.random.Generator,
    progress: Progress = SILENT,
) -> Selection:
    """Try everything and sort by loss.

    Parameters
    ----------
    evidence : the float network on the calibration rows.
    template : what every recipe for feedback starts from: levels, planes, protected columns.
    int8_last : the last layer has 255 levels.
    beam : width of the beam search; None takes what the sizes allow, 0 leaves it out.
    rng : folds and the rows that distillation leaves out.
    """
    affines = evidence.model.affines
    template = template or Recipe()
    tried: list[Candidate] = []

    def judge(name: str, layers: Sequence[QuantizedLayer]) -> None:
        network = QuantizedMlp.of(layers)
        tried.append(Candidate(name, network, evidence.loss(network.layers)))

    rules: tuple[BiasRule, ...] = ("keep", "repair")
    floor = BASELINES if template.levels == 1 else (*BASELINES, Recipe("uniform", levels=template.levels))
    with progress.stage("ternary: weight-only rules", len(floor) * len(rules)) as advance:
        for recipe in floor:
            for rule in rules:
                judge(f"{recipe.name}, bias {rule}", quantize_network(evidence, [recipe] * len(affines), bias=rule))
                advance(1)
    memory: Memory = {}
    plans = _compare_plans(evidence, memory, template, int8_last, rng, progress)
    finalists = plans[: 3 if _is_small(evidence) else 1]
    widths = [_beam_width(affine.weight.shape, beam) for affine in affines]
    with progress.stage("ternary: finalists", 2 * len(finalists)) as advance:
        for plan in finalists:
            judge(_plan_name(plan), quantize_network(evidence, plan, memory=memory))
            advance(1)
            wider = [
                replace(recipe, beam=width if recipe.levels < 127 else 0)
                for recipe, width in zip(plan, widths, strict=True)
            ]
            if wider != plan:
                judge(_plan_name(wider), quantize_network(evidence, wider, memory=memory))
            advance(1)
    with progress.stage("ternary: distillation of scales", 1) as advance:
        best = min(tried, key=lambda candidate: candidate.loss)
        judge(f"{best.name}, scales distilled", distill(evidence, best.network.layers, rng=rng))
        advance(1)
    return Selection(tuple(sorted(tried, key=lambda candidate: candidate.loss)))


Plan = list[Recipe]
"""One recipe for each layer."""


def _compare_plans(
    evidence: Evidence,
    memory: Memory,
    template: Recipe,
    int8_last: bool,
    rng: np.random.Generator,
    progress: Progress,
) -> list[Plan]:
    """Plans by their loss on rows that they were not made from, best first.

    Whole networks are compared first; where the network is small, each layer then tries the other balance in turn.
    """
    folds = _folds(evidence, rng)
    memories: list[Memory] = [memory if train is evidence else {} for train, _ in folds]
    small = _is_small(evidence)
    depth = len(evidence.model.affines)
    losses: dict[tuple[Recipe, ...], float] = {}

    def loss(plan: Plan) -> float:
        key = tuple(plan)
        if key not in losses:
            losses[key] = float(
                np.mean(
                    [
                        judge.loss(quantize_network(train, plan, memory=seen))
                        for (train, judge), seen in zip(folds, memories, strict=True)
                    ]
                )
            )
        return losses[key]

    dampings = (0.001, 0.003, 0.01, 0.03) if small else (0.003,)
    last = replace(template, weighting="outputs")
    if int8_last:
        last = replace(last, levels=127, planes=1, protected=0.0)
    bases = [*[replace(template, weighting="rows")] * (depth - 1), last]
    whole = [
        [replace(base, damping=damping, balance=balance) for base, balance in zip(bases, balances, strict=True)]
        for damping in dampings
        for balances in sorted({(0.0,) * depth, (0.0,) + (1.0,) * (depth - 1), (1.0,) * depth})
    ]
    with progress.stage("ternary: recipes", len(whole)) as advance:
        for plan in whole:
            loss(plan)
            advance(1)
    if small:
        with progress.stage("ternary: recipes layer by layer", depth) as advance:
            for at in range(depth):
                best = list(min(losses.items(), key=lambda item: item[1])[0])
                loss([*best[:at], replace(best[at], balance=1.0 - best[at].balance), *best[at + 1 :]])
                advance(1)
    return [list(plan) for plan in sorted(losses, key=losses.__getitem__)]


def _is_small(evidence: Evidence) -> bool:
    """Whether quantising the whole network a hundred times is a matter of seconds."""
    gram = sum(len(evidence.x) * affine.n_in**2 for affine in evidence.model.affines)
    feedback = sum(20 * affine.n_in**2 * affine.n_out for affine in evidence.model.affines)
    return gram + feedback < _SMALL_WORK


def _plan_name(plan: Plan) -> str:
    """The recipes, said once where they are all alike."""
    return "; ".join(dict.fromkeys(recipe.name for recipe in plan))


def _folds(evidence: Evidence, rng: np.random.Generator) -> list[tuple[Evidence, Evidence]]:
    """Pairs of rows to quantise on and rows to judge on."""
    rows = len(evidence.x)
    if rows >= FEW_ROWS or rows < 8:
        return [(evidence, evidence.probe)]
    parts = np.array_split(rng.permutation(rows), 4)
    return [
        (evidence.take(np.sort(np.concatenate(parts[:k] + parts[k + 1 :]))), evidence.take(np.sort(parts[k])))
        for k in range(4)
    ]


def _beam_width(shape: tuple[int, ...], beam: int | None) -> int:
    n_out, n_in = shape
    return min(32, int(_BEAM_WORK / (n_in * n_in * n_out))) if beam is None else beam
