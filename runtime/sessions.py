"""Logical sessions: conversations with an id of the host's, on which one run is active at a time (:mod:`runtime.turns`).

All sessions are held in memory and written through to the index, so that claiming one is a plain function without a gap
between looking and taking. A provider's own conversation id is a private attribute, handed out only by its slot.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from runtime.failure import Conflict, SessionBusy, SessionNotFound
from runtime.index import Index, statement
from runtime.keys import new_ulid
from runtime.turns import Turn, Turns
from runtime.types import SessionMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One logical session. ``key`` names its private directory; ids of callers never become paths."""

    principal: str
    session_id: str
    key: str
    adapter: str
    target: str
    anonymous: bool
    created_ns: int
    used_ns: int
    terminated_ns: int | None = None
    has_history: bool = False
    """A run of it ended complete, so there is a conversation to go on with."""
    forked_from: str = ""
    """The key of the session with whose conversation it begins; empty for one that begins with none."""
    workspace_key: str = ""
    """The key of the session whose private directory it works in, where that is not its own: a conversation tells of files,
    and some agents find one by its directory."""
    _native_id: str | None = None

    @property
    def directory_key(self) -> str:
        """Names the private directory that it works in."""
        return self.workspace_key or self.key


class Sessions:
    """Every session of the data directory, and which run has which."""

    def __init__(self, index: Index, sessions: Iterable[Session] = ()) -> None:
        self._index = index
        self._sessions = {(s.principal, s.session_id): s for s in sessions}
        self.turns = Turns()

    @classmethod
    async def load(cls, index: Index) -> Sessions:
        return cls(index, await index.run(_all))

    def claim(
        self, *, principal: str, session_id: str, mode: SessionMode, adapter: str, target: str, run: str, now_ns: int,
        queue_limit: int = 0, fork_from: str = "",
    ) -> tuple[Session, Turn]:  # fmt: skip
        """Take the session for the run with key *run*, making it when the mode allows; nothing is stored yet.

        The caller stores it with :func:`save` in the same transaction as the run, or releases the turn. With a
        *queue_limit* the run may wait for its turn. Mode ``fork`` makes a session that begins with what was said in
        *fork_from*.

        Raises:
            SessionNotFound: required, or to be forked, but there is none, or it is another target's, or was never spoken in.
            SessionBusy: another run has it, and this one may not wait.
            CapacityExhausted: too many wait for it.
            Conflict: the id names a session of another target.
        """
        anonymous = not session_id
        session_id = session_id or f"anon-{new_ulid()}"
        key = (principal, session_id)
        found = self.find(principal, session_id)
        if found is None and mode is SessionMode.REQUIRE_EXISTING:
            raise SessionNotFound(
                f"session {session_id!r} does not exist; use create_if_missing to begin it", session_id=session_id
            )
        if found is not None and (found.adapter, found.target) != (adapter, target):
            raise _not_of_target(found, mode, target)
        source = self._source(principal, fork_from, found, adapter, target) if mode is SessionMode.FORK else None
        turn = self.turns.take(key, run, queue_limit=queue_limit)
        session = replace(found, used_ns=now_ns) if found else Session(
            principal=principal, session_id=session_id, key=new_ulid(), adapter=adapter, target=target,
            anonymous=anonymous, created_ns=now_ns, used_ns=now_ns, forked_from=source.key if source else "",
            workspace_key=source.directory_key if source else "",
        )  # fmt: skip
        return session, turn

    def _source(self, principal: str, fork_from: str, found: Session | None, adapter: str, target: str) -> Session:
        """The session to fork from: idle, because one that is written meanwhile would be read in the middle of a turn."""
        if found is not None:
            text = f"session {found.session_id!r} exists; a fork is a new session: use another session_id"
            raise Conflict(text, session_id=found.session_id)
        source = self.find(principal, fork_from)
        if source is None or source._native_id is None:
            state = "does not exist" if source is None else "has no conversation yet"
            raise SessionNotFound(f"session {fork_from!r} {state}, so there is nothing to fork", session_id=fork_from)
        if (source.adapter, source.target) != (adapter, target):
            raise _not_of_target(source, SessionMode.REQUIRE_EXISTING, target)
        if self.active_run(source) is not None:
            text = f"session {fork_from!r} has an active run; fork it when that has ended"
            raise SessionBusy(text, session_id=fork_from)
        return source

    def find(self, principal: str, session_id: str) -> Session | None:
        """The session of that id; None when there is none, or it was terminated."""
        found = self._sessions.get((principal, session_id))
        return None if found is None or found.terminated_ns is not None else found

    def get(self, principal: str, session_id: str) -> Session:
        """The session of that id, terminated ones included.

        Raises:
            SessionNotFound: there is none, or it is forgotten.
        """
        found = self._sessions.get((principal, session_id))
        if found is None:
            raise SessionNotFound(f"session {session_id!r} does not exist", session_id=session_id)
        return found

    def of(self, principal: str) -> list[Session]:
        """The principal's sessions, the last used first."""
        found = [session for session in self._sessions.values() if session.principal == principal]
        return sorted(found, key=lambda session: session.used_ns, reverse=True)

    def active_run(self, session: Session) -> str | None:
        """The key of the run that has the session."""
        return self.turns.active((session.principal, session.session_id))

    async def terminate(self, session: Session, now_ns: int) -> None:
        """End the session: no run goes on with it. The id may begin a new one."""
        ended = replace(session, terminated_ns=now_ns, has_history=False, _native_id=None)
        self._sessions[session.principal, session.session_id] = ended
        query = "UPDATE sessions SET terminated_ns=?, has_history=0, native_id=NULL WHERE principal=? AND session_id=?"
        await self._index.run(statement(query, now_ns, session.principal, session.session_id))

    def admit(self, session: Session) -> None:
        """The session is stored: from now on others see it.

        What the run before learned since the claim is kept: it may end between the two.
        """
        key = (session.principal, session.session_id)
        if (current := self._sessions.get(key)) is not None and current.key == session.key:
            session = replace(session, has_history=current.has_history, _native_id=current._native_id)
        self._sessions[key] = session

    def reclaim(self, principal: str, session_id: str, run: str, *, has_begun: bool) -> tuple[Session | None, Turn]:
        """Take the session again for a run that a restart found unended."""
        turn = self.turns.take_regardless((principal, session_id), run, has_begun=has_begun)
        return self._sessions.get((principal, session_id)), turn

    def native_id(self, session: Session) -> str | None:
        """For the provider's slot only."""
        current = self._sessions.get((session.principal, session.session_id), session)
        return current._native_id

    def source_id(self, session: Session) -> str | None:
        """The native id of the session that *session* is a fork of, while that is held. For the provider's slot only."""
        if not session.forked_from:
            return None
        return next((each._native_id for each in self._sessions.values() if each.key == session.forked_from), None)

    @property
    def directories(self) -> set[str]:
        """The keys under which some session has its private directory."""
        return {each.directory_key for each in self._sessions.values()}

    async def remember(self, session: Session, native_id: str) -> None:
        """Store the provider's own id for the next run; durable when this returns."""
        key = (session.principal, session.session_id)
        if (current := self._sessions.get(key)) is None or current._native_id == native_id:
            return
        self._sessions[key] = replace(current, _native_id=native_id)
        await self._index.run(_store_native_id(key, native_id))

    def note_history(self, session: Session) -> None:
        """A run of the session has ended complete; the next one may ask for that before it is stored."""
        key = (session.principal, session.session_id)
        if (current := self._sessions.get(key)) is not None and current.key == session.key:
            self._sessions[key] = replace(current, has_history=True)

    async def store_history(self, principal: str, session_id: str) -> None:
        """The same, durable when this returns."""
        query = "UPDATE sessions SET has_history=1 WHERE principal=? AND session_id=? AND has_history=0"
        await self._index.run(statement(query, principal, session_id))

    def has_history(self, session: Session) -> bool:
        """Whether there is a conversation to go on with, now."""
        return self._sessions.get((session.principal, session.session_id), session).has_history

    async def expire(self, *, anonymous_before_ns: int, terminated_before_ns: int) -> list[Session]:
        """Drop sessions nobody named and long unused, and those long terminated; returns them."""
        gone = [
            session
            for key, session in self._sessions.items()
            if self.turns.active(key) is None
            and (
                (session.anonymous and session.used_ns < anonymous_before_ns)
                or (session.terminated_ns is not None and session.terminated_ns < terminated_before_ns)
            )
        ]
        for session in gone:
            del self._sessions[session.principal, session.session_id]
        if gone:
            await self._index.run(_delete([(s.principal, s.session_id) for s in gone]))
        return gone


