"""What a dialect is: the rules by which one agent CLI's output becomes drafts, and which evidence ends its run.

A dialect is one module in ``providers/cli/dialects``, found by its file name. It offers ``decoder(context)``, which makes
a fresh :class:`Decoder` for one run. Its docstring names the format's source and version, and states the one rule by
which the dialect decides the terminal.

Decoders are pure functions of complete lines: equal lines in equal order give equal drafts, whatever the read sizes,
whenever it is done. Recovery depends on it: after a crash of the host the file is decoded again from its start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from runtime.events import Draft
from runtime.failure import Failure, FailureCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnContext:
    """What a decoder may know of the run: the native id it was asked to resume, if any."""

    resumed_id: str | None = None


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


class Decoder(Protocol):
    """Decodes one run's output. Fed by one caller, in order."""

    def decode(self, line: Line) -> Sequence[Draft | Noise]:
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
