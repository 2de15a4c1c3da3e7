"""What a dialect is: the rules by which one agent CLI's output becomes drafts, and which evidence ends its run.

A dialect is one module in ``providers/cli/dialects``, found by its file name. It offers ``decoder(context)``, which makes
a fresh :class:`Decoder` for one run. Its docstring names the format's source and version, and states the one rule by
which the dialect decides the terminal.

Decoders are pure functions of complete lines: equal lines in equal order give equal drafts, whatever the read sizes,
whenever it is done. Recovery depends on it: after a crash of the host the file is decoded again from its start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import msgspec

from providers.cli.json_fields import JsonObject
from runtime.events import Draft, PermissionRequest, Usage
from runtime.failure import Failure, FailureCode
from runtime.provider import Answer

State = Mapping[str, object]
"""What a session dialect notes of a process between two turns; JSON, stored with each run. Empty for a fresh process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnContext:
    """What a decoder may know of the run: the native id it was asked to resume, if any, and the process before it.

    ``state`` is the one before the turn, and is empty for a process that serves one run only.
    """

    resumed_id: str | None = None
    state: State = field(default_factory=dict)


class Line(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One complete line without its line end, ANSI sequences still in it; ``end`` is the byte offset after its LF."""

    data: bytes
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnd:
    """How the process ended: exactly one of code and signal is set; both None while it still runs.

    ``stderr`` is the redacted tail, for predicates and messages.
    """

    code: int | None = None
    signal: int | None = None
    stderr: str = ""

    @property
    def is_running(self) -> bool:
        return self.code is None and self.signal is None

    def __str__(self) -> str:
        if self.signal is not None:
            return f"killed by signal {self.signal}"
        return "still running" if self.code is None else f"exit code {self.code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """A line, or a part of one, that is no event this dialect knows; kept as a bounded, redacted diagnostic.

    ``kind`` is ``not_json``, ``unknown_type``, ``invalid_utf8``, ``overlong``, ``torn``, ``after_terminal`` …
    """

    kind: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The agent waits for leave. It stands at *offset* and *index* of the output, as a draft does."""

    request: PermissionRequest
    offset: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The agent waits for an answer that needs no decision: *data*, to be sent once under *key*."""

    key: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """The agent does not wait for the answer to a question any more; nobody is to give one."""

    request_id: str


FromAgent = Question | Reply | Withdrawal
Told = Draft | Noise | FromAgent


class Decoder(Protocol):
    """Decodes one run's output. Fed by one caller, in order."""

    def decode(self, line: Line) -> Sequence[Told]:
        """The drafts of *line*, each with ``offset=line.end`` and its index within the line; never a terminal."""

    @property
    def native_id(self) -> str | None:
        """The conversation id under which the CLI can resume, once it is known and may be adopted."""

    @property
    def has_ended(self) -> bool:
        """The terminal frame was seen; what follows is not of this run's answer."""

    def conclude(self, end: ProcessEnd) -> Draft:
        """The terminal by the dialect's rule, from the frames seen and *end*; total: it never raises.

        A decoder that has not seen its terminal frame answers an error, unless the rule takes exit status as evidence.
        """


class Dialect(Protocol):
    """A dialect module, seen as a value."""

    def decoder(self, context: TurnContext) -> Decoder: ...


class Conversation(Decoder, Protocol):
    """The decoder of one turn in a warm process: it also knows what to say to the agent meanwhile.

    What it gives to be said is a pure function of the turn's context and the lines seen, so that a node which takes the
    turn over says the same. Every piece is one or more whole lines.
    """

    def interrupt(self) -> bytes | None:
        """Ask the agent to end the turn; None while it cannot be asked, because it has not said what to name."""

    def answer(self, answer: Answer) -> bytes:
        """The answer to a :class:`Question` of this turn."""

    @property
    def state(self) -> State:
        """What the next turn has to know of this process, this turn included."""

    @property
    def is_usable(self) -> bool:
        """Whether the agent has kept to its language so far; a process that has not gets no other turn."""


@runtime_checkable
class Metered(Protocol):
    """A decoder whose agent reports during the run what it has spent."""

    @property
    def usage_so_far(self) -> Usage | None:
        """The run's own so far, as far as it is reported; None when nothing is."""


@runtime_checkable
class Steerable(Protocol):
    """A conversation whose agent takes more text in mid-turn, and answers whether it did."""

    def steer(self, text: str, name: str) -> bytes | None:
        """Say *text* to the turn under way, as the request *name*; None while there is no turn to say it to."""

    @property
    def steered(self) -> Mapping[str, bool]:
        """By name the requests that the agent has answered, and whether it took them."""


class Opening(Protocol):
    """The words exchanged with a fresh process before its first turn."""

    first: bytes
    """What to say first; empty where a process needs no opening."""

    def hear(self, line: Line) -> bytes:
        """What to say to *line*; empty for nothing."""

    @property
    def is_over(self) -> bool: ...

    @property
    def failure(self) -> Failure | None:
        """Why there will be no turn, once that is known."""

    @property
    def state(self) -> State:
        """What the first turn has to know; complete when the opening is over."""


class SessionDialect(Dialect, Protocol):
    """A dialect module for processes that serve a whole session."""

    def decoder(self, context: TurnContext) -> Conversation: ...

    def opening(
        self,
        *,
        cwd: str,
        resumed_id: str | None,
        source_id: str | None = None,
        settings: Mapping[str, str],
        mcp_servers: Sequence[JsonObject] = (),
    ) -> Opening:
        """The words with a fresh process in *cwd*, which goes on with *resumed_id* or begins as a fork of *source_id*.

        Of both at most one is given, and only where the arguments do not say it. *settings* are the profile's, for a
        dialect that chooses by words. So are *mcp_servers*, as that dialect writes them; they may hold secrets.
        """

    def encode_turn(self, text: str, state: State) -> bytes:
        """The user's *text* as the agent takes it."""


def process_failure(end: ProcessEnd, *, detail: str = "") -> Failure:
    """The failure of a process that ended without its terminal frame; the stderr tail is the best evidence there is."""
    facts = {} if end.code is None else {"exit_code": str(end.code)}
    if end.signal is not None:
        facts["signal"] = str(end.signal)
    clean_exit = end.code == 0
    what = detail or ("ended without a result" if clean_exit else "failed")
    tail = f"; stderr: {end.stderr}" if end.stderr else ""
    code = FailureCode.OUTPUT_INVALID if clean_exit else FailureCode.PROCESS_FAILED
    return Failure(code=code, message=f"the agent {what} ({end}){tail}", metadata=facts)
