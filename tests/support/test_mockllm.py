"""The scripted model server, driven over HTTP as the CLIs drive it."""

from __future__ import annotations

import asyncio
import gzip
import json
import tomllib
from collections.abc import AsyncIterator, Callable
from http.client import IncompleteRead, RemoteDisconnected
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.mockllm.homes import claude_home, codex_home
from tests.support.mockllm.server import ModelServer, serving

Json = dict[str, Any]

SHELL_SCHEMA: Json = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}


class Vendor:
    """How a test speaks one API: where, with which body, and what it reads from the answer."""

    def __init__(
        self, path: str, body: Callable[[str, bool], Json], whole: Callable[[Json], str], piece: Callable[[Json], str]
    ):
        self.path, self.body, self.whole, self.piece = path, body, whole, piece

    def target(self, is_stream: bool) -> str:
        return self.path.replace(":generate", ":streamGenerate") if is_stream else self.path


def _messages(prompt: str, is_stream: bool) -> Json:
    tool = {"name": "Bash", "input_schema": SHELL_SCHEMA}
    return {"model": "m", "stream": is_stream, "tools": [tool], "messages": [{"role": "user", "content": prompt}]}


def _chat(prompt: str, is_stream: bool) -> Json:
    tool = {"type": "function", "function": {"name": "bash", "parameters": SHELL_SCHEMA}}
    return {"model": "m", "stream": is_stream, "tools": [tool], "messages": [{"role": "user", "content": prompt}]}


def _responses(prompt: str, is_stream: bool) -> Json:
    tool = {"type": "function", "name": "shell", "parameters": SHELL_SCHEMA}
    return {"model": "m", "stream": is_stream, "tools": [tool], "input": prompt}


def _gemini(prompt: str, is_stream: bool) -> Json:
    tools = [{"functionDeclarations": [{"name": "run_shell_command", "parameters": SHELL_SCHEMA}]}]
    return {"tools": tools, "contents": [{"role": "user", "parts": [{"text": prompt}]}]}


def _gemini_text(body: Json) -> str:
    parts = body["candidates"][0]["content"]["parts"]
    return "".join(part.get("text", "") for part in parts if not part.get("thought"))


VENDORS = {
    "anthropic": Vendor(
        "/v1/messages",
        _messages,
        lambda body: "".join(block.get("text", "") for block in body["content"]),
        lambda event: str(event.get("delta", {}).get("text", "")),
    ),
    "openai_responses": Vendor(
        "/v1/responses",
        _responses,
        lambda body: "".join(part["text"] for item in body["output"] for part in item.get("content", [])),
        lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
    ),
    "openai_chat": Vendor(
        "/v1/chat/completions",
        _chat,
        lambda body: str(body["choices"][0]["message"]["content"]),
        lambda event: "".join(choice["delta"].get("content", "") for choice in event.get("choices", [])),
    ),
    "gemini": Vendor("/v1beta/models/m:generateContent", _gemini, _gemini_text, _gemini_text),
}
every_vendor = pytest.mark.parametrize("vendor", VENDORS.values(), ids=VENDORS)


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with serving() as running:
        yield running


def _fetch(request: Request) -> bytes:
    with urlopen(request, timeout=60) as response:
        answer: bytes = response.read()
        return answer


async def post(server: ModelServer, path: str, body: Json, **headers: str) -> bytes:
    data = json.dumps(body).encode()
    if headers.get("content_encoding") == "gzip":
        data = gzip.compress(data)
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    request = Request(server.url + path, data=data, headers={"content-type": "application/json", **named})
    return await asyncio.to_thread(_fetch, request)


