"""What the four APIs have in common: the conversation that a request brings, and the reply that it gets."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.support.mockllm.http import Response
from tests.support.mockllm.scenario import Plan

Json = dict[str, Any]

# Each CLI has its own name for the same tool; the first one on offer is called.
_TOOLS: Mapping[str, tuple[str, ...]] = {
    "shell": ("Bash", "bash", "shell_command", "exec_command", "run_shell_command", "shell", "local_shell"),
    "write": ("Write", "write", "write_file", "create_file", "create"),
    "read": ("Read", "read", "read_file", "view"),
}
_PATH_KEYS = ("file_path", "filePath", "absolute_path", "path")
_CONTENT_KEYS = ("content", "file_text", "contents")
_SAMPLES: Mapping[object, object] = {"array": [], "integer": 10, "number": 1.0, "boolean": False, "null": None}
_FILLERS: Mapping[object, object] = {"boolean": False, "number": 0, "integer": 0, "array": []}
_SIDE_WORDS = ("title", "topic", "summar", "next speaker", "classif")

_ids = itertools.count(1)


def new_id(prefix: str) -> str:
    return f"{prefix}_mock{next(_ids):06d}"


@dataclass(kw_only=True)
class Conversation:
    """A request, as far as the answer depends on it."""

    model: str
    is_stream: bool
    body: Json
    system: str = ""
    user_texts: list[str] = field(default_factory=list)
    step: int = 0
    """Tool results since the last user text."""
    tools: dict[str, Json] = field(default_factory=dict)
    """The schema of the arguments by tool name."""
    answer_schema: Json | None = None
    """The JSON schema that the answer itself has to follow, where the request sets one."""

    def user(self, text: str) -> None:
        self.user_texts.append(text)
        self.step = 0

    @property
    def is_side(self) -> bool:
        """A title, topic or summary that the CLI asks for on its own account."""
        head = self.system[:4000].lower()
        return not self.tools and any(word in head for word in _SIDE_WORDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    name: str
    arguments: Json

    @property
    def json(self) -> str:
        return json.dumps(self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the model says."""

    text: str = ""
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    input_tokens: int = 1
    output_tokens: int = 1


class Api(Protocol):
    """One vendor's API: how a conversation is read and a reply is written."""

    def read(self, body: Json, *, model: str, is_stream: bool) -> Conversation:
        """The conversation in a request's *body*."""

    def whole(self, conversation: Conversation, plan: Plan, reply: Reply) -> Json:
        """The reply as one JSON body."""

    async def stream(self, out: Response, conversation: Conversation, plan: Plan, reply: Reply) -> None:
        """The reply as server-sent events.

        Raises:
            Overloaded: after the API's own error event was sent, where the plan asks for one.
        """

    def error(self, status: int, kind: str, message: str) -> Json:
        """The body of an HTTP error."""


def reply_to(conversation: Conversation, plan: Plan) -> Reply:
    """The reply that *plan* asks for at this step of *conversation*."""
    calls: tuple[ToolCall, ...] = ()
    if plan.has("tool") and conversation.step < plan.count("calls", 1):
        calls = tuple(tool_call(conversation, plan, conversation.step + i) for i in range(plan.count("parallel", 1)))
    text = plan.text("say") if calls else plan.answer(len(conversation.user_texts))
    thinking = plan.thinking() if conversation.step == 0 else ""
    return Reply(
        text=text,
        thinking=thinking,
        calls=calls,
        input_tokens=plan.count("in_tokens", max(1, len(json.dumps(conversation.body)) // 4)),
        output_tokens=plan.count("out_tokens", max(1, (len(text) + len(thinking)) // 4 + 10 * len(calls))),
    )


def tool_call(conversation: Conversation, plan: Plan, number: int) -> ToolCall:
    """The call that *plan* asks for, fitted to the tools on offer."""
    kind = plan.text("tool")
    names = _TOOLS.get(kind, (kind,))
    name = next((each for each in names if each in conversation.tools), names[0])
    if plan.has("args"):
        return ToolCall(name=name, arguments=json.loads(plan.text("args")))
    schema = conversation.tools.get(name) or {}
    known: Json = schema.get("properties") or {}
    arguments = _shell_arguments(plan, known, number) if kind == "shell" else _file_arguments(plan, known, kind)
    for key in schema.get("required") or []:
        arguments.setdefault(key, _FILLERS.get((known.get(key) or {}).get("type"), "mock"))
    return ToolCall(name=name, arguments=arguments)


def _shell_arguments(plan: Plan, known: Json, number: int) -> Json:
    command = plan.text("cmd", "echo tool-says-hi").replace("{n}", str(number))
    key = "cmd" if "cmd" in known else "command"
    is_list = (known.get(key) or {}).get("type") == "array"
    arguments: Json = {key: ["bash", "-lc", command] if is_list else command}
    if plan.has("timeout_ms"):
        arguments |= {
            key: plan.count("timeout_ms") for key in ("timeout", "timeout_ms", "yield_time_ms") if key in known
        }
    return arguments


def _file_arguments(plan: Plan, known: Json, kind: str) -> Json:
    arguments: Json = {_first_known(_PATH_KEYS, known, "path"): plan.text("path", "mock-out.txt")}
    if kind == "write":
        arguments[_first_known(_CONTENT_KEYS, known, "content")] = plan.text("content", "written by the mock\n")
    return arguments


def _first_known(keys: tuple[str, ...], known: Json, default: str) -> str:
    return next((key for key in keys if key in known), default)


def text_of(content: object) -> str:
    """The text of a message's content, which is text or a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return "\n".join(text for text in texts if isinstance(text, str))


def sample(schema: Json) -> object:
    """A small value that follows a JSON *schema*."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object")
    kind = (kind[0] if isinstance(kind, list) else kind).lower()
    if kind == "object":
        return {key: sample(each) for key, each in (schema.get("properties") or {}).items()}
    return _SAMPLES.get(kind, "Mock title")


def schema_in(setting: object) -> Json | None:
    """The schema in an OpenAI-style response format."""
    if not isinstance(setting, dict) or setting.get("type") != "json_schema":
        return None
    found: Json | None = setting.get("schema") or (setting.get("json_schema") or {}).get("schema")
    return found
