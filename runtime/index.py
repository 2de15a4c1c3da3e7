"""The durable index of a data directory: one SQLite file, one writer thread, group commit.

Everything that authorises a side effect is a row here before the effect. Operations queue up and the thread commits all
that wait in one transaction, so that the cost of a sync is shared. The file carries a format number; an older program
refuses a newer directory by name instead of guessing.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from runtime.failure import Failure, FailureCode, FailureError

T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], T]
Outcomes = list[tuple[asyncio.Future[Any], Any, BaseException | None]]

FORMAT = 2
NAME = "index.sqlite3"

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE runs (
    ulid TEXT PRIMARY KEY,
    principal TEXT NOT NULL,
    run_id TEXT NOT NULL,
    digest TEXT NOT NULL,
    spec BLOB NOT NULL,              -- empty once trimmed: a tombstone keeps id, digest and outcome
    session_id TEXT NOT NULL,
    accepted_ns INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    deadline_boot_s REAL,
    shared_with TEXT NOT NULL,
    state TEXT NOT NULL,
    ended_ns INTEGER,
    size_bytes INTEGER NOT NULL DEFAULT 0,
    failure BLOB,
    recovered INTEGER NOT NULL DEFAULT 0,
    trimmed_ns INTEGER,
    UNIQUE (principal, run_id)
) STRICT;
CREATE INDEX runs_open ON runs (ulid) WHERE ended_ns IS NULL;
CREATE INDEX runs_of_session ON runs (principal, session_id, ulid);
CREATE TABLE sessions (
    principal TEXT NOT NULL,
    session_id TEXT NOT NULL,
    key TEXT NOT NULL UNIQUE,        -- names the session's private directory
    adapter TEXT NOT NULL,
    target TEXT NOT NULL,
    anonymous INTEGER NOT NULL,
    native_id TEXT,                  -- the provider's own; read by nothing but its slot
    created_ns INTEGER NOT NULL,
    used_ns INTEGER NOT NULL,
    terminated_ns INTEGER,
    has_history INTEGER NOT NULL DEFAULT 0,
    forked_from TEXT NOT NULL DEFAULT '',
    workspace_key TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (principal, session_id)
) STRICT;
"""

_UPGRADES = {
    1: """
ALTER TABLE sessions ADD COLUMN forked_from TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN workspace_key TEXT NOT NULL DEFAULT '';
"""
}
"""By format, what makes the next one of it."""


class IndexUnavailable(FailureError):
    """The index cannot be opened or written; nothing was accepted."""

    code = FailureCode.INTERNAL


class Index:
    """The open index. Use :func:`open_index`; operations run on its one thread, in the order given."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queue: queue.SimpleQueue[tuple[Operation[Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._reader: sqlite3.Connection | None = None
        self._thread = threading.Thread(target=self._work, name="index", daemon=True)

    async def run(self, operation: Operation[T]) -> T:
        """Run *operation* on the connection and return its result once it is durable.

        It runs inside a transaction shared with others; an exception undoes this operation alone and is raised here.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((operation, future))
        return await asyncio.shield(future)

    async def open(self) -> None:
        ready = self._loop.create_future()
        self._queue.put((lambda connection: None, ready))
        self._thread.start()
        await ready
        self._reader = sqlite3.connect(f"file:{quote(str(self._path))}?mode=ro", uri=True, isolation_level=None)
        self._reader.row_factory = sqlite3.Row

    def look_up(self, operation: Operation[T]) -> T:
        """Run a read of one row, by key, here and now: it costs less than the way to the thread and back.

        Sees what is committed. In this journal mode a reader never waits for the writer.
        """
        assert self._reader is not None, "the index is not open"
        try:
            return operation(self._reader)
        except sqlite3.Error as error:
            raise IndexUnavailable(f"the run index cannot be read: {error}") from error

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        try:
            connection = connect(self._path)
        except Exception as error:
            self._refuse_all(error)
            return
        try:
            while (batch := self._take_batch()) is not None:
                self._commit(connection, batch)
        finally:
            connection.close()

    def _take_batch(self) -> list[tuple[Operation[Any], asyncio.Future[Any]]] | None:
        """All operations that wait now, at least one; None when told to end and none are left."""
        item = self._queue.get()
        if item is None:
            return None
        batch = [item]
        while not self._queue.empty():
            item = self._queue.get()
            if item is None:
                self._queue.put(None)
                break
            batch.append(item)
        return batch

    def _commit(self, connection: sqlite3.Connection, batch: list[tuple[Operation[Any], asyncio.Future[Any]]]) -> None:
        outcomes: Outcomes = []
        try:
            connection.execute("BEGIN IMMEDIATE")
            for operation, future in batch:
                outcomes.append((future, *_attempt(connection, operation)))
            connection.execute("COMMIT")
        except Exception as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            failed = _not_written(error)
            outcomes = [(future, None, failed) for _, future in batch]
        self._loop.call_soon_threadsafe(_settle, outcomes)

    def _refuse_all(self, error: Exception) -> None:
        """The connection never opened: every operation, now and later, fails with the reason."""
        while (item := self._queue.get()) is not None:
            failed: Outcomes = [(item[1], None, error)]
            self._loop.call_soon_threadsafe(_settle, failed)


