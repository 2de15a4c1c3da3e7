"""What the agent of one turn asks while it goes on: put to the host, answered once, taken back, or refused in the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from providers.cli.dialect import Conversation, FromAgent, Question, Reply, Withdrawal
from providers.keeper.client import InputRefused, WardenLink
from runtime.events import Draft
from runtime.provider import Answer, Decision, EventSink, PermissionPort

log = logging.getLogger(__name__)

OVER = "The turn is over."


@dataclass(slots=True, kw_only=True)
class Asking:
    """The questions of one turn. ``on_answer`` is called when one waits no more."""

    run_directory: Path
    conversation: Conversation
    link: WardenLink | None
    sink: EventSink
    desk: PermissionPort
    on_answer: Callable[[], None]
    _open: dict[asyncio.Task[None], Question] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """The agent waits for an answer."""
        return bool(self._open)

    async def take(self, item: FromAgent) -> None:
        """Answer *item* at once, or let it wait; returns when the question is shown, so that it keeps its place."""
        if isinstance(item, Reply):
            self._say(item.key, item.data)
        elif isinstance(item, Withdrawal):
            self._withdraw(item.request_id)
        else:
            shown = asyncio.Event()
            task = asyncio.create_task(self._ask(item, shown), name="ask")
            self._open[task] = item
            task.add_done_callback(self._close)
            waiting = asyncio.create_task(shown.wait())
            await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()

    def refuse_what_is_open(self) -> None:
        """The turn is over and its process stays: who asked would wait on, for an answer that nobody gives any more."""
        for question in self._open.values():
            request_id = question.request.request_id
            denied = Answer(request_id=request_id, decision=Decision.DENY, by="rule", message=OVER)
            self._say(request_id, self.conversation.answer(denied))

    async def close(self) -> None:
        """Nobody waits for an answer any more."""
        for task in (tasks := tuple(self._open)):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _ask(self, question: Question, shown: asyncio.Event) -> None:
        async def show(drafts: Sequence[Draft]) -> None:
            placed = [
                msgspec.structs.replace(draft, offset=question.offset, index=question.index + number)
                for number, draft in enumerate(drafts)
            ]
            await self.sink.emit(placed)
            shown.set()

        answer = await self.desk.ask(question.request, show)
        self._say(question.request.request_id, self.conversation.answer(answer))

    def _close(self, task: asyncio.Task[None]) -> None:
        del self._open[task]
        if not task.cancelled() and (problem := task.exception()) is not None:  # a full disk: silence ends the turn
            log.error("a question was not answered", exc_info=problem, extra={"run": self.run_directory.name})
        self.on_answer()

    def _withdraw(self, request_id: str) -> None:
        """From now on an answer comes too late, and is refused."""
        for task, question in self._open.items():
            if question.request.request_id == request_id:
                task.cancel()

    def _say(self, key: str, data: bytes) -> None:
        """Sent once, whichever node does it: the warden knows the key."""
        if self.link is None or not data:
            return
        try:
            self.link.send_input(data, key=f"{self.run_directory.name} answer {key}")
        except InputRefused:
            pass  # the end of the process is seen as such
