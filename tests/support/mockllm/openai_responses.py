"""OpenAI Responses: ``POST /v1/responses``."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.mockllm.conversation import Conversation, Json, Reply, new_id, schema_in, text_of
from tests.support.mockllm.http import Response
from tests.support.mockllm.openai_chat import error
from tests.support.mockllm.scenario import Overloaded, Plan, pieces

__all__ = ["error", "read", "stream", "whole"]

# A context block that the CLI itself puts in is no turn of the user's.
_CLI_CONTEXT = re.compile(r"\s*(<environment_context|<user_instructions|# AGENTS\.md|<permissions)")

Event = Callable[..., Awaitable[None]]


def read(body: Json, *, model: str, is_stream: bool) -> Conversation:
    schema = schema_in((body.get("text") or {}).get("format"))
    found = Conversation(model=model, is_stream=is_stream, body=body, answer_schema=schema)
    found.system = body.get("instructions") or ""
    found.tools = {
        tool.get("name") or tool.get("type"): tool.get("parameters") or {"_type": tool.get("type")}
        for tool in body.get("tools") or []
    }
    items = body.get("input")
    previous = ""
    for item in [{"role": "user", "content": items}] if isinstance(items, str) else items or []:
        kind = item.get("type") or "message"
        if kind == "message" and item.get("role") == "user":
            text = text_of(item.get("content"))
            if not _CLI_CONTEXT.match(text):
                found.user(text)
        elif kind.endswith("_call_output") and not previous.endswith("_call_output"):
            found.step += 1
        previous = kind
    return found


def whole(conversation: Conversation, plan: Plan, reply: Reply) -> Json:
    return _finished(conversation, plan, reply, _items(reply))


async def stream(out: Response, conversation: Conversation, plan: Plan, reply: Reply) -> None:
    number = itertools.count()

    async def event(kind: str, **members: Any) -> None:
        await out.event({"type": kind, "sequence_number": next(number), **members}, kind)

    items = _items(reply)
    first = _shell(conversation)
    await event("response.created", response=first)
    await event("response.in_progress", response=first)
    for index, item in enumerate(items):
        try:
            await _STREAMED[item["type"]](event, plan, item, index)
        except Overloaded:
            failure = {"code": "server_is_overloaded", "message": "Overloaded"}
            await event("response.failed", response={**first, "status": "failed", "error": failure})
            raise
        await event("response.output_item.done", output_index=index, item=item)
    done = _finished(conversation, plan, reply, items)
    await event(f"response.{done['status']}", response=done)


async def _stream_reasoning(event: Event, plan: Plan, item: Json, index: int) -> None:
    at = {"output_index": index, "item_id": item["id"], "summary_index": 0}
    part = item["summary"][0]
    await event("response.output_item.added", output_index=index, item={**item, "summary": []})
    await event("response.reasoning_summary_part.added", **at, part={**part, "text": ""})
    for piece in pieces(part["text"], 4):
        await event("response.reasoning_summary_text.delta", **at, delta=piece)
    await event("response.reasoning_summary_text.done", **at, text=part["text"])
    await event("response.reasoning_summary_part.done", **at, part=part)


async def _stream_message(event: Event, plan: Plan, item: Json, index: int) -> None:
    at = {"output_index": index, "item_id": item["id"], "content_index": 0}
    part = item["content"][0]
    await event("response.output_item.added", output_index=index, item={**item, "status": "in_progress", "content": []})
    await event("response.content_part.added", **at, part={**part, "text": ""})
    async for piece in plan.paced(part["text"]):
        await event("response.output_text.delta", **at, delta=piece)
    await event("response.output_text.done", **at, text=part["text"])
    await event("response.content_part.done", **at, part=part)


async def _stream_call(event: Event, plan: Plan, item: Json, index: int) -> None:
    at = {"output_index": index, "item_id": item["id"]}
    await event(
        "response.output_item.added", output_index=index, item={**item, "status": "in_progress", "arguments": ""}
    )
    for piece in pieces(item["arguments"], 3):
        await event("response.function_call_arguments.delta", **at, delta=piece)
    await event("response.function_call_arguments.done", **at, arguments=item["arguments"])


_STREAMED = {"reasoning": _stream_reasoning, "message": _stream_message, "function_call": _stream_call}


def _items(reply: Reply) -> list[Json]:
    items: list[Json] = []
    if reply.thinking:
        summary = [{"type": "summary_text", "text": reply.thinking}]
        items.append({"id": new_id("rs"), "type": "reasoning", "encrypted_content": "bW9jaw==", "summary": summary})
    if reply.text:
        content = [{"type": "output_text", "text": reply.text, "annotations": []}]
        message = {
            "id": new_id("msg"),
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": content,
        }
        items.append(message)
    for call in reply.calls:
        names = {"call_id": new_id("call"), "name": call.name, "arguments": call.json}
        items.append({"id": new_id("fc"), "type": "function_call", "status": "completed", **names})
    return items


def _shell(conversation: Conversation) -> Json:
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "model": conversation.model,
        "status": "in_progress",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
    }


def _finished(conversation: Conversation, plan: Plan, reply: Reply, items: list[Json]) -> Json:
    is_cut = plan.text("stop") == "max_tokens"
    usage = {
        "input_tokens": reply.input_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": reply.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.input_tokens + reply.output_tokens,
    }
    status = "incomplete" if is_cut else "completed"
    details = {"reason": "max_output_tokens"} if is_cut else None
    return _shell(conversation) | {"status": status, "output": items, "usage": usage, "incomplete_details": details}
