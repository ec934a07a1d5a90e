"""Make a golden bundle of today's schema; those of older schemas were made by the releases that wrote them.

PYTHONPATH=tests python tests/golden/make_bundles.py
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import copying_target
import numpy as np
from networks import random_mlp

import deploy.registry
from deploy.bundle.manifest import SCHEMA
from deploy.conversion import convert
from deploy.dataset import Calibration


def main() -> None:
    """Write bundle-SCHEMA.zip and its expected logits beside this script."""
    entry = EntryPoint("copy", "copying_target:target", deploy.registry.GROUP)
    deploy.registry.entry_points = lambda group: [entry]  # type: ignore[assignment]
    rng = np.random.default_rng(11)
    model = random_mlp(rng, (3, 4, 2)).with_(classes=("no", "yes"))
    x = rng.normal(size=(4, 3))
    folder = Path(__file__).parent
    conversion = convert(model, Calibration(x), {"copy": copying_target.Options(shift=0.5)}, seed=11)
    conversion.write(folder / f"bundle-{SCHEMA}.zip", force="--force" in sys.argv)
    expected = {
        "schema_version": SCHEMA,
        "x": x.tolist(),
        "logits": conversion.converted["copy"].deployment.logits(x).tolist(),
    }
    (folder / f"bundle-{SCHEMA}.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