async def streamed(server: ModelServer, vendor: Vendor, prompt: str) -> list[Json]:
    data = (await post(server, vendor.target(True), vendor.body(prompt, True))).decode()
    lines = [line.removeprefix("data: ") for line in data.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@every_vendor
async def test_an_answer_is_the_same_whole_and_in_pieces(server: ModelServer, vendor: Vendor) -> None:
    prompt = "[[mock words=3 chunks=3]] hello"

    whole = json.loads(await post(server, vendor.path, vendor.body(prompt, False)))
    pieces = [text for event in await streamed(server, vendor, prompt) if (text := vendor.piece(event))]

    assert vendor.whole(whole) == "".join(pieces) == "turn 1: alpha bravo charlie"
    assert len(pieces) == 3


@every_vendor
async def test_characters_cut_across_writes_come_out_whole(server: ModelServer, vendor: Vendor) -> None:
    events = await streamed(server, vendor, "[[mock:emoji]]")

    assert "👩‍👩‍👧‍👦" in "".join(vendor.piece(event) for event in events)


@every_vendor
async def test_a_tool_call_fits_the_tool_on_offer(server: ModelServer, vendor: Vendor) -> None:
    body = (await post(server, vendor.path, vendor.body("[[mock:shell cmd=echo%20hi]]", False))).decode()

    assert "echo hi" in body
    assert server.entries[-1]["tool_calls"][0] in ("Bash", "bash", "shell", "run_shell_command")


@every_vendor
async def test_thinking_is_no_part_of_the_answer(server: ModelServer, vendor: Vendor) -> None:
    events = await streamed(server, vendor, "[[mock:think words=1 chunks=1]]")

    assert "thought-0" in json.dumps(events)
    assert "".join(vendor.piece(event) for event in events).startswith("turn 1: ")


@every_vendor
@pytest.mark.parametrize("status", [401, 429, 500, 529])
async def test_an_error_has_its_status_and_header(server: ModelServer, vendor: Vendor, status: int) -> None:
    prompt = f"[[mock status={status} retry_after=7 message=so%20it%20is]]"

    with pytest.raises(HTTPError) as caught:
        await post(server, vendor.path, vendor.body(prompt, False))

    with caught.value as error:
        assert (error.code, error.headers["retry-after"]) == (status, "7")
        assert "so it is" in error.read().decode()


@every_vendor
async def test_the_stream_tells_an_error_and_ends(server: ModelServer, vendor: Vendor) -> None:
    events = await streamed(server, vendor, "[[mock:sse_error]]")

    assert "Overloaded" in json.dumps(events[-1])
    assert server.entries[-1]["outcome"] == "error event"


@every_vendor
async def test_the_stop_reason_is_the_apis_own_word(server: ModelServer, vendor: Vendor) -> None:
    body = (await post(server, vendor.path, vendor.body("[[mock:truncated]]", False))).decode()

    assert any(word in body for word in ('"max_tokens"', '"max_output_tokens"', '"length"', '"MAX_TOKENS"'))


async def test_a_connection_can_be_cut_in_mid_answer(server: ModelServer) -> None:
    vendor = VENDORS["anthropic"]

    with pytest.raises((IncompleteRead, RemoteDisconnected)):
        await streamed(server, vendor, "[[mock:drop]]")

    assert server.entries[-1]["outcome"] == "dropped on purpose"


async def test_the_first_requests_fail_and_the_next_is_answered(server: ModelServer) -> None:
    vendor = VENDORS["anthropic"]
    body = vendor.body("[[mock:flaky]]", False)
    for _ in range(2):
        with pytest.raises(HTTPError) as caught:
            await post(server, vendor.path, body)
        caught.value.close()

    assert vendor.whole(json.loads(await post(server, vendor.path, body))).startswith("turn 1:")


async def test_turns_are_counted_and_the_last_directive_counts(server: ModelServer) -> None:
    messages = [
        {"role": "user", "content": "[[mock:e500]] one"},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": [{"type": "text", "text": "[[mock words=1]] two"}]},
    ]

    answer = json.loads(await post(server, "/v1/messages", {"messages": messages}))

    assert answer["content"][0]["text"] == "turn 2: alpha"


async def test_after_the_tool_result_comes_the_answer(server: ModelServer) -> None:
    messages = [
        {"role": "user", "content": "[[mock:shell words=1]]"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "Bash", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "hi"}]},
    ]

    answer = json.loads(await post(server, "/v1/messages", {"messages": messages}))

    assert (answer["stop_reason"], server.entries[-1]["step"]) == ("end_turn", 1)


async def test_a_request_of_the_clis_own_gets_a_fixed_answer(server: ModelServer) -> None:
    body = {"system": "Write a title for this.", "messages": [{"role": "user", "content": "[[mock:e500]]"}]}

    answer = json.loads(await post(server, "/v1/messages", body))

    assert answer["content"][0]["text"] == "Mock title"
    assert server.entries[-1]["side"]


async def test_an_answer_follows_the_schema_that_the_request_sets(server: ModelServer) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "kind": {"enum": ["a"]}}}
    body = {"input": "hi", "text": {"format": {"type": "json_schema", "schema": schema}}}

    answer = json.loads(await post(server, "/v1/responses", body))

    assert json.loads(VENDORS["openai_responses"].whole(answer)) == {"n": 10, "kind": "a"}


async def test_the_log_lists_requests_and_can_be_cleared(server: ModelServer) -> None:
    await post(server, "/v1/messages/count_tokens", {"messages": []}, content_encoding="gzip")
    log = await asyncio.to_thread(_fetch, Request(server.url + "/_mock/log"))

    assert json.loads(log)["target"] == "/v1/messages/count_tokens"

    await post(server, "/_mock/reset", {})
    assert [entry["target"] for entry in server.entries] == ["/_mock/reset"]


@pytest.mark.parametrize(("path", "key"), [("/v1/models", "data"), ("/v1beta/models", "models")])
async def test_models_are_listed(server: ModelServer, path: str, key: str) -> None:
    assert json.loads(await asyncio.to_thread(_fetch, Request(server.url + path)))[key]


async def test_a_websocket_is_refused_so_that_the_cli_falls_back(server: ModelServer) -> None:
    request = Request(server.url + "/v1/responses", headers={"upgrade": "websocket"})

    with pytest.raises(HTTPError) as caught:
        await asyncio.to_thread(_fetch, request)

    with caught.value as error:
        assert error.code == 426


def test_a_home_points_its_cli_at_the_server(tmp_path: Path) -> None:
    claude, codex = claude_home(tmp_path, "http://127.0.0.1:1"), codex_home(tmp_path, "http://127.0.0.1:1", retries=0)
    config = tomllib.loads((Path(codex["CODEX_HOME"]) / "config.toml").read_text())

    assert claude["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:1"
    assert config["model_providers"]["mock"]["base_url"] == "http://127.0.0.1:1/v1"
    assert config["model_providers"]["mock"]["request_max_retries"] == 0
    assert not Path(codex["CODEX_HOME"]).is_relative_to(codex["TMPDIR"])