def _not_of_target(found: Session, mode: SessionMode, target: str) -> SessionNotFound | Conflict:
    text = f"session {found.session_id!r} belongs to target {found.target!r}, not {target!r}; use another session_id"
    kind = SessionNotFound if mode is SessionMode.REQUIRE_EXISTING else Conflict
    return kind(text, session_id=found.session_id)


def save(session: Session) -> Callable[[sqlite3.Connection], None]:
    """Insert the session, or note its use."""

    def operation(connection: sqlite3.Connection) -> None:
        connection.execute(
            "INSERT INTO sessions (principal, session_id, key, adapter, target, anonymous, created_ns, used_ns,"
            " forked_from, workspace_key)"
            " VALUES (?,?,?,?,?,?,?,?,?,?) ON CONFLICT (principal, session_id) DO UPDATE SET used_ns=excluded.used_ns,"
            " key=excluded.key, adapter=excluded.adapter, target=excluded.target, created_ns=excluded.created_ns,"
            " forked_from=excluded.forked_from, workspace_key=excluded.workspace_key, terminated_ns=NULL",
            (session.principal, session.session_id, session.key, session.adapter, session.target, session.anonymous,
             session.created_ns, session.used_ns, session.forked_from, session.workspace_key),
        )  # fmt: skip

    return operation


def _all(connection: sqlite3.Connection) -> list[Session]:
    return [
        Session(
            principal=row["principal"], session_id=row["session_id"], key=row["key"], adapter=row["adapter"],
            target=row["target"], anonymous=bool(row["anonymous"]), created_ns=row["created_ns"], used_ns=row["used_ns"],
            terminated_ns=row["terminated_ns"], has_history=bool(row["has_history"]), _native_id=row["native_id"],
            forked_from=row["forked_from"], workspace_key=row["workspace_key"],
        )
        for row in connection.execute("SELECT * FROM sessions")
    ]  # fmt: skip


def _store_native_id(key: tuple[str, str], native_id: str) -> Callable[[sqlite3.Connection], None]:
    return statement("UPDATE sessions SET native_id=? WHERE principal=? AND session_id=?", native_id, *key)


def _delete(keys: list[tuple[str, str]]) -> Callable[[sqlite3.Connection], None]:
    def operation(connection: sqlite3.Connection) -> None:
        connection.executemany("DELETE FROM sessions WHERE principal=? AND session_id=?", keys)

    return operation
