"""What a host asks of something that can execute a run, and what it hands over.

A provider is driven by one call, :meth:`Provider.execute`. It reports drafts to the sink as they happen, watches its
context for a request to stop, and returns when its terminal draft was handed over and nothing of the run is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from runtime.budget import Budget
from runtime.events import Draft, PermissionRequest
from runtime.failure import Failure
from runtime.status import AgentUsageStatus
from runtime.types import Capabilities, ExecutionSpec, freeze


class StopReason(StrEnum):
    """Why a run was told to stop; the first reason recorded is the one that counts."""

    CANCELLED = "cancelled"
    """Somebody asked for it, or a foreground run's readers have all gone."""
    DEADLINE = "deadline"
    """The run deadline passed."""
    SILENCE = "silence"
    """No output for the run's silence bound."""
    OUTPUT_LIMIT = "output_limit"
    """More output than the bound."""
    STORAGE_FULL = "storage_full"
    """The disk is full or under the watermark."""
    BUDGET = "budget"
    """The agent's own figures passed a bound that the caller set."""
    QUEUE = "queue"
    """No slot became free within the queue's bound."""
    SINK = "sink"
    """The host could not take the run's events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """One request to stop: why, and a sentence for people."""

    reason: StopReason
    message: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a run's raw output: end offset of a line in bytes, an index within that line, a piece of that."""

    offset: int = 0
    index: int = -1
    piece: int = 0


class SessionSlot(Protocol):
    """The private side of the run's logical session: where the provider keeps its native conversation id.

    The native id never leaves this slot: it is no key, no event field, no run identity.
    """

    @property
    def key(self) -> str:
        """Names the logical session within this host, for what a provider keeps in memory of it."""

    @property
    def is_named(self) -> bool:
        """A caller chose its id, so a later run may go on with it."""

    @property
    def has_history(self) -> bool:
        """An earlier run of the session ended complete: there is a conversation to go on with."""

    @property
    def native_id(self) -> str | None:
        """What an earlier run of the session remembered; None when this is the first, or nothing was captured."""

    @property
    def is_fork(self) -> bool:
        """The session is to begin with the conversation of another one."""

    @property
    def source_id(self) -> str | None:
        """The native id of that conversation; None when there is none, or none any more."""

    async def remember(self, native_id: str) -> None:
        """Store the id under which the next run resumes; durable when this returns."""


@dataclass(slots=True, kw_only=True)
class NoSession:
    """A slot for hosts without sessions: it remembers in memory."""

    key: str = ""
    is_named: bool = False
    has_history: bool = False
    native_id: str | None = None
    is_fork: bool = False
    source_id: str | None = None

    async def remember(self, native_id: str) -> None:
        self.native_id = native_id


class Decision(StrEnum):
    """What an agent that asked is told."""

    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One decision about one question: by a ``rule``, by a ``caller``, or by ``timeout``.

    ``content`` is what an allowed question is answered with, by the names that the agent asked under; None otherwise.
    """

    request_id: str
    decision: Decision
    by: str
    message: str = ""
    content: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "content", freeze(self.content))


class PermissionPort(Protocol):
    """Where a provider takes its agent's questions."""

    async def ask(self, request: PermissionRequest, show: Callable[[Sequence[Draft]], Awaitable[None]], /) -> Answer:
        """The answer to *request*, which may take minutes; asking again for the same id gives the same answer.

        *show* reports the question as an activity; it is called only when somebody has to be asked.
        """


class DenyAll:
    """The port of hosts without anybody to ask."""

    async def ask(self, request: PermissionRequest, show: Callable[[Sequence[Draft]], Awaitable[None]], /) -> Answer:
        return Answer(
            request_id=request.request_id, decision=Decision.DENY, by="rule", message="nobody can be asked here"
        )


class InputVerb(StrEnum):
    """What can be done to a run beside cancelling it. A provider does what its capabilities list, and nothing instead."""

    INTERRUPT = "interrupt"
    """Ask the agent in its own protocol to end the turn; never a signal. Confirmed, the run ends as cancelled."""
    STEER = "steer"
    """Say something more to the turn under way."""
    QUEUE = "queue"
    """Make a new run of the session, to begin when this one has ended."""


