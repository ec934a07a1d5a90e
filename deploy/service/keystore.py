"""Evaluation keys on disk: files named by their content are the truth, a sqlite index remembers what is old.

::

    STORE/keys/TENANT/<sha256>.<scope>    whole files only: they arrive by rename, after every check
    STORE/incoming/                       uploads under way; each is locked by its uploader
    STORE/index.sqlite                    tenant, size, last use: may be lost, is rebuilt

A process may die at any moment, and several servers may share one store. An upload that died leaves an unlocked file
in ``incoming``, which the next server erases. An index row without a file is dropped, a file without a row is taken
in. Methods block; the service calls them from threads.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from deploy.envelope import scope_hash
from deploy.errors import StorageError, WireError
from deploy.writing import storage_errors

__all__ = ["KeyStore", "StoreLimits", "StoredKey", "Upload"]

_log = logging.getLogger(__name__)
_KEY_ID = re.compile(r"[0-9a-f]{64}")
_TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_FILE = re.compile(r"(?P<key_id>[0-9a-f]{64})\.(?P<scope>[0-9a-f]{16})")
_TOUCH_S = 10.0
_RECALLED = 4096
_ABANDONED_S = 5.0
_NOT_DAMAGE = ("SQLITE_FULL", "SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    tenant TEXT NOT NULL, key_id TEXT NOT NULL, scope TEXT NOT NULL, bytes INTEGER NOT NULL,
    created REAL NOT NULL, used REAL NOT NULL, PRIMARY KEY (tenant, key_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS keys_by_use ON keys (used);
"""
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """What the store may hold.

    Parameters
    ----------
    total_bytes : over all tenants; beyond it the least recently used keys go.
    tenant_keys, tenant_bytes : per tenant; beyond them the tenant's own least recently used keys go.
    ttl_s : a key unused for longer goes.
    min_idle_s : a key used more recently is never evicted for another tenant's sake.
    """

    total_bytes: int = 20 << 30
    tenant_keys: int = 16
    tenant_bytes: int = 4 << 30
    ttl_s: float = 30 * 86400.0
    min_idle_s: float = 60.0


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key that can be used: its file, its size, and the first half of its scope's hash."""

    key_id: str
    path: Path
    size: int
    scope: str

    def has_scope(self, scope: str) -> bool:
        """Whether it was made for this scope."""
        return self.scope == _short(scope)


