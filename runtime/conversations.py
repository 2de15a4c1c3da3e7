"""What is said to a run under way, and looking at logical sessions: what one said, from our own journals, and its end.

A transcript is the host's: it is read from what was stored of each run, not from the provider's own files, so it exists
for every provider alike.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime import journal, records
from runtime.events import EventType, RuntimeEvent, ToolCall, ToolResult
from runtime.failure import FailureCode, FailureError, InvalidRequest, NotFound, SessionBusy
from runtime.keys import LOCAL, new_ulid
from runtime.provider import Answer, InputOutcome, InputReceipt, InputVerb, SessionTerminator
from runtime.records import RunRecord
from runtime.run import SessionView
from runtime.runs import Runs
from runtime.sessions import Session
from runtime.types import SessionMode


class Unsupported(FailureError):
    """The provider has no such capability; nothing else is done instead."""

    code = FailureCode.UNSUPPORTED


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
    holder, principal, session_id = new_ulid(), session.principal, session.session_id
    runs.sessions.claim(
        principal=principal, session_id=session_id, mode=SessionMode.REQUIRE_EXISTING, adapter=session.adapter,
        target=session.target, run=holder, now_ns=session.used_ns,
    )  # fmt: skip
    try:
        await provider.terminate_session(SessionView(runs.sessions, session))
        await runs.sessions.terminate(session, time.time_ns())
    finally:
        runs.sessions.release(principal, session_id, holder)


async def _free(runs: Runs, session: Session, *, cancel_active: bool) -> None:
    ulid = runs.sessions.active_run(session)
    run = next((live for live in runs.live.values() if live.record.ulid == ulid), None)
    if run is None:
        return
    if not cancel_active:
        raise SessionBusy(
            f"session {session.session_id!r} has the active run {run.spec.run_id!r}; cancel it first, or ask for that",
            session_id=session.session_id, run_id=run.spec.run_id,
        )  # fmt: skip
    await runs.cancel(run.spec.run_id, principal=session.principal, reason="its session is being terminated")
    if run.task is not None:
        await asyncio.wait([run.task], timeout=runs.config.cancel_grace_s)


async def send_input(runs: Runs, run_id: str, verb: str, text: str = "", *, principal: str = LOCAL) -> InputReceipt:
    """Do *verb* to the run, with *text* where it takes one; the receipt tells what came of it.

    Raises:
        NotFound: no such run of this principal.
        InvalidRequest: there is no such verb, or its text is missing.
        Unsupported: the run's target cannot do it; nothing is done instead.
    """
    if verb not in InputVerb._value2member_map_:
        raise InvalidRequest(f"verb {verb!r} is unknown; use one of {', '.join(InputVerb)}", field="verb")
    if verb == InputVerb.STEER and not text:
        raise InvalidRequest("input is empty; give the text to steer with", field="input")
    record = await runs.get(run_id, principal=principal)
    run = runs.live.get((principal, run_id))
    if run is None or run.lease is None or run.is_ending or run.ctx.stop is not None:
        return InputReceipt(outcome=InputOutcome.TOO_LATE, message=f"the run is {record.state.value}, or ending")
    if verb not in run.lease.capabilities.verbs:
        can = ", ".join(sorted(run.lease.capabilities.verbs)) or "nothing"
        raise Unsupported(f"target {run.spec.target!r} cannot {verb}; it can {can}", target=run.spec.target, verb=verb)
    if run.ctx.take_input is None:
        return InputReceipt(outcome=InputOutcome.NOT_CONFIRMED, message="the run has not begun its turn")
    return await run.ctx.take_input(InputVerb(verb), text)


async def respond(
    runs: Runs, run_id: str, request_id: str, decision: str, *, principal: str = LOCAL, message: str = "",
    content: Mapping[str, Any] | None = None,
) -> Answer:  # fmt: skip
    """Answer what the run's agent asked; *content* is what a question is answered with.

    Raises:
        NotFound: no such run of this principal, or no such request is open in it (one that ends has none).
        Conflict: it was answered before.
        InvalidRequest: the decision is none, or *content* does not belong to it.
    """
    record = await runs.get(run_id, principal=principal)
    run = runs.live.get((principal, run_id))
    if run is None or run.is_ending:
        raise NotFound(f"run {run_id!r} is {record.state.value}, or ending; no request of it is open", run_id=run_id)
    return await run.desk.respond(request_id, decision, message=message, content=content)


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
