"""Gemini: ``POST /v1beta/models/MODEL:generateContent`` and ``:streamGenerateContent``."""

from __future__ import annotations

from tests.support.mockllm.conversation import Conversation, Json, Reply, new_id, text_of
from tests.support.mockllm.http import Response
from tests.support.mockllm.scenario import Overloaded, Plan, pieces

_STOP_REASONS = {"max_tokens": "MAX_TOKENS", "refusal": "SAFETY"}
_STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    529: "UNAVAILABLE",
}


def read(body: Json, *, model: str, is_stream: bool) -> Conversation:
    found = Conversation(model=model, is_stream=is_stream, body=body, answer_schema=_answer_schema(body))
    found.system = text_of((body.get("systemInstruction") or {}).get("parts"))
    for tool in body.get("tools") or []:
        for function in tool.get("functionDeclarations") or []:
            found.tools[function["name"]] = function.get("parametersJsonSchema") or function.get("parameters") or {}
    for content in body.get("contents") or []:
        if content.get("role") == "user":
            _read_user(found, content.get("parts") or [])
    return found


def _read_user(found: Conversation, parts: list[Json]) -> None:
    if any("functionResponse" in part for part in parts):
        found.step += 1
        return
    own = [part for part in parts if not str(part.get("text")).lstrip().startswith("<session_context")]
    if own:
        found.user(text_of(own))


def _answer_schema(body: Json) -> Json | None:
    config: Json = body.get("generationConfig") or {}
    if config.get("responseMimeType") != "application/json":
        return None
    schema: Json | None = config.get("responseJsonSchema") or config.get("responseSchema")
    return schema


def whole(conversation: Conversation, plan: Plan, reply: Reply) -> Json:
    parts: list[Json] = [{"text": reply.thinking, "thought": True}] if reply.thinking else []
    parts += [{"text": reply.text}] if reply.text else []
    return _chunk(conversation, reply, [*parts, *_calls(reply)], _stop_reason(plan))


def error(status: int, kind: str, message: str) -> Json:
    return {"error": {"code": status, "message": message, "status": _STATUS_NAMES.get(status, "UNKNOWN")}}


async def stream(out: Response, conversation: Conversation, plan: Plan, reply: Reply) -> None:
    async def part(members: Json, finish: str | None = None) -> None:
        await out.event(_chunk(conversation, reply, [members], finish))

    for piece in pieces(reply.thinking, 4) if reply.thinking else []:
        await part({"text": piece, "thought": True})
    try:
        async for piece in plan.paced(reply.text):
            await part({"text": piece})
    except Overloaded:
        await out.event({"error": {"code": 503, "message": "Overloaded", "status": "UNAVAILABLE"}})
        raise
    for call in _calls(reply):
        await part(call)
    await part({"text": ""}, _stop_reason(plan))


def _chunk(conversation: Conversation, reply: Reply, parts: list[Json], finish: str | None) -> Json:
    candidate: Json = {"index": 0, "content": {"role": "model", "parts": parts}}
    if finish:
        candidate["finishReason"] = finish
    usage = {
        "promptTokenCount": reply.input_tokens,
        "candidatesTokenCount": reply.output_tokens,
        "totalTokenCount": reply.input_tokens + reply.output_tokens,
    }
    ids = {"modelVersion": conversation.model, "responseId": new_id("resp")}
    return {"candidates": [candidate], **ids, "usageMetadata": usage}


def _calls(reply: Reply) -> list[Json]:
    return [{"functionCall": {"id": new_id("call"), "name": c.name, "args": c.arguments}} for c in reply.calls]


def _stop_reason(plan: Plan) -> str:
    return _STOP_REASONS.get(plan.text("stop"), "STOP")