class KeyStore:
    """A store in a folder, which is made where it is missing.

    Parameters
    ----------
    clock : seconds since the epoch; tests turn it.

    Raises
    ------
    StorageError : the folder cannot be written.
    """

    def __init__(self, folder: Path, limits: StoreLimits, *, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self.limits = limits
        self._clock = clock
        self._lock = threading.RLock()
        self._database: sqlite3.Connection | None = None
        self._found: dict[tuple[str, str], tuple[StoredKey, float]] = {}
        with storage_errors(folder):
            for place in (folder, folder / "keys", folder / "incoming"):
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.sweep()
        self._indexed(self._reconcile)

    def close(self) -> None:
        """Close the index."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def recall(self, tenant: str, key_id: str) -> StoredKey | None:
        """The tenant's key where :meth:`find` gave it a moment ago and its file is still there; never waits."""
        key, until = self._found.get((tenant, key_id), (None, 0.0))
        return key if key is not None and self._clock() < until and key.path.exists() else None

    def find(self, tenant: str, key_id: str) -> StoredKey | None:
        """The tenant's key, or None; counts as a use."""
        now = self._clock()

        def look(database: sqlite3.Connection) -> StoredKey | None:
            row = database.execute(
                "SELECT scope, bytes, used FROM keys WHERE tenant = ? AND key_id = ?", (tenant, key_id)
            ).fetchone()
            if row is None:
                return self._adopt(database, tenant, key_id)
            scope, size, used = row
            key = StoredKey(key_id, self._path(tenant, key_id, scope), size, scope)
            if now - used > self.limits.ttl_s or not key.path.exists():
                self._erase(database, tenant, key_id, scope)
                return None
            if now - used > _TOUCH_S:
                database.execute("UPDATE keys SET used = ? WHERE tenant = ? AND key_id = ?", (now, tenant, key_id))
            if len(self._found) >= _RECALLED:
                self._found.clear()
            self._found[tenant, key_id] = key, now + _TOUCH_S
            return key

        return self._indexed(look)

    def begin(self, tenant: str, key_id: str) -> Upload:
        """Open an upload; close it by :meth:`Upload.commit` or :meth:`Upload.abort`."""
        if not _KEY_ID.fullmatch(key_id) or not _TENANT.fullmatch(tenant):
            raise WireError("no key id", code="bad_key_id", http_status=400, hint="send the sha256 of the keys")
        with storage_errors(self.folder):
            return Upload(self, tenant, key_id)

    def delete(self, tenant: str, key_id: str) -> bool:
        """Delete the tenant's key; say whether there was one."""

        def remove(database: sqlite3.Connection) -> bool:
            key = self.find(tenant, key_id)
            if key is not None:
                self._erase(database, tenant, key_id, key.scope)
            return key is not None

        return self._indexed(remove)

    def expire(self) -> int:
        """Delete what was not used for longer than the TTL; say how many keys that were."""
        before = self._clock() - self.limits.ttl_s

        def remove(database: sqlite3.Connection) -> int:
            old = database.execute("SELECT tenant, key_id, scope FROM keys WHERE used < ?", (before,)).fetchall()
            for tenant, key_id, scope in old:
                self._erase(database, tenant, key_id, scope)
            return len(old)

        return self._indexed(remove)

    def sweep(self) -> None:
        """Erase uploads whose server died: old enough, and their lock can be had."""
        for path in (self.folder / "incoming").iterdir():
            with contextlib.suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._clock() - path.stat().st_mtime > _ABANDONED_S:
                    path.unlink(missing_ok=True)

    def totals(self) -> tuple[int, int]:
        """Number of keys, and their bytes."""

        def count(database: sqlite3.Connection) -> tuple[int, int]:
            keys, size = database.execute("SELECT count(*), coalesce(sum(bytes), 0) FROM keys").fetchone()
            return keys, size

        return self._indexed(count)

    def _path(self, tenant: str, key_id: str, scope: str) -> Path:
        return self.folder / "keys" / tenant / f"{key_id}.{scope}"

    def _publish(self, upload: Upload, scope: str, size: int) -> StoredKey:
        """Make room, move a checked upload to its name, and index it."""
        key = StoredKey(upload.key_id, self._path(upload.tenant, upload.key_id, scope), size, scope)
        now = self._clock()

        def take_in(database: sqlite3.Connection) -> StoredKey:
            self._make_room(database, upload.tenant, upload.key_id, size)
            key.path.parent.mkdir(mode=0o700, exist_ok=True)
            upload.path.replace(key.path)
            _sync_folder(key.path.parent)
            database.execute(
                "INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?, ?, ?)",
                (upload.tenant, upload.key_id, scope, size, now, now),
            )
            return key

        with storage_errors(self.folder):
            return self._indexed(take_in)

    def _make_room(self, database: sqlite3.Connection, tenant: str, key_id: str, size: int) -> None:
        limits = self.limits
        if size > min(limits.tenant_bytes, limits.total_bytes):
            raise WireError(
                f"{size} bytes of keys, a tenant may store {min(limits.tenant_bytes, limits.total_bytes)}",
                code="body_too_large",
                http_status=413,
                hint="ask the operator for a larger quota",
            )
        own = database.execute(
            "SELECT key_id, scope, bytes FROM keys WHERE tenant = ? AND key_id != ? ORDER BY used DESC",
            (tenant, key_id),
        ).fetchall()
        room = limits.tenant_bytes - size
        for rank, (other, scope, bytes_) in enumerate(own, 2):
            room -= bytes_
            if rank > limits.tenant_keys or room < 0:
                self._erase(database, tenant, other, scope)
        (held,) = database.execute(
            "SELECT coalesce(sum(bytes), 0) FROM keys WHERE key_id != ?", (key_id,)
        ).fetchone()
        idle_since = self._clock() - limits.min_idle_s
        oldest = database.execute("SELECT tenant, key_id, scope, bytes, used FROM keys ORDER BY used").fetchall()
        for owner, other, scope, bytes_, used in oldest:
            if held + size <= limits.total_bytes:
                break
            if other == key_id or (owner != tenant and used > idle_since):
                continue
            self._erase(database, owner, other, scope)
            held -= bytes_
        if held + size > limits.total_bytes:
            raise StorageError(
                f"the store holds {held} bytes in recent use, {limits.total_bytes} is its limit",
                remedy="delete keys, or ask the operator",
            )

    def _erase(self, database: sqlite3.Connection, tenant: str, key_id: str, scope: str) -> None:
        self._found.pop((tenant, key_id), None)
        self._path(tenant, key_id, scope).unlink(missing_ok=True)
        database.execute("DELETE FROM keys WHERE tenant = ? AND key_id = ?", (tenant, key_id))

    def _adopt(self, database: sqlite3.Connection, tenant: str, key_id: str) -> StoredKey | None:
        """Take in a whole file that the index does not know: another server's, or from before the index was lost."""
        for path in (self.folder / "keys" / tenant).glob(f"{key_id}.*"):
            match = _FILE.fullmatch(path.name)
            if match is not None:
                with contextlib.suppress(FileNotFoundError):
                    size = path.stat().st_size
                    now = self._clock()
                    database.execute(
                        "INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?, ?, ?)",
                        (tenant, key_id, match["scope"], size, now, now),
                    )
                    return StoredKey(key_id, path, size, match["scope"])
        return None

    def _indexed(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Run `work` in one transaction; a damaged index is set aside and rebuilt, once."""
        with self._lock:
            try:
                return self._transact(work)
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorname in _NOT_DAMAGE:
                    raise self._unwritable(error) from None
                _log.error("index damaged, rebuilding", extra={"fields": {"cause": error.sqlite_errorname}})
            try:
                self._rebuild()
                return self._transact(work)
            except sqlite3.DatabaseError as error:
                raise self._unwritable(error) from None

    def _unwritable(self, error: sqlite3.DatabaseError) -> StorageError:
        return StorageError(
            f"the index cannot be written: {error}", place=str(self.folder), remedy="free some space on that disk"
        )

    def _transact(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        if self._database is None:
            self._database = _open_index(self.folder / "index.sqlite")
        database = self._database
        if database.in_transaction:
            return work(database)
        database.execute("BEGIN IMMEDIATE")
        try:
            result = work(database)
        except BaseException:
            with contextlib.suppress(sqlite3.DatabaseError):
                database.execute("ROLLBACK")
            raise
        database.execute("COMMIT")
        return result

    def _rebuild(self) -> None:
        """Set a damaged index aside and make a new one from the files."""
        self.close()
        for suffix in ("", "-wal", "-shm"):
            place = self.folder / f"index.sqlite{suffix}"
            with contextlib.suppress(FileNotFoundError):
                place.replace(self.folder / f"damaged.sqlite{suffix}")
        self._transact(self._reconcile)

    def _reconcile(self, database: sqlite3.Connection) -> None:
        """Make the index agree with the files."""
        known = set(database.execute("SELECT tenant, key_id, scope FROM keys").fetchall())
        found = set(self._files())
        for tenant, key_id, _ in known - found:
            database.execute("DELETE FROM keys WHERE tenant = ? AND key_id = ?", (tenant, key_id))
        for tenant, key_id, _ in found - known:
            self._adopt(database, tenant, key_id)

    def _files(self) -> Iterator[tuple[str, str, str]]:
        for path in (self.folder / "keys").glob("*/*"):
            match = _FILE.fullmatch(path.name)
            if match is not None:
                yield path.parent.name, match["key_id"], match["scope"]


class Upload:
    """One upload: streamed to a file that no reader can see, hashed on the way."""

    def __init__(self, store: KeyStore, tenant: str, key_id: str) -> None:
        self._store = store
        self.tenant = tenant
        self.key_id = key_id
        self._hash = hashlib.sha256()
        self._size = 0
        handle, name = tempfile.mkstemp(prefix=f"{key_id[:16]}.", dir=store.folder / "incoming")
        self.path = Path(name)
        self._file: BinaryIO = os.fdopen(handle, "wb")
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, chunk: bytes) -> None:
        """Add bytes; raises :class:`StorageError` where the disk is full."""
        with storage_errors(self.path.parent):
            self._file.write(chunk)
        self._hash.update(chunk)
        self._size += len(chunk)

    def finish(self) -> None:
        """End the upload and verify its hash; the file can be checked at :attr:`path` now.

        Raises
        ------
        WireError : the bytes do not hash to the id.
        StorageError : the disk is full.
        """
        with storage_errors(self.path.parent):
            self._file.flush()
            os.fsync(self._file.fileno())
        found = self._hash.hexdigest()
        if found != self.key_id:
            raise WireError(
                f"{self._size} bytes hash to {found[:12]}…, the id is {self.key_id[:12]}…",
                code="key_hash",
                hint="upload again, in binary; the id is the sha256 of exactly these bytes",
            )

    def commit(self, scope: str) -> StoredKey:
        """Publish the finished and checked upload under its name."""
        key = self._store._publish(self, _short(scope), self._size)
        self._close()
        return key

    def abort(self) -> None:
        """Erase the upload; does nothing after :meth:`commit`."""
        self.path.unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


def _open_index(path: Path) -> sqlite3.Connection:
    """Open the index; raises :class:`sqlite3.DatabaseError` where it is damaged."""
    database = sqlite3.connect(path, timeout=2.0, isolation_level=None, check_same_thread=False)
    try:
        try:
            database.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY":
                raise
            # Only a file that is no WAL index (any more) needs a lock for this: it was cut down under another server.
            raise _damaged("no index, and in use") from None
        database.execute("PRAGMA synchronous = NORMAL")
        if database.execute("PRAGMA quick_check").fetchone() != ("ok",):
            raise _damaged("quick_check failed")
        database.executescript(_SCHEMA)
        database.execute("PRAGMA busy_timeout = 30000")
    except BaseException:
        database.close()
        raise
    return database


def _damaged(cause: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(cause)
    error.sqlite_errorname = "SQLITE_CORRUPT"
    return error


def _short(scope: str) -> str:
    return scope_hash(scope).hex()[:16]


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
