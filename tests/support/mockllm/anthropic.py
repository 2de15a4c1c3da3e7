"""Anthropic Messages: ``POST /v1/messages``."""

from __future__ import annotations

import json
from typing import Any

from tests.support.mockllm.conversation import Conversation, Json, Reply, new_id, schema_in, text_of
from tests.support.mockllm.http import Response
from tests.support.mockllm.scenario import DIRECTIVE, Overloaded, Plan, pieces

SIGNATURE = "bW9jaw=="


def read(body: Json, *, model: str, is_stream: bool) -> Conversation:
    schema = schema_in((body.get("output_config") or {}).get("format")) or schema_in(body.get("output_format"))
    found = Conversation(model=model, is_stream=is_stream, body=body, answer_schema=schema)
    found.system = text_of(body.get("system"))
    found.tools = {tool.get("name"): tool.get("input_schema") or {} for tool in body.get("tools") or []}
    for message in body.get("messages") or []:
        if message.get("role") == "user":
            _read_user(found, message.get("content"))
    return found


def _read_user(found: Conversation, content: object) -> None:
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    blocks = [block for block in blocks if isinstance(block, dict)]
    own = [block for block in blocks if block.get("type") != "tool_result"]
    said = text_of(own)
    if len(own) < len(blocks):
        found.step += 1
    # a prompt may follow a cut-off tool's result in one message
    if len(own) == len(blocks) or DIRECTIVE.search(said):
        found.user(said)


def whole(conversation: Conversation, plan: Plan, reply: Reply) -> Json:
    usage = {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens}
    shell = _shell(conversation, usage)
    return shell | {"content": _blocks(reply), "stop_reason": _stop_reason(plan, reply)}


def error(status: int, kind: str, message: str) -> Json:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": new_id("req")}


async def stream(out: Response, conversation: Conversation, plan: Plan, reply: Reply) -> None:
    async def event(kind: str, **members: Any) -> None:
        await out.event({"type": kind, **members}, kind)

    cache = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    counts = {"input_tokens": reply.input_tokens, **cache, "output_tokens": 1}
    await event("message_start", message=_shell(conversation, counts))
    await event("ping")
    for index, block in enumerate(_blocks(reply)):
        key, empty = _EMPTY[block["type"]]
        await event("content_block_start", index=index, content_block={**block, key: empty})
        try:
            async for delta in _deltas(plan, block):
                await event("content_block_delta", index=index, delta=delta)
        except Overloaded:
            await event("error", error={"type": "overloaded_error", "message": "Overloaded"})
            raise
        await event("content_block_stop", index=index)
    usage = {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens}
    await event("message_delta", delta={"stop_reason": _stop_reason(plan, reply), "stop_sequence": None}, usage=usage)
    await event("message_stop")


# The field that a block streams, and what it is before.
_EMPTY: dict[str, tuple[str, object]] = {"thinking": ("thinking", ""), "text": ("text", ""), "tool_use": ("input", {})}


async def _deltas(plan: Plan, block: Json) -> Any:
    if block["type"] == "text":
        async for piece in plan.paced(block["text"]):
            yield {"type": "text_delta", "text": piece}
    elif block["type"] == "thinking":
        for piece in pieces(block["thinking"], 4):
            yield {"type": "thinking_delta", "thinking": piece}
        yield {"type": "signature_delta", "signature": SIGNATURE}
    else:
        for piece in pieces(json.dumps(block["input"]), 3):
            yield {"type": "input_json_delta", "partial_json": piece}


def _shell(conversation: Conversation, usage: Json) -> Json:
    return {
        "id": new_id("msg"),
        "type": "message",
        "role": "assistant",
        "model": conversation.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def _blocks(reply: Reply) -> list[Json]:
    blocks: list[Json] = []
    if reply.thinking:
        blocks.append({"type": "thinking", "thinking": reply.thinking, "signature": SIGNATURE})
    if reply.text:
        blocks.append({"type": "text", "text": reply.text})
    calls = ({"type": "tool_use", "id": new_id("toolu"), "name": c.name, "input": c.arguments} for c in reply.calls)
    return [*blocks, *calls]


def _stop_reason(plan: Plan, reply: Reply) -> str:
    return "tool_use" if reply.calls else plan.text("stop", "end_turn")
