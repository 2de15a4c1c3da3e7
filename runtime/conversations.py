"""Looking at logical sessions and ending them: what a session said, from our own journals, and its end.

A transcript is the host's: it is read from what was stored of each run, not from the provider's own files, so it exists
for every provider alike.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from runtime import journal, records
from runtime.events import EventType, RuntimeEvent, ToolCall, ToolResult
from runtime.failure import SessionBusy
from runtime.keys import LOCAL, new_ulid
from runtime.provider import SessionTerminator
from runtime.records import RunRecord
from runtime.resolve import Unsupported
from runtime.run import SessionView
from runtime.runs import Runs
from runtime.sessions import Session
from runtime.types import SessionMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Utterance:
    """One entry of a transcript. ``role`` is ``user``, ``assistant`` or ``tool``; ``text`` is whole.

    A tool's entry has its name and input as ``text`` when it was called, its output when it answered.
    """

    run_id: str
    role: str
    text: str
    time_ns: int
    tool: str = ""
    call_id: str = ""
    is_error: bool = False


async def terminate_session(
    runs: Runs, session_id: str, *, principal: str = LOCAL, cancel_active: bool = False
) -> Session:
    """End the logical session. A run that is active on it is refused, or cancelled first when asked so.

    Raises:
        SessionNotFound: there is no such session, or it has ended.
        SessionBusy: a run is active and *cancel_active* was not asked for.
        Unsupported: its provider cannot end sessions.
    """
    await runs.recovered.wait()
    session = runs.sessions.get(principal, session_id)
    if session.terminated_ns is not None:
        return session
    lease = runs.registry.lease(adapter=session.adapter, target=session.target)
    try:
        if not isinstance(lease.provider, SessionTerminator):
            raise Unsupported(f"target {session.target!r} cannot end sessions", target=session.target)
        await _free(runs, session, cancel_active=cancel_active)
        await _end(runs, session, lease.provider)
    finally:
        lease.release()
    return runs.sessions.get(principal, session_id)


async def _end(runs: Runs, session: Session, provider: SessionTerminator) -> None:
    """Hold the session as a run would, so that none begins on it while it ends."""
    _, turn = runs.sessions.claim(
        principal=session.principal, session_id=session.session_id, mode=SessionMode.REQUIRE_EXISTING,
        adapter=session.adapter, target=session.target, run=new_ulid(), now_ns=session.used_ns,
    )  # fmt: skip
    try:
        await provider.terminate_session(SessionView(runs.sessions, session))
        await runs.sessions.terminate(session, time.time_ns())
    finally:
        turn.release()


async def _free(runs: Runs, session: Session, *, cancel_active: bool) -> None:
    """No run is left on the session, neither active nor waiting; those that wait go first, so that none of them begins."""
    found = [run for run in runs.live.values() if run.session.key == session.key and not run.ended.is_set()]
    if not found:
        return
    if not cancel_active:
        run_id = found[0].spec.run_id
        raise SessionBusy(
            f"session {session.session_id!r} has the active run {run_id!r}; cancel it first, or ask for that",
            session_id=session.session_id, run_id=run_id,
        )  # fmt: skip
    for run in reversed(found):
        await runs.cancel(run.spec.run_id, principal=session.principal, reason="its session is being terminated")
        if run.task is not None:
            await asyncio.wait([run.task], timeout=runs.config.cancel_grace_s)


async def transcript(runs: Runs, session_id: str, *, principal: str = LOCAL) -> AsyncGenerator[Utterance, None]:
    """What was said in the session, in order, as far as its runs are still held.

    Raises:
        SessionNotFound: there is no such session.
    """
    await runs.recovered.wait()
    session = runs.sessions.get(principal, session_id)
    for record in await runs.index.run(records.of_session(principal, session.session_id)):
        for utterance in await asyncio.to_thread(_utterances, record, runs.storage.run_directory(record.ulid)):
            yield utterance


def _utterances(record: RunRecord, directory: Path) -> list[Utterance]:
    said = [
        Utterance(
            run_id=record.run_id, role="user", text=record.spec.input if record.spec else "", time_ns=record.accepted_ns
        )
    ]
    said += [u for event in journal.read_all(directory / journal.NAME) if (u := _utterance(event)) is not None]
    return said


def _utterance(event: RuntimeEvent) -> Utterance | None:
    run_id, time_ns = event.run_id, event.time_ns
    match event.activity:
        case ToolCall(call_id=call_id, name=name, input_json=text):
            return Utterance(run_id=run_id, role="tool", text=text, time_ns=time_ns, tool=name, call_id=call_id)
        case ToolResult(call_id=call_id, output=text, is_error=is_error):
            return Utterance(run_id=run_id, role="tool", text=text, time_ns=time_ns, call_id=call_id, is_error=is_error)
    if not event.is_terminal:
        return None
    text, is_error = event.error or event.message, event.type is not EventType.COMPLETE
    return Utterance(run_id=run_id, role="assistant", text=text, time_ns=time_ns, is_error=is_error)
