"""``relu-deploy sensitivity MODEL|BUNDLE --data FILE``: which signs matter; light to import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from deploy.cli.arguments import DivideBy, LabelColumn
from deploy.target import Command, Json

__all__ = ["command"]


def run(
    model: Annotated[Path, typer.Argument(metavar="MODEL|BUNDLE", help="The float network.")],
    data: Annotated[str, typer.Option("--data", metavar="FILE[a:b]", help="Rows; labels are not used.")],
    weights: Annotated[int, typer.Option(min=1, help="Single signs measured a layer.")] = 100,
    columns: Annotated[int, typer.Option(min=1, help="Columns measured a layer.")] = 60,
    top: Annotated[int, typer.Option(min=1, help="Columns listed a layer.")] = 10,
    seed: Annotated[int, typer.Option(help="Of the sample.")] = 0,
    label_column: LabelColumn = None,
    divide_by: DivideBy = 1.0,
) -> Json:
    """Predict what turning each sign costs on one half of the rows, and measure a sample on the other."""
    import numpy as np

    from deploy.bundle import Bundle
    from deploy.dataset import HeldOut
    from deploy.errors import DataError, ModelRefused
    from deploy.loaders import load
    from deploy.model import Mlp
    from quantization.sensitivity import measure_sensitivity

    network = Bundle.read(model).model if model.is_dir() or model.suffix == ".zip" else load(model)
    if not isinstance(network, Mlp):
        raise ModelRefused("sign sensitivity is defined for feed-forward networks", place=str(model))
    rows = HeldOut.read(data, label_column=label_column, divide_by=divide_by)
    try:
        x = network.check_rows(rows.x)
    except DataError as error:
        raise error.at(rows.source) from None
    if len(x) < 4:
        raise DataError(f"{len(x)} rows", place=rows.source, remedy="give 4 rows or more, better 2,000")
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(x))
    half = len(x) // 2
    found = measure_sensitivity(
        network, x[order[:half]], x[order[half:]], rng=rng, weights=weights, columns=columns
    )
    return {
        "rows_predicted": half,
        "rows_measured": len(x) - half,
        "layers": [layer.document(top) for layer in found],
    }


def text(document: Json) -> str:
    """A few lines a layer."""
    found: Any = document
    lines = []
    for layer in found["layers"]:
        ratio, low, high = layer["weight_measured_over_predicted"]
        lines += [
            f"{layer['name']}: Spearman with measured KL: weights {layer['weight_spearman']['gauss_newton']:.3f} "
            f"(alpha² {layer['weight_spearman']['alpha_squared']:.3f}), "
            f"columns {layer['column_spearman']['gauss_newton']:.3f} "
            f"(alpha² {layer['column_spearman']['alpha_squared']:.3f})",
            f"  measured over predicted {ratio:.2f} [{low:.2f}, {high:.2f}]; columns of most leverage: "
            + ", ".join(f"{j} ({nats:.2g} nats)" for j, nats in layer["top_columns"][:5]),
        ]
    return "\n".join(lines)


command = Command(help="Which signs matter, by Gauss-Newton leverage and by measurement.", run=run, text=text)
