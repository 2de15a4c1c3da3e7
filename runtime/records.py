"""The run's row in the index: what was accepted, and how it ended. One function per question, one query each."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

import msgspec

from runtime.failure import Failure, FailureError, decode_failure, encode_failure
from runtime.index import statement
from runtime.types import ExecutionSpec, SessionMode, thaw

log = logging.getLogger(__name__)


class RunState(StrEnum):
    """Where a run stands."""

    ACCEPTED = "accepted"
    """Durable, not yet begun."""
    RUNNING = "running"
    """Its start event is out."""
    COMPLETE = "complete"
    ERROR = "error"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in (RunState.COMPLETE, RunState.ERROR, RunState.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run as the index knows it. ``spec`` is None for a tombstone: only identity and outcome are left."""

    ulid: str
    principal: str
    run_id: str
    digest: str
    spec: ExecutionSpec | None
    session_id: str
    accepted_ns: int
    boot_id: str
    deadline_boot_s: float | None = None
    shared_with: tuple[str, ...] = ()
    state: RunState = RunState.ACCEPTED
    ended_ns: int | None = None
    failure: Failure | None = None
    recovered: bool = False


def insert(record: RunRecord) -> Callable[[sqlite3.Connection], None]:
    """Accept the run: after this it will reach its terminal, whatever happens to this process."""

    def operation(connection: sqlite3.Connection) -> None:
        connection.execute(
            "INSERT INTO runs (ulid, principal, run_id, digest, spec, session_id, accepted_ns, boot_id, deadline_boot_s,"
            " shared_with, state) VALUES (?,?,?,?,?,?,?,?,?,?,?)",
            (record.ulid, record.principal, record.run_id, record.digest, encode_spec(record.spec), record.session_id,
             record.accepted_ns, record.boot_id, record.deadline_boot_s, " ".join(record.shared_with), record.state.value),
        )  # fmt: skip

    return operation


def finish(
    ulid: str, *, state: RunState, ended_ns: int, failure: Failure | None, recovered: bool, size_bytes: int = 0
) -> Callable[[sqlite3.Connection], None]:
    """Record how the run ended and how much it left; the first outcome stays."""
    query = (
        "UPDATE runs SET state=?, ended_ns=?, failure=?, recovered=?, size_bytes=? WHERE ulid=? AND ended_ns IS NULL"
    )
    encoded = None if failure is None else encode_failure(failure)
    return statement(query, state.value, ended_ns, encoded, recovered, size_bytes, ulid)


def renew_boot(ulid: str, boot_id: str) -> Callable[[sqlite3.Connection], None]:
    """The run is continued under another boot of the machine."""
    return statement("UPDATE runs SET boot_id=? WHERE ulid=?", boot_id, ulid)


def renew_deadline(ulid: str, deadline_boot_s: float | None) -> Callable[[sqlite3.Connection], None]:
    """The run begins now, so its time-out counts from now."""
    return statement("UPDATE runs SET deadline_boot_s=? WHERE ulid=?", deadline_boot_s, ulid)


def find(principal: str, run_id: str) -> Callable[[sqlite3.Connection], RunRecord | None]:
    """The principal's run of that id, ended and trimmed ones included."""

    def operation(connection: sqlite3.Connection) -> RunRecord | None:
        row = connection.execute("SELECT * FROM runs WHERE principal=? AND run_id=?", (principal, run_id)).fetchone()
        return None if row is None else _record(row)

    return operation


def unended(connection: sqlite3.Connection) -> list[RunRecord]:
    """Every run without an outcome, in the order of acceptance."""
    return [
        _record(row)
        for row in connection.execute("SELECT * FROM runs WHERE ended_ns IS NULL ORDER BY accepted_ns, ulid")
    ]