class InputOutcome(StrEnum):
    """What became of a verb."""

    CONFIRMED = "confirmed"
    """It had its effect."""
    NOT_CONFIRMED = "not_confirmed"
    """The agent did not confirm it in time, or cannot yet be asked; the run goes on."""
    TOO_LATE = "too_late"
    """The run had ended, or was ending, by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputReceipt:
    """The answer to a verb, with a sentence for people; ``run_id`` is the run that ``queue`` made."""

    outcome: InputOutcome
    message: str = ""
    run_id: str = ""


TakeInput = Callable[[InputVerb, str], Awaitable[InputReceipt]]


@dataclass(slots=True, kw_only=True)
class RunContext:
    """Cancel, deadline and private place of one run.

    ``directory`` is the run's own directory; it outlives the host, and a provider that survives its host keeps there
    what it needs to go on. When a restarted host executes the run again, ``adopting`` is set, and ``recorded`` is the
    last output position stored: what lies up to it is not stored twice. The provider sets ``caught_up`` when it has
    reported what happened meanwhile and found the run still going. ``deadline_boot_s`` is on CLOCK_BOOTTIME, so neither
    a restart nor the wall clock moves it; ``silence_s`` bounds the time without output, and
    ``budget`` what the agent may spend; ``mcp_servers`` names those to give to it. ``labels`` are the provider's
    own facts that the run's start and terminal carry; neither caller nor provider output overwrites them. While a turn
    can take verbs, the provider has ``take_input`` set.
    """

    directory: Path | None = None
    recorded: Position = Position()
    adopting: bool = False
    caught_up: asyncio.Event = field(default_factory=asyncio.Event)
    session: SessionSlot = field(default_factory=NoSession)
    permissions: PermissionPort = field(default_factory=DenyAll)
    deadline_boot_s: float | None = None
    silence_s: float | None = None
    budget: Budget = field(default_factory=Budget)
    mcp_servers: tuple[str, ...] = ()
    cancel_grace_s: float = 2.0
    labels: Mapping[str, str] = field(default_factory=dict)
    stop: Stop | None = None
    take_input: TakeInput | None = None
    _listeners: list[Callable[[], None]] = field(default_factory=list)

    def request_stop(self, stop: Stop) -> bool:
        """Ask the run to end; True if this is the first request. Later ones change nothing."""
        if self.stop is not None:
            return False
        self.stop = stop
        for listener in tuple(self._listeners):
            listener()
        return True

    def on_stop(self, listener: Callable[[], None]) -> None:
        """Call *listener* on the loop when the run is asked to stop; at once if it already was."""
        self._listeners.append(listener)
        if self.stop is not None:
            listener()

    async def stopped(self) -> Stop:
        """Wait until the run is asked to stop."""
        event = asyncio.Event()
        self.on_stop(event.set)
        await event.wait()
        assert self.stop is not None
        return self.stop


class EventSink(Protocol):
    """Where a provider reports."""

    async def emit(self, drafts: Sequence[Draft], /) -> None:
        """Take *drafts* in order. Returns when they are stored; may raise, and then the run is ended by the host."""


class Provider(Protocol):
    """Something that can execute runs: an agent CLI, an external worker, a script."""

    async def capabilities(self) -> Capabilities:
        """What it serves; immutable. A cancelled caller gets the cancellation, not an empty set."""

    async def execute(self, ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        """Execute *spec*; on return the terminal draft was handed to *sink*, which is never called again.

        When the context is asked to stop, everything of the run is ended first, then this raises. Called again with a
        directory that has been used, a provider that survives its host goes on with the run it finds there.

        Raises:
            RunCancelled: the run was cancelled; the child process tree is gone.
            FailureError: anything else, as a typed failure; an untyped exception counts as ``internal``.
        """

    async def close(self) -> None:
        """Release what the provider holds. Called once, after its last run."""


@runtime_checkable
class SessionTerminator(Protocol):
    """A provider that can end a logical session, which is another thing than cancelling a run."""

    async def terminate_session(self, session: SessionSlot) -> None:
        """Release what the provider keeps for *session*; no run of it is active. The host forgets the native id after."""


@runtime_checkable
class Describer(Protocol):
    """A provider that can explain its runs to an operator."""

    def artifacts(self, directory: Path) -> dict[str, Path]:
        """Files of a run by artifact name (``stderr``, ``raw``); only those that exist."""

    def explain(self, directory: Path) -> dict[str, str]:
        """Facts of a run for ``show``: redacted argv, exit code, signal; bounded text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """A question or an order to a provider that is no run: ``status``, or a name of the provider's own."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResponse:
    """What came of it: exactly one of ``failure`` and ``status`` for a status request."""

    failure: Failure | None = None
    status: AgentUsageStatus | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class CommandHandler(Protocol):
    """A provider that answers commands. Calls may overlap each other and any number of runs."""

    async def command(self, request: CommandRequest) -> CommandResponse:
        """Answer *request*, bounded in time. A name it does not know is the failure ``unsupported``.

        Raises:
            Exception: counts as a failed command; the host puts it into the answer.
        """
