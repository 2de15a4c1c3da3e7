"""Questions of a running agent that somebody has to answer: may I use this tool?

One desk per run. A question becomes a ``permission_request`` activity; an answer is stored in the run's directory before
the agent hears it, so a question is answered once, also over a restart of the host. Rules of the profile answer without
asking; when nobody answers in time the answer is *deny*: an agent that waits for ever is a leak, one that goes on unasked
is worse.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from runtime.cancellation import to_the_end
from runtime.events import Draft, PermissionRequest, activity
from runtime.failure import Conflict, InvalidRequest, NotFound
from runtime.provider import Answer, Decision
from runtime.types import PermissionRules

ANSWERS = "answers.jsonl"


class PermissionDesk:
    """The open questions of one run. Used on one loop; several questions may be open at once."""

    def __init__(self, directory: Path, rules: PermissionRules) -> None:
        self._path, self._rules = directory / ANSWERS, rules
        self._open: dict[str, asyncio.Future[Answer]] = {}
        self._answers = {answer.request_id: answer for answer in read_answers(self._path)}

    @property
    def open_requests(self) -> tuple[str, ...]:
        """Ids of the questions that wait for an answer, the oldest first."""
        return tuple(self._open)

    async def ask(self, request: PermissionRequest, show: Callable[[Sequence[Draft]], Awaitable[None]]) -> Answer:
        """The answer to *request*: the one stored for it, the rules', somebody's, or *deny* when patience is over.

        *show* reports the question; it is not called when no one has to be asked.
        """
        if (stored := self._answers.get(request.request_id)) is not None:
            return stored
        if (is_allowed := self._rules.allows(request.tool)) is not None:
            decided = Decision.ALLOW if is_allowed else Decision.DENY
            return await self._settle(Answer(request_id=request.request_id, decision=decided, by="rule"))
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[request.request_id] = answer
        try:
            expires_at_ns = time.time_ns() + int(self._rules.patience_s * 1e9)
            await show([activity(msgspec.structs.replace(request, expires_at_ns=expires_at_ns))])
            async with asyncio.timeout(self._rules.patience_s):
                return await answer
        except TimeoutError:
            return await self._settle(self._timed_out(request))
        finally:
            self._open.pop(request.request_id, None)

    async def respond(self, request_id: str, decision: str, *, message: str = "") -> Answer:
        """Answer an open question; durable when this returns.

        Raises:
            InvalidRequest: the decision is none.
            Conflict: it was answered already; the message says how.
            NotFound: no such question is open.
        """
        if decision not in Decision._value2member_map_:
            known = ", ".join(Decision)
            raise InvalidRequest(f"decision {decision!r} is unknown; use one of {known}", field="decision")
        if (stored := self._answers.get(request_id)) is not None:
            raise _answered_before(stored)
        if (waiting := self._open.get(request_id)) is None:
            raise NotFound(f"no request {request_id!r} is open in this run", request_id=request_id)
        answer = Answer(request_id=request_id, decision=Decision(decision), by="caller", message=message)
        await to_the_end(self._settle_and_tell(answer, waiting))
        return answer

    async def _settle_and_tell(self, answer: Answer, waiting: asyncio.Future[Answer]) -> None:
        """One step for a caller that may leave in the middle: an answer on disk is one that the agent hears."""
        if (stored := await self._settle(answer)) is not answer:
            raise _answered_before(stored)
        if not waiting.done():
            waiting.set_result(answer)

    async def _settle(self, answer: Answer) -> Answer:
        """Store *answer* unless the question has one by now; what is stored is what counts."""
        first = self._answers.setdefault(answer.request_id, answer)
        if first is answer:
            try:
                await asyncio.to_thread(_append, self._path, answer)
            except OSError:  # not durable, so not an answer: it can be given again
                del self._answers[answer.request_id]
                raise
        return first

    def _timed_out(self, request: PermissionRequest) -> Answer:
        message = f"nobody answered within {self._rules.patience_s:g} s"
        return Answer(request_id=request.request_id, decision=Decision.DENY, by="timeout", message=message)


def _answered_before(stored: Answer) -> Conflict:
    return Conflict(f"request {stored.request_id!r} was answered {stored.decision} ({stored.by}) before")


def read_answers(path: Path) -> list[Answer]:
    """The answers stored at *path*; a line torn by a crash was never an answer."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    answers = []
    for line in lines:
        try:
            answers.append(_answer(json.loads(line)))
        except (ValueError, KeyError, TypeError):
            continue
    return answers


def _answer(found: Any) -> Answer:
    decision = Decision(found["decision"])
    return Answer(request_id=found["request_id"], decision=decision, by=found["by"], message=found["message"])


def _append(path: Path, answer: Answer) -> None:
    record = {
        "request_id": answer.request_id, "decision": answer.decision.value, "by": answer.by, "message": answer.message,
        "time_ns": time.time_ns(),
    }  # fmt: skip
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, json.dumps(record).encode() + b"\n")
        os.fdatasync(fd)
    finally:
        os.close(fd)
