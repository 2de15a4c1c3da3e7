"""How commands speak: rich text for people, one JSON object per line for programs.

Standard output carries what was asked for (a run's answer, a table, JSON); everything about it (thinking, activity, the
closing line, errors) goes to standard error, so that ``iop-node run … > answer.txt`` holds the answer alone. Colour appears
on a terminal only. There, control characters of an agent are not obeyed: its text could otherwise repaint the screen.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from runtime.events import RuntimeEvent
from runtime.failure import Failure

_UNPRINTABLE = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """*text* without control characters other than line breaks and tabs."""
    return text.translate(_UNPRINTABLE)


def one_line(text: str, limit: int = 160) -> str:
    """The beginning of *text* as one printable line."""
    line = " ".join(printable(text[: limit * 4]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def write(text: str) -> None:
    """Put a piece of the answer on standard output, now."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def say(text: str, *, style: str = "", end: str = "\n") -> None:
    """Tell the person something, on standard error."""
    _console(stderr=True).print(Text(printable(text), style=style), end=end, soft_wrap=True)


def say_error(code: str, message: str, *, failure: Failure | None = None, as_json: bool = False) -> None:
    """Tell why nothing came of it: a sentence, or ``{"error": {"code": …, "message": …}}`` on standard error."""
    if as_json:
        more = {"retryable": failure.retryable, "metadata": dict(failure.metadata)} if failure else {}
        sys.stderr.write(to_json({"error": {"code": code, "message": message, **more}}) + "\n")
    else:
        say(f"{code}: {message}" if code not in message else message, style="red")


def print_json(value: Any) -> None:
    """Put *value* on standard output as one line."""
    sys.stdout.write(to_json(value) + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A plain table on standard output, one line per row however long: ids are there to be copied whole."""
    cells = [[printable(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    console = _console()
    for number, row in enumerate(cells):
        line = "  ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        console.print(Text(line.rstrip(), style="" if number else "bold"), soft_wrap=True)


def print_facts(facts: Mapping[str, str]) -> None:
    """Names and values on standard output, one fact a line; a value of several lines stands indented below its name."""
    width = max((len(name) for name in facts), default=0)
    console = _console()
    for name, value in facts.items():
        text = printable(value).rstrip("\n")
        shown = "\n" + "\n".join(f"    {line}" for line in text.split("\n")) if "\n" in text else text
        console.print(Text.assemble((f"{name:<{width}}", "bold"), "  ", shown), soft_wrap=True)


def event_to_json(event: RuntimeEvent) -> dict[str, Any]:
    """The event as programs see it: absent is left out, time is ISO 8601 in UTC."""
    fields: dict[str, Any] = msgspec.to_builtins(event, enc_hook=_plain)
    fields["timestamp"] = event.timestamp.isoformat()
    for private in ("time_ns", "offset", "index", "piece"):
        fields.pop(private, None)
    return fields


def to_json(value: Any) -> str:
    """*value* as one line of JSON."""
    return msgspec.json.encode(value, enc_hook=_plain).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise NotImplementedError(f"no JSON for {type(value).__name__}")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process with its own exit code."""
        raise BrokenPipeError


def _console(*, stderr: bool = False) -> Console:
    return _Console(stderr=stderr, highlight=False, markup=False, emoji=False)
