"""Choose the network to keep by its loss on calibration rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from deploy.progress import SILENT, Progress
from quantization.evidence import Evidence
from quantization.layerwise import BiasRule, quantize_network
from quantization.network import QuantizedLayer
from quantization.recipe import Recipe

__all__ = ["BASELINES", "Candidate", "Selection", "select"]

BASELINES = (
    Recipe("absmean", "tensor"),
    Recipe("twn", "tensor"),
    Recipe("exact", "row"),
)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A quantised network and its calibration loss."""

    name: str
    layers: list[QuantizedLayer]
    loss: float


@dataclass(frozen=True, eq=False)
class Selection:
    """What was tried, by loss; the first is kept."""

    tried: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """The candidate of least loss."""
        return self.tried[0]


def select(evidence: Evidence, recipe: Recipe, *, progress: Progress = SILENT) -> Selection:
    """Try the recipe and the weight-only baselines, each with and without bias repair."""
    depth = len(evidence.model.affines)
    rules: tuple[BiasRule, ...] = ("keep", "repair")
    plans: list[tuple[str, Recipe, BiasRule]] = [
        (f"{base.name}, bias {rule}", base, rule) for base in BASELINES for rule in rules
    ]
    plans.append((recipe.name, recipe, "better"))
    plans.append((f"{recipe.name}, outputs", replace(recipe, weighting="outputs"), "better"))
    tried = []
    with progress.stage("ternary: candidates", len(plans)) as advance:
        for name, plan, rule in plans:
            layers = quantize_network(evidence, [plan] * depth, bias=rule)
            tried.append(Candidate(name, layers, evidence.loss(layers)))
            advance(1)
    return Selection(tuple(sorted(tried, key=lambda candidate: candidate.loss)))
