"""Questions of a running agent that somebody has to answer: may I use this tool, and which of these shall it be?

One desk per run. A question becomes a ``permission_request`` activity; an answer is stored in the run's directory before
the agent hears it, so a question is answered once, also over a restart of the host. Rules of the profile are about tools:
they give leave without asking, and never answer a question, whose answer has a content. When nobody answers in time the
answer is *deny*: an agent that waits for ever is a leak, one that goes on unasked is worse.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from runtime.cancellation import to_the_end
from runtime.events import Draft, PermissionRequest, RequestKind, activity
from runtime.failure import Conflict, InvalidRequest, NotFound
from runtime.provider import Answer, Decision
from runtime.types import PermissionRules, thaw

ANSWERS = "answers.jsonl"
CONTENT_BYTES = 64 * 1024
"""Of an answer's content, as JSON."""


@dataclass(frozen=True, slots=True)
class _Open:
    """A question that waits, and where its answer is awaited."""

    request: PermissionRequest
    answer: asyncio.Future[Answer]


class PermissionDesk:
    """The open questions of one run. Used on one loop; several questions may be open at once."""

    def __init__(self, directory: Path, rules: PermissionRules) -> None:
        self._path, self._rules = directory / ANSWERS, rules
        self._open: dict[str, _Open] = {}
        self._answers = {answer.request_id: answer for answer in read_answers(self._path)}

    @property
    def open_requests(self) -> tuple[str, ...]:
        """Ids of the questions that wait for an answer, the oldest first."""
        return tuple(self._open)

    async def ask(self, request: PermissionRequest, show: Callable[[Sequence[Draft]], Awaitable[None]]) -> Answer:
        """The answer to *request*: the one stored for it, the rules' about a tool, somebody's, or *deny* in the end.

        *show* reports the question; it is not called when no one has to be asked.
        """
        if (stored := self._answers.get(request.request_id)) is not None:
            return stored
        if (is_allowed := self._ruled(request)) is not None:
            decided = Decision.ALLOW if is_allowed else Decision.DENY
            return await self._settle(Answer(request_id=request.request_id, decision=decided, by="rule"))
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[request.request_id] = _Open(request, answer)
        try:
            expires_at_ns = time.time_ns() + int(self._rules.patience_s * 1e9)
            await show([activity(msgspec.structs.replace(request, expires_at_ns=expires_at_ns))])
            async with asyncio.timeout(self._rules.patience_s):
                return await answer
        except TimeoutError:
            return await self._settle(self._timed_out(request))
        finally:
            self._open.pop(request.request_id, None)

    async def respond(
        self, request_id: str, decision: str, *, message: str = "", content: Mapping[str, Any] | None = None
    ) -> Answer:
        """Answer what is open; durable when this returns.

        Raises:
            InvalidRequest: the decision is none, or *content* is missing, is out of place, or is no answer.
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
        decided = Decision(decision)
        _check_content(waiting.request, decided, content)
        answer = Answer(request_id=request_id, decision=decided, by="caller", message=message, content=content)
        await to_the_end(self._settle_and_tell(answer, waiting.answer))
        return answer

    def _ruled(self, request: PermissionRequest) -> bool | None:
        return self._rules.allows(request.tool) if request.kind == RequestKind.TOOL else None

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


def _check_content(request: PermissionRequest, decision: Decision, content: Mapping[str, Any] | None) -> None:
    """Refuse a *content* that does not belong to *decision* about *request*, and the lack of one that does."""
    if content is None:
        if decision is Decision.ALLOW and request.kind != RequestKind.TOOL:
            raise _no_answer(f"request {request.request_id!r} is a question; allow it with an answer, or deny it")
        return
    if decision is not Decision.ALLOW:
        raise _no_answer("answer is given with a denial; leave it out, or allow")
    if request.kind == RequestKind.TOOL:
        raise _no_answer(f"request {request.request_id!r} asks for leave to use {request.tool!r}; leave the answer out")
    for name, value in content.items():
        if not _is_answer(value):
            kind = type(value).__name__
            raise _no_answer(f"answer.{name} is of type {kind}; use a text, a number, true, false or a list of texts")
    if (size := _size(content)) > CONTENT_BYTES:
        raise _no_answer(f"answer has {size} bytes as JSON; use at most {CONTENT_BYTES}")


def _no_answer(message: str) -> InvalidRequest:
    return InvalidRequest(message, field="answer")


def _is_answer(value: Any) -> bool:
    """A value that a form may hold: every protocol in which an agent asks has these, and no other."""
    if isinstance(value, (list, tuple)):
        return all(isinstance(each, str) for each in value)
    return isinstance(value, (str, bool, int, float))


def _size(content: Mapping[str, Any]) -> int:
    try:
        return len(json.dumps(thaw(content), allow_nan=False, ensure_ascii=False).encode())
    except ValueError as error:  # not a number, half of a surrogate pair
        raise _no_answer(f"answer cannot be told as JSON: {error}") from error


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
    return Answer(
        request_id=found["request_id"], decision=Decision(found["decision"]), by=found["by"], message=found["message"],
        content=found.get("content"),
    )  # fmt: skip


def _append(path: Path, answer: Answer) -> None:
    record = {
        "request_id": answer.request_id, "decision": answer.decision.value, "by": answer.by, "message": answer.message,
        "time_ns": time.time_ns(),
    }  # fmt: skip
    if answer.content is not None:
        record["content"] = thaw(answer.content)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, json.dumps(record).encode() + b"\n")
        os.fdatasync(fd)
    finally:
        os.close(fd)
