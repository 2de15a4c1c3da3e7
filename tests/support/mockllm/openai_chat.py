"""OpenAI Chat Completions: ``POST /v1/chat/completions``."""

from __future__ import annotations

import time

from tests.support.mockllm.conversation import Conversation, Json, Reply, ToolCall, new_id, schema_in, text_of
from tests.support.mockllm.http import Response
from tests.support.mockllm.scenario import Overloaded, Plan, pieces

_STOP_REASONS = {"max_tokens": "length", "refusal": "content_filter"}


def read(body: Json, *, model: str, is_stream: bool) -> Conversation:
    schema = schema_in(body.get("response_format"))
    found = Conversation(model=model, is_stream=is_stream, body=body, answer_schema=schema)
    functions = [tool.get("function") or {} for tool in body.get("tools") or []]
    found.tools = {str(function.get("name")): function.get("parameters") or {} for function in functions}
    previous = None
    for message in body.get("messages") or []:
        role = message.get("role")
        if role in ("system", "developer"):
            found.system += text_of(message.get("content"))
        elif role == "user":
            found.user(text_of(message.get("content")))
        elif role == "tool" and previous != "tool":
            found.step += 1
        previous = role
    return found


def whole(conversation: Conversation, plan: Plan, reply: Reply) -> Json:
    message: Json = {"role": "assistant", "content": reply.text or None}
    if reply.thinking:
        message["reasoning_content"] = reply.thinking
    if reply.calls:
        message["tool_calls"] = [_call(call, call.json) for call in reply.calls]
    choice = {"index": 0, "message": message, "finish_reason": _stop_reason(plan, reply)}
    return _shell(conversation, "chat.completion") | {"usage": _usage(reply), "choices": [choice]}


def error(status: int, kind: str, message: str) -> Json:
    code = "invalid_api_key" if status == 401 else kind
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


async def stream(out: Response, conversation: Conversation, plan: Plan, reply: Reply) -> None:
    shell = _shell(conversation, "chat.completion.chunk")

    async def delta(members: Json, finish: str | None = None) -> None:
        await out.event({**shell, "choices": [{"index": 0, "delta": members, "finish_reason": finish}]})

    await delta({"role": "assistant", "content": ""})
    for piece in pieces(reply.thinking, 4) if reply.thinking else []:
        await delta({"reasoning_content": piece})
    try:
        async for piece in plan.paced(reply.text):
            await delta({"content": piece})
    except Overloaded:
        await out.event({"error": {"message": "Overloaded", "type": "server_error", "code": "overloaded"}})
        raise
    for index, call in enumerate(reply.calls):
        await delta({"tool_calls": [{"index": index, **_call(call, "")}]})
        for piece in pieces(call.json, 3):
            await delta({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    await delta({}, _stop_reason(plan, reply))
    await out.event({**shell, "choices": [], "usage": _usage(reply)})
    await out.event("[DONE]")


def _shell(conversation: Conversation, kind: str) -> Json:
    return {"id": new_id("chatcmpl"), "object": kind, "created": int(time.time()), "model": conversation.model}


def _call(call: ToolCall, arguments: str) -> Json:
    return {"id": new_id("call"), "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _stop_reason(plan: Plan, reply: Reply) -> str:
    return "tool_calls" if reply.calls else _STOP_REASONS.get(plan.text("stop"), "stop")


def _usage(reply: Reply) -> Json:
    return {
        "prompt_tokens": reply.input_tokens,
        "completion_tokens": reply.output_tokens,
        "total_tokens": reply.input_tokens + reply.output_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
