"""A run's events as they come: for people, or for programs."""

from __future__ import annotations

from typing import Protocol

from node.commands.output import event_to_json, one_line, print_json, say, write
from node.runtime_bridge import MESSAGE_BYTES
from runtime.events import (
    MESSAGE_ID,
    Activity,
    EventType,
    Notice,
    PermissionRequest,
    Plan,
    RateLimit,
    RequestKind,
    RuntimeEvent,
    ToolCall,
    ToolResult,
    Usage,
)


class Printer(Protocol):
    """Takes the events of one run, in order."""

    def show(self, event: RuntimeEvent) -> None:
        """Print *event*, at once."""


class JsonPrinter:
    """One JSON object per event."""

    def show(self, event: RuntimeEvent) -> None:
        print_json(event_to_json(event))


class HumanPrinter:
    """The answer on standard output as it grows; on standard error dim thinking, activity, and a closing line."""

    def __init__(self) -> None:
        self._speaking = ""  # whose line is open: "answer", "thinking", or nobody's
        self._message_id = ""
        self._answered = False
        self._began_ns: int | None = None

    def show(self, event: RuntimeEvent) -> None:
        match event.type:
            case EventType.START:
                self._began_ns = event.time_ns
                say(f"run {event.run_id}" + (f", session {event.session_id}" if event.session_id else ""), style="dim")
            case EventType.DELTA:
                self._speak("answer", event)
                self._answered = True
            case EventType.REASONING_DELTA:
                self._speak("thinking", event)
            case EventType.ACTIVITY:
                self._end_line()
                if event.activity is not None:
                    say(activity_line(event.activity), style="cyan")
            case _:
                self._finish(event)

    def _speak(self, who: str, event: RuntimeEvent) -> None:
        message_id = event.metadata.get(MESSAGE_ID, "")
        if who != self._speaking or message_id != self._message_id:
            self._end_line()
        self._speaking, self._message_id = who, message_id
        if who == "answer":
            write(event.delta)
        else:
            say(event.delta, style="dim", end="")
        if event.delta.endswith("\n"):
            self._speaking = ""

    def _end_line(self) -> None:
        if self._speaking == "answer":
            write("\n")
        elif self._speaking == "thinking":
            say("")
        self._speaking = ""

    def _finish(self, event: RuntimeEvent) -> None:
        self._end_line()
        if event.type is EventType.COMPLETE and not self._answered and event.message:
            write(event.message if event.message.endswith("\n") else event.message + "\n")
        if MESSAGE_BYTES in event.metadata:
            size = event.metadata[MESSAGE_BYTES]
            say(f"the whole answer has {size} bytes: iop-node show {event.run_id} --answer")
        if event.type is EventType.ERROR:
            say(_cause(event), style="red")
        if event.type is EventType.CANCELLED and event.message:
            say(event.message, style="yellow")
        say(self._summary(event), style="dim" if event.type is EventType.COMPLETE else "yellow")

    def _summary(self, event: RuntimeEvent) -> str:
        parts = [f"{event.type.value} {event.run_id}"]
        if self._began_ns is not None:
            parts.append(f"{(event.time_ns - self._began_ns) / 1e9:.1f} s")
        if event.usage is not None:
            parts.append(usage_line(event.usage))
        return ", ".join(part for part in parts if part)


def _cause(event: RuntimeEvent) -> str:
    code = event.failure.code if event.failure else "error"
    advice = " (trying again may help)" if event.failure and event.failure.retryable else ""
    return f"{code}: {event.error}{advice}"


def usage_line(usage: Usage) -> str:
    """The reported figures, and only those."""
    figures = (
        (usage.input_tokens, "in"),
        (usage.output_tokens, "out"),
        (usage.cache_read_tokens, "cache read"),
        (usage.cache_write_tokens, "cache write"),
        (usage.reasoning_tokens, "reasoning"),
    )
    tokens = [f"{count:,} {what}" for count, what in figures if count is not None]
    cost = [f"${usage.cost_usd:.4f}"] if usage.cost_usd is not None else []
    return ", ".join(([f"tokens {' / '.join(tokens)}"] if tokens else []) + cost)


def activity_line(activity: Activity) -> str:
    """What the agent did beside answering, as one line."""
    match activity:
        case ToolCall(name=name, input_json=arguments):
            return one_line(f"-> {name} {arguments}")
        case ToolResult(output=output, is_error=is_error):
            return one_line(f"<- {'error: ' if is_error else ''}{output or 'ok'}")
        case PermissionRequest(kind=RequestKind.QUESTION, request_id=request_id, reason=reason, input_json=question):
            return one_line(f"?? (iop-node respond RUN {request_id} allow --answer JSON|deny) {reason} {question}")
        case PermissionRequest(request_id=request_id, tool=tool, input_json=arguments):
            return one_line(f"?? {tool} {arguments} (iop-node respond RUN {request_id} allow|deny)")
        case Plan(entries=entries):
            done = sum(entry.status == "completed" for entry in entries)
            now = next((entry.text for entry in entries if entry.status == "in_progress"), "")
            return one_line(f"plan {done}/{len(entries)} {now}")
        case RateLimit(status=status, window=window, used_percent=used):
            share = "" if used is None else f" {used:g} % used"
            return one_line(f"rate limit {status} {window}{share}")
        case Notice(code=code, message=message):
            return one_line(f"notice {code}: {message}")
