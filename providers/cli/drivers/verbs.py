"""What can be done to a turn under way beside cancelling it: each verb answers with a receipt, within the cancel grace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from providers.cli.dialect import Conversation, Steerable
from providers.cli.run_files import write_interrupt
from providers.keeper.client import InputRefused, WardenLink
from runtime.keys import new_ulid
from runtime.provider import InputOutcome, InputReceipt, InputVerb

_NOT_BEGUN = InputReceipt(outcome=InputOutcome.NOT_CONFIRMED, message="the agent has not begun the turn")


@dataclass(slots=True, kw_only=True)
class Verbs:
    """The verbs of one turn.

    ``send_interrupt`` asks the agent and tells whether that was possible; ``was_cancelled`` how the turn ended, once it has.
    """

    run_directory: Path
    conversation: Conversation
    link: WardenLink | None
    grace_s: float
    is_stopping: Callable[[], bool]
    send_interrupt: Callable[[], bool]
    was_cancelled: Callable[[], bool]
    was_interrupted: bool = False
    """An interrupt was asked for, by this node or the one before."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    progress: asyncio.Event = field(default_factory=asyncio.Event)
    """More output was decoded."""

    async def take(self, verb: InputVerb, text: str) -> InputReceipt:
        """Do *verb*; the profile declared it."""
        if self.link is None or self.conversation.has_ended or self.is_stopping():
            return InputReceipt(outcome=InputOutcome.TOO_LATE, message="the turn is ending")
        if verb is InputVerb.INTERRUPT:
            return await self._interrupt()
        if verb is InputVerb.STEER and isinstance(self.conversation, Steerable):
            return await self._steer(self.conversation, self.link, text)
        return InputReceipt(outcome=InputOutcome.NOT_CONFIRMED, message=f"this agent cannot {verb.value}")

    async def _interrupt(self) -> InputReceipt:
        if self.conversation.interrupt() is None:
            return _NOT_BEGUN
        await asyncio.to_thread(write_interrupt, self.run_directory)  # a node that takes over calls it cancelled too
        self.was_interrupted = True
        if self.conversation.has_ended or not self.send_interrupt():
            return InputReceipt(outcome=InputOutcome.TOO_LATE, message="the turn has ended")
        try:
            async with asyncio.timeout(self.grace_s):
                await self.ended.wait()
        except TimeoutError:
            return InputReceipt(outcome=InputOutcome.NOT_CONFIRMED, message="the agent did not stop; the run goes on")
        if self.was_cancelled():
            return InputReceipt(outcome=InputOutcome.CONFIRMED)
        return InputReceipt(outcome=InputOutcome.TOO_LATE, message="the turn ended by itself")

    async def _steer(self, conversation: Steerable, link: WardenLink, text: str) -> InputReceipt:
        name = f"steer {new_ulid()}"
        if (data := conversation.steer(text, name)) is None:
            return _NOT_BEGUN
        try:
            link.send_input(data, key=f"{self.run_directory.name} {name}")
            async with asyncio.timeout(self.grace_s):
                while name not in conversation.steered and not self.ended.is_set():
                    self.progress.clear()
                    await self.progress.wait()
        except (TimeoutError, InputRefused):
            return InputReceipt(outcome=InputOutcome.NOT_CONFIRMED, message="the agent did not answer")
        if conversation.steered.get(name):
            return InputReceipt(outcome=InputOutcome.CONFIRMED)
        return InputReceipt(outcome=InputOutcome.TOO_LATE, message="the agent did not take it")
