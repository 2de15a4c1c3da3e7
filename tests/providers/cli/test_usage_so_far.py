"""What a dialect knows of a run's usage while the run goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from providers.cli.dialect import Line, Metered, TurnContext
from providers.cli.dialects import known_dialects, load_dialect
from runtime.events import Usage

REPORTS = {
    "acp",
    "claude_session",
    "claude_stream_json",
    "codex_app_server",
    "opencode_json",
    "pi_json",
    "qwen_stream_json",
}


def test_these_agents_report_while_they_work() -> None:
    """The others tell it with their last frame, or never."""
    decoders = {name: load_dialect(name).decoder(TurnContext()) for name in known_dialects()}

    assert {name for name, decoder in decoders.items() if isinstance(decoder, Metered)} == REPORTS


def partial(parent: str | None = None, **event: Any) -> dict[str, Any]:
    return {"type": "stream_event", "event": event, "parent_tool_use_id": parent}


def begin(name: str, tokens: object, parent: str | None = None) -> dict[str, Any]:
    return partial(parent, type="message_start", message={"id": name, "usage": {"input_tokens": tokens}})


def end(tokens: object) -> dict[str, Any]:
    return partial(type="message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": tokens})


@pytest.mark.parametrize("dialect", ["claude_stream_json", "claude_session"])
def test_claude_tells_the_tokens_of_each_streamed_message(dialect: str) -> None:
    decoder = load_dialect(dialect).decoder(TurnContext())
    assert isinstance(decoder, Metered)
    assert decoder.usage_so_far is None

    for frame in (begin("a", 5), end(7), begin("sub", 100, "tool"), begin("b", "none"), end(1.5), end(2)):
        decoder.decode(Line(data=json.dumps(frame).encode(), end=1))

    assert decoder.usage_so_far == Usage(input_tokens=5, output_tokens=9)
