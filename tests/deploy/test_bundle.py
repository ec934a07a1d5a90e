"""Bundles and archives: exact, identical when made again, and suspicious when read."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import stat
import zipfile
from pathlib import Path

import copying_target
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networks import random_equilibrium, random_mlp

from deploy.bundle import Bundle, is_bundle, read_archive, write_archive
from deploy.bundle.manifest import SCHEMA
from deploy.bundle.tree import read_zip, write_zip
from deploy.conversion import convert, extend, interface_of, stated_guard
from deploy.dataset import Calibration, row_hashes
from deploy.errors import BundleError, DeployError, OutputExists, UsageError
from deploy.ranges import calibration_guard

pytestmark = pytest.mark.usefixtures("copy_target")
GOLDEN = Path(__file__).parents[1] / "golden"


def _make(path: Path, *, seed: int = 7, shift: float = 0.25, rows: int = 30) -> Bundle:
    rng = np.random.default_rng(seed)
    model = random_mlp(rng, (4, 6, 3)).with_(classes=("a", "b", "c"), tail="softmax", notes=("Flatten folded",))
    calibration = Calibration(rng.normal(size=(rows, 4)))
    options = {"copy": copying_target.Options(shift=shift)}
    return convert(model, calibration, options, seed=seed).write(path)


@pytest.mark.parametrize("name", ["b", "b.zip"])
def test_a_bundle_gives_back_what_was_put_in(tmp_path: Path, name: str) -> None:
    bundle = _make(tmp_path / name)
    again = Bundle.read(tmp_path / name)
    rng = np.random.default_rng(7)
    model = random_mlp(rng, (4, 6, 3))
    x = rng.normal(size=(30, 4))
    assert again.identity == bundle.identity
    assert again.targets == ("copy",)
    assert again.model.logits(x).tolist() == model.logits(x).tolist()
    assert again.model.classes == ("a", "b", "c")
    assert again.model.tail == "softmax"
    assert again.model.notes == ("Flatten folded",)
    assert again.deployment("copy").logits(x)[:, 0] == pytest.approx(model.logits(x)[:, 0] + 0.25)
    assert again.calibration_hashes == frozenset(row_hashes(x))
    assert again.manifest.schema_version == SCHEMA
    assert again.manifest.targets["copy"].options["shift"] == 0.25
    assert again.activation_guard["boxes"][0]["low"] == pytest.approx(
        model.preactivations(x)[0].min(axis=0).tolist()
    )
    assert is_bundle(tmp_path / name)
    assert not is_bundle(tmp_path / "none")


def test_an_equilibrium_network_is_kept_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    net = random_equilibrium(rng, 3, 5, 2)
    x = rng.normal(size=(6, 3))
    bundle = convert(net, Calibration(x), {"copy": copying_target.Options()}).write(tmp_path / "b")
    assert Bundle.read(tmp_path / "b").model.logits(x).tolist() == net.logits(x).tolist()
    assert bundle.manifest.model.kind == "equilibrium"


def test_two_conversions_are_byte_identical_in_folder_and_zip(tmp_path: Path) -> None:
    _make(tmp_path / "one")
    _make(tmp_path / "two")
    files = sorted(p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*") if p.is_file())
    assert len(files) == 6
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    _make(tmp_path / "one.zip")
    _make(tmp_path / "two.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_no_row_and_no_path_is_in_a_bundle(tmp_path: Path) -> None:
    bundle = _make(tmp_path / "b")
    x = np.random.default_rng(7)
    random_mlp(x, (4, 6, 3))
    rows = x.normal(size=(30, 4))
    everything = b"".join(bundle.files.values()) + bundle.head
    for row in rows:
        for value in row:
            assert value.tobytes() not in everything
            assert np.float32(value).tobytes() not in everything
            assert repr(float(value)).encode() not in everything
    assert str(tmp_path).encode() not in everything


def test_an_existing_bundle_is_not_overwritten(tmp_path: Path) -> None:
    before = _make(tmp_path / "b").identity
    with pytest.raises(OutputExists):
        _make(tmp_path / "b", shift=0.5)
    assert Bundle.read(tmp_path / "b").identity == before


def test_extending_keeps_the_other_targets_and_adds_hashes(tmp_path: Path) -> None:
    bundle = _make(tmp_path / "b")
    bundle.write_report({"targets": {"copy": {"agreement": 1.0}}})
    bundle = Bundle.read(tmp_path / "b")
    more = Calibration(np.random.default_rng(99).normal(size=(5, 4)))
    longer = extend(bundle, more, {"copy": copying_target.Options(shift=0.5)}).write(tmp_path / "b", force=True)
    assert len(longer.calibration_hashes) == 35
    assert longer.manifest.targets["copy"].summary["shift"] == 0.5
    assert longer.interface == bundle.interface
    assert longer.manifest.seed == bundle.manifest.seed == 7


def test_a_report_goes_when_its_target_is_converted_again(tmp_path: Path) -> None:
    _make(tmp_path / "b").write_report({"targets": {"copy": {"agreement": 1.0}, "other": {"agreement": 0.5}}})
    bundle = Bundle.read(tmp_path / "b")
    rows = Calibration(np.random.default_rng(99).normal(size=(5, 4)))
    again = extend(bundle, rows, {"copy": copying_target.Options(shift=0.5)})
    assert again.write(tmp_path / "b", force=True).report() == {"targets": {}}


@pytest.mark.parametrize("name", ["b", "b.zip"])
def test_reports_are_outside_the_identity(tmp_path: Path, name: str) -> None:
    bundle = _make(tmp_path / name)
    assert bundle.report() == {"targets": {}}
    bundle.write_report({"targets": {"copy": {"rows": 3}}})
    again = Bundle.read(tmp_path / name)
    assert again.report()["targets"]["copy"] == {"rows": 3}
    assert again.identity == bundle.identity


def test_a_damaged_report_is_named(tmp_path: Path) -> None:
    _make(tmp_path / "b").write_report({"targets": {}})
    for text in (b"{", b"[]", b'{"targets": 3}', b"\xff", b"[" * 100_000):
        (tmp_path / "b/reports/fidelity.json").write_bytes(text)
        with pytest.raises(BundleError, match="fidelity"):
            Bundle.read(tmp_path / "b").report()


@pytest.mark.parametrize(
    "member", ["manifest.json", "model.safetensors", "interface.json", "targets/copy/shift.txt"]
)
def test_every_changed_byte_is_seen(tmp_path: Path, member: str) -> None:
    _make(tmp_path / "b")
    path = tmp_path / "b" / member
    content = path.read_bytes()
    step = max(1, len(content) // 60)
    for position in range(0, len(content), step):
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(bytes(damaged))
        with pytest.raises(BundleError, match=member):
            Bundle.read(tmp_path / "b")


@given(st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_damage_ends_in_a_named_error(
    tmp_path_factory: pytest.TempPathFactory, seed: int, zipped: bool
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damage"
    if not folder.exists():
        folder.mkdir()
        _make(folder / "b")
        _make(folder / "b.zip")
    rng = np.random.default_rng(seed)
    if zipped:
        victim, scratch = folder / "b.zip", folder / "bad.zip"
        shutil.copy(victim, scratch)
        paths = [scratch]
    else:
        scratch = folder / "bad"
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(folder / "b", scratch)
        paths = [path for path in sorted(scratch.rglob("*")) if path.is_file()]
    path = paths[rng.integers(len(paths))]
    content = bytearray(path.read_bytes())
    kind = rng.integers(4)
    if kind == 0:
        content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        del content[rng.integers(len(content)) :]
    elif kind == 2:
        content[rng.integers(len(content)) :] = rng.bytes(40)
    else:
        content += rng.bytes(7)
    path.write_bytes(bytes(content))
    try:
        bundle = Bundle.read(scratch)
        bundle.deployment("copy").logits(np.zeros((1, 4)))
        assert bundle.calibration_hashes
        assert bundle.identity == Bundle.read(folder / "b").identity  # a zip's own slack was hit
    except DeployError as error:
        assert "bad" in str(error)


def _zip(entries: list[tuple[zipfile.ZipInfo | str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "name", ["../a", "/etc/passwd", "a/../../b", "a//b", "./a", "a\\b", "a\x00b", "", "a/.hidden", "c:/a", "é"]
)
def test_names_that_could_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(BundleError, match="is refused"):
        write_zip({name: b""})
    if name and "\x00" not in name:
        with pytest.raises(BundleError, match="is refused"):
            read_zip(_zip([(zipfile.ZipInfo(name), b"x")]))


def test_hostile_zip_files_are_refused() -> None:
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with pytest.raises(BundleError, match="link: is a link"):
        read_zip(_zip([(link, b"/etc/passwd")]))
    bomb = _zip([("a", b"\0" * 3_000_000)])
    assert len(bomb) < 10_000
    with pytest.raises(BundleError, match="3000000 bytes in all, the limit is 1000000"):
        read_zip(bomb, limit=1_000_000)
    lying = bytearray(bomb)
    for at in (22, bomb.index(b"PK\x01\x02") + 24):  # both places that state the size of the entry
        lying[at : at + 4] = (10).to_bytes(4, "little")
    with pytest.raises(BundleError, match=r"its directory says 10|cannot be read"):
        read_zip(bytes(lying), limit=1_000_000)
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = _zip([("a", b"1"), ("a", b"2")])
    with pytest.raises(BundleError, match="a: is there twice"):
        read_zip(twice)
    with pytest.raises(BundleError, match="more than 10000 files"):
        read_zip(_zip([(f"f{i}", b"") for i in range(10_001)]))
    with pytest.raises(BundleError, match="cannot be read as a zip file"):
        read_zip(b"PK\x03\x04 nothing")


def test_hostile_folders_are_refused(tmp_path: Path) -> None:
    _make(tmp_path / "b")
    (tmp_path / "b/targets/copy/link").symlink_to("/etc/passwd")
    with pytest.raises(BundleError, match="targets/copy/link: is a link"):
        Bundle.read(tmp_path / "b")
    (tmp_path / "b/targets/copy/link").unlink()
    (tmp_path / "b/targets/copy/extra").write_bytes(b"x")
    with pytest.raises(BundleError, match="targets/copy/extra: is not in the manifest; remove it"):
        Bundle.read(tmp_path / "b")
    (tmp_path / "b/targets/copy/extra").unlink()
    (tmp_path / "b/targets/copy/shift.txt").unlink()
    with pytest.raises(BundleError, match=r"targets/copy/shift.txt: is missing"):
        Bundle.read(tmp_path / "b")


def test_what_is_no_bundle_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"none: no such bundle; make one with relu-deploy convert"):
        Bundle.read(tmp_path / "none")
    (tmp_path / "e").mkdir()
    with pytest.raises(BundleError, match="has no manifest"):
        Bundle.read(tmp_path / "e")
    (tmp_path / "e/manifest.json").write_text("{}")
    with pytest.raises(BundleError, match="has no schema_version"):
        Bundle.read(tmp_path / "e")
    (tmp_path / "e/manifest.json").write_text('{"schema_version": "2.0"}')
    with pytest.raises(
        BundleError, match=r"schema version 2.0, this release reads 1\.x; use the release that wrote"
    ):
        Bundle.read(tmp_path / "e")


def test_a_consistent_forgery_of_the_model_is_seen(tmp_path: Path) -> None:
    """Hashes recomputed, weights exchanged: the model's own hash still names the original."""
    _make(tmp_path / "b")
    other = _make(tmp_path / "c", seed=8)
    path = tmp_path / "b/manifest.json"
    document = json.loads(path.read_bytes())
    weights = other.files["model.safetensors"]
    (tmp_path / "b/model.safetensors").write_bytes(weights)
    document["files"]["model.safetensors"] = hashlib.sha256(weights).hexdigest()
    del document["identity"]
    canonical = json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    document["identity"] = hashlib.sha256(canonical.encode()).hexdigest()
    path.write_text(json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False) + "\n")
    with pytest.raises(BundleError, match="is not the model that the manifest names"):
        _ = Bundle.read(tmp_path / "b").model