def page(
    principal: str, *, before: str, limit: int, active_only: bool
) -> Callable[[sqlite3.Connection], list[RunRecord]]:
    """Up to *limit* of the principal's runs accepted before the run with ulid *before* (empty: all), newest first."""
    where = "principal=? AND trimmed_ns IS NULL AND (?='' OR ulid<?)" + (" AND ended_ns IS NULL" if active_only else "")

    def operation(connection: sqlite3.Connection) -> list[RunRecord]:
        rows = connection.execute(
            f"SELECT * FROM runs WHERE {where} ORDER BY ulid DESC LIMIT ?", (principal, before, before, limit)
        )
        return [_record(row) for row in rows]

    return operation


def of_session(principal: str, session_id: str) -> Callable[[sqlite3.Connection], list[RunRecord]]:
    """The session's runs that are still held, in the order of acceptance."""

    def operation(connection: sqlite3.Connection) -> list[RunRecord]:
        where = "principal=? AND session_id=? AND trimmed_ns IS NULL"
        rows = connection.execute(f"SELECT * FROM runs WHERE {where} ORDER BY ulid", (principal, session_id))
        return [_record(row) for row in rows]

    return operation


def keys(connection: sqlite3.Connection) -> set[str]:
    """The keys of all runs that are still held."""
    return {row[0] for row in connection.execute("SELECT ulid FROM runs WHERE trimmed_ns IS NULL")}


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """What retention asks of an ended run."""

    ulid: str
    run_id: str
    ended_ns: int
    size_bytes: int


def ended(connection: sqlite3.Connection) -> list[EndedRun]:
    """Every untrimmed run with an outcome, the last ended first."""
    query = "SELECT ulid, run_id, ended_ns, size_bytes FROM runs WHERE trimmed_ns IS NULL AND ended_ns IS NOT NULL"
    return [EndedRun(**dict(row)) for row in connection.execute(f"{query} ORDER BY ended_ns DESC")]


def bury(ulid: str, moment_ns: int) -> Callable[[sqlite3.Connection], None]:
    """Leave a tombstone: identity, digest and outcome."""
    return statement("UPDATE runs SET trimmed_ns=?, spec=x'' WHERE ulid=?", moment_ns, ulid)


def forget_tombstones(moment_ns: int) -> Callable[[sqlite3.Connection], int]:
    """Drop tombstones made before *moment_ns*; after that the id is free again."""
    return lambda connection: connection.execute("DELETE FROM runs WHERE trimmed_ns < ?", (moment_ns,)).rowcount


def encode_spec(spec: ExecutionSpec | None) -> bytes:
    if spec is None:
        return b""
    fields = {name: getattr(spec, name) for name in ExecutionSpec.__dataclass_fields__}
    fields |= {
        "policy": thaw(spec.policy),
        "metadata": dict(spec.metadata),
        "timeout": spec.timeout and spec.timeout.total_seconds(),
    }
    return msgspec.json.encode(fields, order="sorted")


def decode_spec(data: bytes) -> ExecutionSpec | None:
    """The spec as stored; None for a tombstone, and for what cannot be read: one damaged row must not hide the others."""
    try:
        return _decode_spec(data) if data else None
    except (msgspec.DecodeError, FailureError, KeyError, TypeError, ValueError):
        log.exception("a stored request cannot be read")
        return None


def _decode_spec(data: bytes) -> ExecutionSpec:
    fields: dict[str, Any] = msgspec.json.decode(data)
    timeout = fields.pop("timeout")
    mode = SessionMode(fields.pop("session_mode"))
    return ExecutionSpec(**fields, session_mode=mode, timeout=timedelta(seconds=timeout) if timeout else None)


def _record(row: sqlite3.Row) -> RunRecord:
    return RunRecord(
        ulid=row["ulid"], principal=row["principal"], run_id=row["run_id"], digest=row["digest"],
        spec=decode_spec(row["spec"]), session_id=row["session_id"], accepted_ns=row["accepted_ns"],
        boot_id=row["boot_id"], deadline_boot_s=row["deadline_boot_s"], shared_with=tuple(row["shared_with"].split()),
        state=RunState(row["state"]), ended_ns=row["ended_ns"],
        failure=None if row["failure"] is None else decode_failure(row["failure"]), recovered=bool(row["recovered"]),
    )  # fmt: skip
