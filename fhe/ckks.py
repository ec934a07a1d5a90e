"""The ``ckks`` target; light to import, numerics are loaded when work begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from deploy.errors import BundleError
from deploy.target import Command, Refusal
from fhe.options import CkksOptions

if TYPE_CHECKING:
    import numpy as np
    from pydantic import BaseModel

    from deploy.cost import Quantity
    from deploy.dataset import Calibration
    from deploy.model import Model
    from deploy.progress import Progress
    from deploy.target import ClientRole, Deployment, ServerRole

__all__ = ["CkksTarget"]


class CkksTarget:
    """Polynomial activations found by separation, evaluated on CKKS ciphertexts."""

    name = "ckks"
    guarantee = (
        "inputs and answers are encrypted all the way (128-bit parameters); a certificate, where one is given, proves "
        "that every calibration decision is kept, or that no such polynomials can keep them"
    )
    non_guarantee = (
        "decisions on other rows are measured, not proved; the encryption error is estimated, not proved; rows "
        "outside the calibrated box may decide differently; answers say nothing about who computed them"
    )
    options: type[BaseModel] = CkksOptions

    def accepts(self, model: Model, options: Any) -> Refusal | None:
        """Take feed-forward chains of ReLU and squares."""
        if model.kind != "mlp":
            return Refusal(
                "an equilibrium network has no fixed depth, ciphertexts allow a few levels only",
                "use the circuit target",
            )
        if options.family != "per-unit" and len(model.activations) != 1:
            return Refusal(
                f"family={options.family} is for one hidden layer, this network has {len(model.activations)}",
                "use family=per-unit",
            )
        return None

    def predict_cost(self, model: Model, options: Any, *, calibration: Calibration | None) -> tuple[Quantity, ...]:
        """Plan the least-squares network, which costs what the fitted one will; nothing is known without rows."""
        if calibration is None or model.kind != "mlp":
            return ()
        from fhe.deployment import plan_cost

        return plan_cost(model, calibration.x, options)

    def convert(
        self,
        model: Model,
        calibration: Calibration,
        options: Any,
        *,
        rng: np.random.Generator,
        progress: Progress,
    ) -> Deployment:
        """Separate, then plan; the same arguments give the same bytes."""
        assert model.kind == "mlp"
        from fhe.deployment import convert_model

        return convert_model(model, calibration.x, options, rng=rng, progress=progress)

    def load(self, files: Mapping[str, bytes], *, model: Model) -> Deployment:
        """Read a deployment back."""
        assert model.kind == "mlp"
        from fhe.deployment import CkksDeployment

        return CkksDeployment.from_files(files, model)

    def server(self, files: Mapping[str, bytes]) -> ServerRole | None:
        """The side that computes: weights and plan, no key."""
        from fhe.deployment import NETWORK_FILE, PLAN_FILE
        from fhe.network import PolynomialNetwork
        from fhe.plan import Plan
        from fhe.roles import CkksServerRole

        return CkksServerRole(
            Plan.from_bytes(_file(files, PLAN_FILE)), PolynomialNetwork.from_bytes(_file(files, NETWORK_FILE))
        )

    def client(self, files: Mapping[str, bytes]) -> ClientRole | None:
        """The side that holds the secret key: parameters and packing, no weight."""
        from deploy.interface import INTERFACE_FILE, Interface
        from fhe.deployment import EXCHANGE_FILE
        from fhe.plan import Exchange
        from fhe.roles import CkksClientRole

        return CkksClientRole(
            Exchange.from_bytes(_file(files, EXCHANGE_FILE)), Interface.from_bytes(_file(files, INTERFACE_FILE))
        )

    def commands(self) -> Mapping[str, Command]:
        """``verify``: check a certificate."""
        from fhe.verify import command

        return {"verify": command}


def _file(files: Mapping[str, bytes], name: str) -> bytes:
    if name not in files:
        raise BundleError(f"{name} is missing", remedy="the archive is damaged or of another target")
    return files[name]