def test_unknown_targets_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no target 'ckks' in this bundle, it has: copy"):
        _make(tmp_path / "b").deployment("ckks")


def test_archives_hold_their_side_only_and_are_checked() -> None:
    model = random_mlp(np.random.default_rng(0), (4, 3))
    interface = interface_of(model, calibration_guard(np.zeros((2, 4))))
    data = write_archive(
        {"plan.json": b"{}"}, target="copy", role="client", interface=interface, model=model.sha256
    )
    assert data == write_archive(
        {"plan.json": b"{}"}, target="copy", role="client", interface=interface, model=model.sha256
    )
    archive = read_archive(data, role="client")
    assert archive.target == "copy"
    assert archive.interface == interface
    assert sorted(archive.files) == ["interface.json", "plan.json"]
    with pytest.raises(BundleError, match="is the client's archive; give the server's"):
        read_archive(data, role="server")
    files = read_zip(data)
    with pytest.raises(BundleError, match=r"plan.json: has been changed"):
        read_archive(write_zip({**files, "plan.json": b"[]"}), role="client")
    with pytest.raises(BundleError, match="extra: is not in the manifest"):
        read_archive(write_zip({**files, "extra": b"[]"}), role="client")
    with pytest.raises(BundleError, match=r"has no archive.json"):
        read_archive(write_zip({"a": b""}), role="client")


