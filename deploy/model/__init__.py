"""Networks as the trunk knows them: the feed-forward chain and the equilibrium network."""

from deploy.model.decision import Decision, Rule
from deploy.model.equilibrium import Equilibrium, FixedPoint
from deploy.model.mlp import Activation, Affine, Mlp, apply_activation
from deploy.model.network import Tail, apply_tail

Model = Mlp | Equilibrium

__all__ = [
    "Activation",
    "Affine",
    "Decision",
    "Equilibrium",
    "FixedPoint",
    "Mlp",
    "Model",
    "Rule",
    "Tail",
    "apply_activation",
    "apply_tail",
]
