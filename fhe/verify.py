"""``relu-deploy verify CERTIFICATE --model M --calibration D``: check a claim from scratch; light to import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from deploy.cli.arguments import DivideBy, LabelColumn
from deploy.target import Command, Json

__all__ = ["command"]

_MAX_BYTES = 1 << 30


def run(
    certificate: Annotated[
        Path, typer.Argument(metavar="CERTIFICATE", help="A file under targets/ckks/certificates.")
    ],
    model: Annotated[Path, typer.Option("--model", metavar="MODEL|BUNDLE", help="The network that was converted.")],
    calibration: Annotated[str, typer.Option("--calibration", metavar="FILE[a:b]", help="Its calibration rows.")],
    label_column: LabelColumn = None,
    divide_by: DivideBy = 1.0,
) -> Json:
    """Read model, rows and claim, and check the claim with exact arithmetic where floating point does not settle it."""
    from deploy.bundle import Bundle
    from deploy.dataset import Calibration
    from deploy.errors import CertificateRejected, DeployError, ModelRefused
    from deploy.loaders import load
    from deploy.model import Mlp
    from deploy.reading import read_bounded
    from fhe.certificate_checker import check_certificate

    network = Bundle.read(model).model if model.is_dir() or model.suffix == ".zip" else load(model)
    if not isinstance(network, Mlp):
        raise ModelRefused("certificates are about feed-forward networks", place=str(model))
    rows = Calibration.read(calibration, label_column=label_column, divide_by=divide_by)
    data = read_bounded(certificate, limit=_MAX_BYTES)
    try:
        checked = check_certificate(data, network, network.check_rows(rows.x))
    except CertificateRejected as error:
        raise error.at(str(certificate)) from None
    except DeployError as error:
        raise error.at(rows.source) from None
    return {
        "certificate": str(certificate),
        "kind": checked.kind,
        "verified": True,
        "claim": checked.claim,
        "rows": len(rows),
        "rows_in_exact_arithmetic": checked.exact_rows,
    }


def text(document: Json) -> str:
    """One line: what is now known."""
    found: Any = document
    return (
        f"verified ({found['kind']}): {found['claim']}; {found['rows_in_exact_arithmetic']} of {found['rows']} rows "
        "needed exact arithmetic"
    )


command = Command(help="Check a certificate of the ckks target from scratch.", run=run, text=text)