def _not_written(error: Exception) -> FailureError:
    is_full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    code = FailureCode.STORAGE_FULL if is_full else IndexUnavailable.code
    return IndexUnavailable.of(Failure(code=code, message=f"the run index cannot be written: {error}"))


def statement(query: str, *parameters: Any) -> Callable[[sqlite3.Connection], None]:
    """An operation of one statement whose result nobody needs."""

    def operation(connection: sqlite3.Connection) -> None:
        connection.execute(query, parameters)

    return operation


def _attempt(connection: sqlite3.Connection, operation: Operation[Any]) -> tuple[Any, BaseException | None]:
    connection.execute("SAVEPOINT operation")
    try:
        result = operation(connection)
    except Exception as error:  # belongs to the caller of this operation, not to the batch
        if not connection.in_transaction:  # a full disk undoes the whole transaction: that is everyone's
            raise
        connection.execute("ROLLBACK TO operation")
        connection.execute("RELEASE operation")
        return None, error
    connection.execute("RELEASE operation")
    return result, None


def _settle(outcomes: Outcomes) -> None:
    for future, result, error in outcomes:
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def connect(path: Path) -> sqlite3.Connection:
    """A connection to the index at *path*, made if missing.

    Raises:
        IndexUnavailable: it is damaged, or was written by a newer version.
    """
    try:
        os.close(
            os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        )  # prompts are in it; SQLite obeys the umask
        connection = sqlite3.connect(path, isolation_level=None)
    except (OSError, sqlite3.Error) as error:
        raise IndexUnavailable(f"{path} cannot be opened: {getattr(error, 'strerror', error)}") from error
    try:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        _ensure_schema(connection, path)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.DatabaseError):
            message = f"{path} is not a usable index ({error}); move it away to start with an empty one"
            raise IndexUnavailable(message) from error
        raise
    return connection


def _ensure_schema(connection: sqlite3.Connection, path: Path) -> None:
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found == 0:
        connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={FORMAT}; COMMIT;")
    for older in range(found or FORMAT, FORMAT):
        connection.executescript(f"BEGIN; {_UPGRADES[older]} PRAGMA user_version={older + 1}; COMMIT;")
    if found > FORMAT:
        raise IndexUnavailable(
            f"{path} has format {found}, this version knows {FORMAT}; use a newer iop-node or another data directory"
        )


@asynccontextmanager
async def open_index(data_dir: Path) -> AsyncIterator[Index]:
    """The index of *data_dir*; closed with everything committed when the block ends."""
    index = Index(data_dir / NAME)
    try:
        await index.open()
        yield index
    finally:
        await index.close()