def test_both_archives_of_a_bundle_can_be_opened(tmp_path: Path) -> None:
    bundle = _make(tmp_path / "b")
    assert sorted(bundle.opened_archive("copy", "client").files) == ["interface.json", "note.txt"]
    assert sorted(bundle.opened_archive("copy", "server").files) == ["interface.json", "shift.txt"]


def test_a_stated_box_is_kept_as_stated(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    guard = stated_guard(np.zeros(4), np.ones(4))
    options = {"copy": copying_target.Options()}
    bundle = convert(random_mlp(rng, (4, 3)), Calibration(rng.random((5, 4))), options, guard=guard).write(
        tmp_path / "b"
    )
    assert bundle.interface.guard.source == "stated"
    assert bundle.interface.guard.high.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("bundle-*.zip")), ids=lambda path: path.stem)
def test_bundles_of_older_schemas_still_load(path: Path) -> None:
    bundle = Bundle.read(path)
    expected = json.loads(path.with_suffix(".json").read_text())
    assert bundle.manifest.schema_version == expected["schema_version"]
    logits = bundle.deployment("copy").logits(np.array(expected["x"]))
    assert logits == pytest.approx(np.array(expected["logits"]), rel=1e-12)  # order of summation


def test_there_is_a_golden_bundle_of_an_older_schema() -> None:
    versions = {json.loads(path.read_text())["schema_version"] for path in GOLDEN.glob("bundle-*.json")}
    assert versions >= {"1.0", SCHEMA}
