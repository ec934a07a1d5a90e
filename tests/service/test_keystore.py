"""The key store: nothing lost, nothing corrupted, whatever dies or fills up."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.errors import StorageError, WireError
from deploy.service.keystore import KeyStore, StoreLimits

SCOPE = "parameters"


def overwrite(path: Path, contents: bytes) -> None:
    """Change a file from another process: in ours, closing it would drop sqlite's POSIX locks."""
    code = "import sys; open(sys.argv[1], 'r+b').truncate(); open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())"
    subprocess.run([sys.executable, "-c", code, str(path)], input=contents, check=True)


class Clock:
    """A clock that stands until it is turned."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def put(store: KeyStore, data: bytes, *, tenant: str = "a", scope: str = SCOPE) -> str:
    key_id = hashlib.sha256(data).hexdigest()
    upload = store.begin(tenant, key_id)
    try:
        upload.write(data)
        upload.finish()
        upload.commit(scope)
    finally:
        upload.abort()
    return key_id


def holds(store: KeyStore, *key_ids: str, tenant: str = "a") -> list[bool]:
    return [store.find(tenant, key_id) is not None for key_id in key_ids]


def test_key_is_found_with_its_bytes_and_scope_by_its_tenant_only(tmp_path) -> None:
    store = KeyStore(tmp_path, StoreLimits())
    key_id = put(store, b"key")
    found = store.find("a", key_id)
    assert found is not None and found.path.read_bytes() == b"key" and found.size == 3
    assert found.has_scope(SCOPE) and not found.has_scope("other")
    assert store.find("b", key_id) is None
    assert not store.delete("b", key_id) and store.delete("a", key_id)
    assert store.find("a", key_id) is None and not found.path.exists()


def test_wrong_hash_leaves_nothing(tmp_path) -> None:
    store = KeyStore(tmp_path, StoreLimits())
    upload = store.begin("a", "0" * 64)
    upload.write(b"key")
    with pytest.raises(WireError) as error:
        upload.finish()
    assert error.value.code == "key_hash"
    upload.abort()
    assert [path for path in tmp_path.rglob("*") if path.is_file() and "sqlite" not in path.name] == []


@pytest.mark.parametrize(
    ("tenant", "key_id"), [("../x", "0" * 64), ("a", "../" + "0" * 61), ("a", "A" * 64), ("", "0" * 64)]
)
def test_names_that_could_leave_the_store_are_refused(tmp_path, tenant, key_id) -> None:
    with pytest.raises(WireError, match="no key id"):
        KeyStore(tmp_path, StoreLimits()).begin(tenant, key_id)


def test_tenant_over_its_quota_loses_its_own_least_recently_used_key(tmp_path, clock) -> None:
    store = KeyStore(tmp_path, StoreLimits(tenant_keys=2), clock=clock)
    other = put(store, b"theirs", tenant="b")
    keys = []
    for data in (b"1", b"2"):
        keys.append(put(store, data))
        clock.now += 20
    assert holds(store, keys[0]) == [True]  # a use: the second is older now
    clock.now += 20
    keys.append(put(store, b"3"))
    assert holds(store, *keys) == [True, False, True]
    assert holds(store, other, tenant="b") == [True]


def test_tenant_bytes_are_bounded_and_one_key_over_them_is_refused(tmp_path, clock) -> None:
    store = KeyStore(tmp_path, StoreLimits(tenant_bytes=10), clock=clock)
    first = put(store, b"123456")
    clock.now += 20
    second = put(store, b"12345")
    assert holds(store, first, second) == [False, True]
    with pytest.raises(WireError) as error:
        put(store, b"x" * 11)
    assert (error.value.code, error.value.http_status) == ("body_too_large", 413)
    assert holds(store, second) == [True]


def test_full_store_evicts_what_is_idle_and_refuses_to_evict_what_is_in_use(tmp_path, clock) -> None:
    store = KeyStore(tmp_path, StoreLimits(total_bytes=10, min_idle_s=60), clock=clock)
    old = put(store, b"123456", tenant="a")
    clock.now += 30
    with pytest.raises(StorageError, match="in recent use"):
        put(store, b"abcde", tenant="b")
    assert holds(store, old) == [True]
    clock.now += 61
    new = put(store, b"abcde", tenant="b")
    assert holds(store, old) == [False]
    assert holds(store, new, tenant="b") == [True]
    assert store.totals() == (1, 5)


def test_unused_keys_expire_and_used_ones_do_not(tmp_path, clock) -> None:
    store = KeyStore(tmp_path, StoreLimits(ttl_s=100), clock=clock)
    used, unused = put(store, b"1"), put(store, b"2")
    clock.now += 60
    assert holds(store, used) == [True]
    clock.now += 60
    assert store.expire() == 1
    assert holds(store, used, unused) == [True, False]
    clock.now += 101
    assert holds(store, used) == [False]


@pytest.mark.parametrize("damage", ["truncated", "empty", "nonsense", "gone", "header"])
@pytest.mark.parametrize("when", ["closed", "open"])
def test_damaged_index_is_rebuilt_from_the_files(tmp_path, damage, when) -> None:
    limits = StoreLimits(tenant_keys=100)
    store = KeyStore(tmp_path, limits)
    keys = [put(store, bytes([i]) * 50) for i in range(30)]
    if when == "closed":
        store.close()
    index = tmp_path / "index.sqlite"
    whole = subprocess.run(["cat", index], capture_output=True, check=True).stdout
    if damage == "gone":
        index.unlink()
    else:
        contents = {
            "truncated": whole[: len(whole) // 2],
            "empty": b"",
            "nonsense": os.urandom(len(whole)),
            "header": b"x" * 100 + whole[100:],
        }[damage]
        overwrite(index, contents)
    if when == "closed":
        store = KeyStore(tmp_path, limits)
        assert store.totals() == (30, 30 * 50)  # known before anybody asks for them
    added = put(store, b"new")
    assert all(holds(store, *keys, added))
    again = KeyStore(tmp_path, limits)
    assert all(holds(again, *keys, added))
    assert again.totals() == (31, 30 * 50 + 3)
    for key_id in keys:
        found = again.find("a", key_id)
        assert found is not None and hashlib.sha256(found.path.read_bytes()).hexdigest() == key_id


def test_recalled_keys_are_those_that_are_there_and_their_use_is_remembered(tmp_path, clock) -> None:
    store = KeyStore(tmp_path, StoreLimits(ttl_s=100), clock=clock)
    key_id = put(store, b"key")
    assert store.recall("a", key_id) is None  # nobody has asked for it
    key = store.find("a", key_id)
    assert key is not None
    assert store.recall("a", key_id) == key
    assert store.recall("b", key_id) is None
    for _ in range(30):  # in use for three times its time to live
        clock.now += 10
        assert store.recall("a", key_id) is None
        assert store.find("a", key_id) == store.recall("a", key_id) == key
    key.path.unlink()  # as another server deletes it
    assert store.recall("a", key_id) is None
    put(store, b"key")
    assert store.recall("a", key_id) == key
    store.delete("a", key_id)
    key.path.write_bytes(b"key")
    assert store.recall("a", key_id) is None


def test_rows_without_a_file_are_dropped(tmp_path) -> None:
    store = KeyStore(tmp_path, StoreLimits())
    key_id = put(store, b"key")
    found = store.find("a", key_id)
    assert found is not None
    found.path.unlink()
    assert holds(store, key_id) == [False]
    assert store.totals() == (0, 0)


def test_two_servers_on_one_store_see_each_others_keys(tmp_path, clock) -> None:
    first = KeyStore(tmp_path, StoreLimits(tenant_keys=3), clock=clock)
    second = KeyStore(tmp_path, StoreLimits(tenant_keys=3), clock=clock)
    mine, theirs = put(first, b"1"), put(second, b"2")
    assert holds(first, mine, theirs) == holds(second, mine, theirs) == [True, True]
    second.delete("a", mine)
    assert holds(first, mine) == [False]
    overwrite(tmp_path / "index.sqlite", b"")
    assert holds(first, theirs) == holds(second, theirs) == [True]
    both = put(first, b"both")
    assert put(second, b"both") == both
    assert holds(first, both) == holds(second, both) == [True]


UPLOADER = """
import sys, time
from collections.abc import Iterator
from pathlib import Path
from deploy.service.keystore import KeyStore, StoreLimits
store = KeyStore(Path(sys.argv[1]), StoreLimits())
upload = store.begin("a", "0" * 64)
upload.write(b"half a key")
upload._file.flush()
print("under way", flush=True)
time.sleep(60)
"""


def test_upload_of_a_server_that_was_killed_is_erased_and_one_under_way_is_not(tmp_path) -> None:
    process = subprocess.Popen([sys.executable, "-c", UPLOADER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "under way\n"
        (half,) = (tmp_path / "incoming").iterdir()
        os.utime(half, (time.time() - 60,) * 2)
        KeyStore(tmp_path, StoreLimits()).close()
        assert half.exists()
    finally:
        process.kill()
        process.communicate()
    store = KeyStore(tmp_path, StoreLimits())
    assert not half.exists()
    assert store.totals() == (0, 0)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 256 KiB, where we may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", place], check=True)


def test_full_disk_refuses_the_upload_and_harms_nothing(small_disk) -> None:
    store = KeyStore(small_disk, StoreLimits())
    small = put(store, b"x" * 1000)
    upload = store.begin("a", "0" * 64)
    with pytest.raises(StorageError, match="No space left"):
        for _ in range(10):
            upload.write(b"y" * 65536)
    upload.abort()
    assert list((small_disk / "incoming").iterdir()) == []
    assert holds(store, small) == [True]
    assert holds(store, put(store, b"z" * 1000)) == [True]
    store.close()


def test_disk_that_fails_is_a_storage_error_on_any_machine(tmp_path, monkeypatch) -> None:
    store = KeyStore(tmp_path, StoreLimits())
    upload = store.begin("a", hashlib.sha256(b"key").hexdigest())
    upload.write(b"key")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError):
        upload.finish()
    upload.abort()
    assert list((tmp_path / "incoming").iterdir()) == []


def test_index_that_cannot_grow_is_a_storage_error(tmp_path) -> None:
    store = KeyStore(tmp_path, StoreLimits(tenant_keys=1000))
    put(store, b"1")
    assert store._database is not None
    (pages,) = store._database.execute("PRAGMA page_count").fetchone()
    store._database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StorageError, match="index cannot be written"):
        for i in range(200):
            put(store, f"key {i}".encode())
