"""A scripted model server on loopback: the vendors' own CLIs run against it, with a dummy key and no network.

It speaks, on one port:

    POST /v1/messages, /v1/messages/count_tokens             Anthropic Messages
    POST /v1/responses                                       OpenAI Responses
    POST /v1/chat/completions                                OpenAI Chat
    POST /v1beta/models/M:{streamGenerateContent,generateContent,countTokens}   Gemini
    GET  /v1/models, /v1beta/models                          model lists
    GET  /_mock/log                                          the requests so far, one JSON object a line
    POST /_mock/reset                                        clears the log and the counters of ``fail_first``

What it answers is chosen by a directive in the prompt (:mod:`tests.support.mockllm.scenario`). Requests that a CLI makes on
its own account (titles, topics) get a fixed answer and are marked ``side`` in the log.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.mockllm import anthropic, gemini, openai_chat, openai_responses
from tests.support.mockllm.conversation import Api, Conversation, Json, reply_to, sample
from tests.support.mockllm.http import HttpRequest, Response, read_request
from tests.support.mockllm.limits import limit_headers
from tests.support.mockllm.scenario import Dropped, Options, Overloaded, Plan

MODELS = ("mock-model", "claude-sonnet-4-5", "gpt-5.1-codex", "gemini-2.5-pro", "qwen3-coder-plus")
BODY_LIMIT_BYTES = 1 << 26

_APIS: Mapping[str, Api] = {
    "/messages": anthropic,
    "/responses": openai_responses,
    "/chat/completions": openai_chat,
}
_GEMINI = re.compile(r"/models/([^/:]+):(\w+)$")
_DOUBLED_VERSION = re.compile(r"^/(v1|v1beta)/\1/")  # some clients add the version to a base URL that has it
_ERROR_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


@asynccontextmanager
async def serving(
    port: int = 0,
    *,
    scenarios: Mapping[str, Options] | None = None,
    log: Path | None = None,
    dump: Path | None = None,
) -> AsyncIterator[ModelServer]:
    """A server on 127.0.0.1; its ``url`` says where. Open connections are cut when the block ends."""
    server = ModelServer(scenarios=scenarios, log=log, dump=dump)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", port, limit=BODY_LIMIT_BYTES)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        await server.cut_connections()


class ModelServer:
    """Answers requests and remembers them in ``entries``; those that are being answered are in ``answering``."""

    def __init__(self, *, scenarios: Mapping[str, Options] | None, log: Path | None, dump: Path | None) -> None:
        self.url = ""
        self.entries: list[Json] = []
        self.answering: list[Json] = []
        self._scenarios = scenarios or {}
        self._log = log
        self._dump = dump
        self._failed: Counter[str] = Counter()
        self._connections: set[asyncio.Task[Any]] = set()

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """One connection, until its client leaves."""
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        try:
            while (request := await read_request(reader, writer)) and await self._recorded(request, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, Dropped):
            pass  # the client left, or the plan cuts the connection: both end it
        finally:
            self._connections.discard(connection)
            writer.close()

    async def cut_connections(self) -> None:
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _recorded(self, request: HttpRequest, writer: StreamWriter) -> bool:
        entry: Json = {
            "t": round(time.time(), 3),
            "n": len(self.entries) + 1,
            "method": request.method,
            "target": request.target,
            "agent": request.headers.get("user-agent", ""),
            "bytes_in": len(request.body),
        }
        try:
            await self._route(request, writer, entry)
            entry.setdefault("outcome", "ok")
        except (ConnectionError, asyncio.CancelledError) as error:
            entry["outcome"] = f"client went away: {type(error).__name__}"
            raise
        except Dropped:
            entry["outcome"] = "dropped on purpose"
            raise
        finally:
            entry["took"] = round(time.time() - entry["t"], 3)
            self._record(entry)
        return request.keeps_alive

    def _record(self, entry: Json) -> None:
        self.entries.append(entry)
        if self._log:
            with self._log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    # -- routes

    async def _route(self, request: HttpRequest, writer: StreamWriter, entry: Json) -> None:
        path = _DOUBLED_VERSION.sub(r"/\1/", urlsplit(request.target).path)
        out = Response(writer)
        if "upgrade" in request.headers:
            entry["upgrade"] = request.headers["upgrade"]
            await out.json(426, {"error": {"message": "no websocket here"}})  # the CLI then falls back to HTTP
        elif path.startswith("/_mock/"):
            await self._own(path, out)
        elif request.method == "GET" and path.endswith("/models"):
            await out.json(200, _model_list(path))
        elif request.method == "HEAD" or (request.method == "GET" and path == "/"):
            await out.head(200, {"content-length": 0})
        elif request.method == "POST":
            await self._post(path, request, writer, entry)
        else:
            await _not_found(out, request.method, path, entry)

    async def _own(self, path: str, out: Response) -> None:
        if path == "/_mock/reset":
            self.entries.clear()
            self._failed.clear()
        text = "\n".join(json.dumps(entry, ensure_ascii=False) for entry in self.entries)
        await out.whole(200, text.encode(), "text/plain")

    async def _post(self, path: str, request: HttpRequest, writer: StreamWriter, entry: Json) -> None:
        out = Response(writer)
        try:
            body: Json = json.loads(request.body or b"{}")
        except ValueError:
            entry["outcome"] = "bad body"
            await out.json(400, {"error": {"message": "mock: the body is not JSON"}})
            return
        self._keep(path, request, body)
        tokens = len(request.body) // 4
        if path.endswith("/count_tokens"):
            await out.json(200, {"input_tokens": tokens})
        elif path.endswith(":countTokens"):
            await out.json(200, {"totalTokens": tokens})
        elif (found := _read(path, body)) is None:
            await _not_found(out, request.method, path, entry)
        else:
            await self._answer(*found, writer, entry)

    def _keep(self, path: str, request: HttpRequest, body: Json) -> None:
        if self._dump:
            self._dump.mkdir(parents=True, exist_ok=True)
            name = f"{time.time_ns() // 1_000_000}-{path.strip('/').replace('/', '_')}.json"
            (self._dump / name).write_text(json.dumps({"headers": request.headers, "body": body}, indent=1))

    # -- answers

    async def _answer(self, api: Api, conversation: Conversation, writer: StreamWriter, entry: Json) -> None:
        plan = self._plan(conversation)
        entry.update(
            model=conversation.model,
            stream=conversation.is_stream,
            turns=len(conversation.user_texts),
            step=conversation.step,
            side=conversation.is_side,
            tools=len(conversation.tools),
            directive=plan.directive,
        )
        out = Response(writer, splits_utf8=bool(plan.count("split_utf8")))
        if self._must_fail(plan):
            await _fail(api, plan, out, entry)
            return
        self.answering.append(entry)
        try:
            await asyncio.sleep(plan.number("first_delay"))
            await _reply(api, conversation, plan, out, entry)
        finally:
            self.answering.remove(entry)
            entry["bytes_out"] = out.sent

    def _plan(self, conversation: Conversation) -> Plan:
        if conversation.answer_schema is not None and not conversation.tools:
            return Plan({"reply": json.dumps(sample(conversation.answer_schema))})
        if conversation.is_side:
            return Plan({"reply": "Mock title"})
        last = conversation.user_texts[-1] if conversation.user_texts else ""
        return Plan.of(last, self._scenarios)

    def _must_fail(self, plan: Plan) -> bool:
        if not plan.count("status"):
            return False
        self._failed[plan.directive] += 1
        limit = plan.count("fail_first")
        return not limit or self._failed[plan.directive] <= limit


async def _reply(api: Api, conversation: Conversation, plan: Plan, out: Response, entry: Json) -> None:
    reply = reply_to(conversation, plan)
    if reply.calls:
        entry["tool_calls"] = [call.name for call in reply.calls]
    if not conversation.is_stream:
        await out.json(200, api.whole(conversation, plan, reply), limit_headers(plan))
        return
    await out.start_stream(limit_headers(plan))
    try:
        await api.stream(out, conversation, plan, reply)
    except Overloaded:
        entry["outcome"] = "error event"
    await out.end_stream()


async def _fail(api: Api, plan: Plan, out: Response, entry: Json) -> None:
    status = plan.count("status")
    entry["outcome"] = f"status {status}"
    kind = plan.text("etype", _ERROR_KINDS.get(status, "api_error"))
    wait = {"retry-after": plan.text("retry_after")} if plan.has("retry_after") else {}
    body = api.error(status, kind, plan.text("message", f"mock error {status}"))
    await out.json(status, body, {**wait, **limit_headers(plan)})


def _read(path: str, body: Json) -> tuple[Api, Conversation] | None:
    """The API that *path* belongs to, and the conversation it brings."""
    if match := _GEMINI.search(path):
        model, verb = match.groups()
        return gemini, gemini.read(body, model=model, is_stream=verb == "streamGenerateContent")
    for suffix, api in _APIS.items():
        if path.endswith(suffix):
            model = body.get("model") or "mock-model"
            return api, api.read(body, model=model, is_stream=bool(body.get("stream")))
    return None


async def _not_found(out: Response, method: str, path: str, entry: Json) -> None:
    entry["outcome"] = "404"
    await out.json(404, {"error": {"message": f"mock: no {method} {path}"}})


def _model_list(path: str) -> Json:
    if "v1beta" in path:
        return {"models": [{"name": f"models/{model}", "displayName": model} for model in MODELS]}
    fixed = {"object": "model", "type": "model", "created": 0, "owned_by": "mock", "created_at": "2026-01-01T00:00:00Z"}
    rows = [{"id": model, "display_name": model, **fixed} for model in MODELS]
    return {"object": "list", "data": rows, "has_more": False}
