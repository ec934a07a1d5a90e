"""Bundles whose documents were edited and signed again: an exit code of ours and one message, never a traceback."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import copying_target
import numpy as np
import pytest
from networks import random_mlp

from deploy.bundle import Bundle
from deploy.bundle.tree import read_folder, write_zip
from deploy.cli.main import run
from deploy.conversion import convert
from deploy.dataset import Calibration, HeldOut
from deploy.errors import BundleError
from deploy.evaluation import evaluate, store_report

VALUES: list[Any] = [None, True, -1, 10**30, 10**400, 1e308, "", "\x1b[2J" + "x" * 5000, [], {}, [[1]], ["a"] * 30]
DELETED = object()
MANIFEST, REPORT = "manifest.json", "reports/fidelity.json"


@pytest.fixture
def files(tmp_path: Path, copy_target: copying_target.CopyTarget) -> dict[str, bytes]:
    """Every file of a bundle that was judged."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(30, 4))
    model = random_mlp(rng, (4, 6, 3)).with_(classes=("a", "b", "c"), notes=("folded",))
    bundle = convert(model, Calibration(rows[:20]), {"copy": copying_target.Options()}).write(tmp_path / "judged")
    store_report(bundle, evaluate(bundle, HeldOut(rows[20:]), real=5))
    return read_folder(tmp_path / "judged")


def canonical(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False).encode() + b"\n"


def forge(files: dict[str, bytes], name: str, where: tuple[Any, ...], value: Any) -> bytes:
    """A zip of the bundle with one value of one document changed, and every hash made to fit."""
    forged = dict(files)
    document = json.loads(files[name])
    node = document
    for key in where[:-1]:
        node = node[key]
    if value is DELETED:
        del node[where[-1]]
    else:
        node[where[-1]] = copy.deepcopy(value)
    forged[name] = canonical(document)
    manifest = json.loads(forged[MANIFEST])
    if "files" in manifest:
        vouched = sorted(set(forged) - {MANIFEST, REPORT})
        manifest["files"] = {file: hashlib.sha256(forged[file]).hexdigest() for file in vouched}
    manifest.pop("identity", None)
    manifest["identity"] = hashlib.sha256(canonical(manifest)).hexdigest()
    return write_zip({**forged, MANIFEST: canonical(manifest)})


def places(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document; of a long list the first entries."""
    entries = document.items() if isinstance(document, dict) else enumerate(document[:2])
    for key, value in entries:
        yield (*at, key)
        if isinstance(value, dict | list):
            yield from places(value, (*at, key))


@pytest.mark.parametrize("name", [MANIFEST, "interface.json", "owner/activation_guard.json", REPORT])
def test_whatever_was_edited_ends_in_an_exit_code_of_ours(
    files: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    rng = np.random.default_rng(0)
    rows = tmp_path / "rows.npy"
    np.save(rows, rng.normal(size=(5, 4)))
    path, good = tmp_path / "forged.zip", tmp_path / "good.zip"
    good.write_bytes(write_zip(files))
    commands = [["inspect", str(path), "--json"], ["inspect", str(path)]]
    if name in (MANIFEST, REPORT):
        commands.append(["compare", str(good), str(path)])
    if name == REPORT:
        commands.append(["report", str(path), "-o", str(tmp_path / "page.html"), "--force"])
    else:
        commands.append(["evaluate", str(path), "--data", str(rows), "--real", "2"])
    refused = 0
    for where in places(json.loads(files[name])):
        if name == MANIFEST and where[0] in ("files", "identity"):
            continue
        for value in [DELETED, VALUES[rng.integers(len(VALUES))]]:
            data = forge(files, name, where, value)
            for command in commands:
                path.write_bytes(data)
                code = run(command)
                said = capsys.readouterr().err
                assert code in (0, 2, 4), (where, value, command, said)
                assert "Traceback" not in said
                refused += code == 4
    assert refused > 10


@pytest.mark.parametrize(
    ("name", "where", "value", "cause"),
    [
        (MANIFEST, ("targets", "copy", "cost", 0, "value"), DELETED, r"Field required at targets\.copy\.cost"),
        (MANIFEST, ("targets", "copy", "cost", 0, "value"), 10**400, r"at targets\.copy\.cost"),
        (MANIFEST, ("targets", "copy", "calibration", "agreement"), "all", r"at targets\.copy\.calibration"),
        (MANIFEST, ("schema_version",), "2.0", r"schema version 2\.0, this release reads 1\.x"),
        (MANIFEST, ("model", "sha256"), "0" * 64, "is not the model that the manifest names"),
        (REPORT, ("targets", "copy", "rows"), 10**12, r"less than or equal to 100000000 at targets\.copy\.rows"),
        (REPORT, ("targets", "copy", "agreement"), "all", r"a valid number.* at targets\.copy\.agreement"),
        (REPORT, ("targets",), [], r"a valid dictionary at targets"),
        ("owner/activation_guard.json", ("boxes", 0, "low"), [], "the box of layer 0 has 0 and 6 ends for 6 units"),
        ("owner/activation_guard.json", ("boxes", 0, "high", 0), "x", r"valid number.* at boxes\.0\.high\.0"),
        ("interface.json", ("features", 0, "low"), [], r"valid number at features\.0\.low"),
    ],
)
def test_the_place_and_the_value_are_named(
    files: dict[str, bytes], tmp_path: Path, name: str, where: tuple[Any, ...], value: Any, cause: str
) -> None:
    path = tmp_path / "b.zip"
    path.write_bytes(forge(files, name, where, value))
    with pytest.raises(BundleError, match=cause):
        bundle = Bundle.read(path)
        _ = bundle.model, bundle.interface, bundle.activation_guard, bundle.report()
