"""The ``ternary`` target; light to import, numerics are loaded when work begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from deploy.cost import Quantity
from deploy.target import Command, Refusal
from quantization.options import TernaryOptions

if TYPE_CHECKING:
    import numpy as np
    from pydantic import BaseModel

    from deploy.dataset import Calibration
    from deploy.model import Model
    from deploy.progress import Progress
    from deploy.target import ClientRole, Deployment, ServerRole

__all__ = ["TernaryTarget"]


class TernaryTarget:
    """Weights in {-1, 0, +1} with scales."""

    name = "ternary"
    guarantee = (
        "never worse on the calibration rows than absmean, TWN or exact least squares, bias repaired or not; "
        "every integer run time gives the same bits"
    )
    non_guarantee = "no bound on the distance from the float network: agreement is measured, not proved"
    options: type[BaseModel] = TernaryOptions

    def accepts(self, model: Model, options: Any) -> Refusal | None:
        """Take feed-forward ReLU chains."""
        if model.kind != "mlp":
            return Refusal(
                "ternary layers are feed-forward, this is an equilibrium network", "use the circuit target"
            )
        squares = [index for index, activation in enumerate(model.activations) if activation != "relu"]
        if squares:
            return Refusal(
                f"activation {squares[0]} is a square, ternary takes ReLU", "convert the network with ReLU"
            )
        return None

    def predict_cost(self, model: Model, options: Any, *, calibration: Calibration | None) -> tuple[Quantity, ...]:
        """Bytes on disk, known from the shapes."""
        from quantization.packing import packed_bytes

        if model.kind != "mlp":
            return ()
        shapes = [layer.weight.shape for layer in model.affines]
        codes = sum(packed_bytes(n_out * n_in, options.levels // 2) for n_out, n_in in shapes)
        scales = sum(4 * n_out for n_out, _ in shapes)
        weights = sum(n_out * n_in for n_out, n_in in shapes)
        return (
            Quantity("bytes", codes + 2 * scales, "B", "exact", "server"),
            Quantity("bits_per_weight", 8 * (codes + scales) / weights, "bit", "exact", "server"),
        )

    def convert(
        self, model: Model, calibration: Calibration, options: Any, *, rng: np.random.Generator, progress: Progress
    ) -> Deployment:
        """Quantise; the same rows and options give the same codes."""
        from quantization.conversion import convert_model

        return convert_model(model, calibration.x, options, rng=rng, progress=progress)

    def load(self, files: Mapping[str, bytes], *, model: Model) -> Deployment:
        """Read a deployment back."""
        assert model.kind == "mlp"
        from quantization.deployment import load_deployment

        return load_deployment(files, model)

    def server(self, files: Mapping[str, bytes]) -> ServerRole | None:
        """The keyless server's side."""
        from quantization.roles import open_server

        return open_server(files)

    def client(self, files: Mapping[str, bytes]) -> ClientRole | None:
        """The keyless client's side."""
        from quantization.roles import open_client

        return open_client(files)

    def commands(self) -> Mapping[str, Command]:
        """``sensitivity``: which signs matter."""
        from quantization.sensitivity_command import command

        return {"sensitivity": command}
