"""Bad input: refused before any process starts, with its code, its gRPC status, and a sentence that shows the way out."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct

from node.client import NodeClient
from node.pb import node_pb2
from tests.support.nodes import Node
from tests.support.runs import begun, follow, reason_of, refusal, run, words

Stub = Any

INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
CREATE, REQUIRE = node_pb2.SESSION_MODE_CREATE_IF_MISSING, node_pb2.SESSION_MODE_REQUIRE_EXISTING
LIMIT = 3_500_000


def policy(**members: Any) -> Struct:
    found = Struct()
    found.update(members)
    return found


BAD: dict[str, tuple[dict[str, Any], grpc.StatusCode, str, str]] = {
    "no target": ({"target": ""}, INVALID, "invalid_request", "target"),
    "unknown target": (
        {"target": "nobody"},
        NOT_FOUND,
        "target_not_found",
        "'nobody'",
    ),
    "a target in other letters": ({"target": "Demo-Agent"}, NOT_FOUND, "target_not_found", "'Demo-Agent'"),
    "a target with a space": ({"target": "demo-agent "}, NOT_FOUND, "target_not_found", "'demo-agent '"),
    "the beginning of a target": ({"target": "demo"}, NOT_FOUND, "target_not_found", "'demo'"),
    "unknown adapter": (
        {"adapter": "scripted"},
        NOT_FOUND,
        "target_not_found",
        "target 'scripted/demo-agent' is not served here",
    ),
    "a session without a mode": (
        {"session_id": "talk"},
        INVALID,
        "invalid_request",
        "session_id is given without a session_mode; set it to SESSION_MODE_CREATE_IF_MISSING or SESSION_MODE_REQUIRE_EXISTING",
    ),
    "a mode of the future": (
        {"session_id": "talk", "session_mode": 77},
        INVALID,
        "invalid_request",
        "session_mode 'SESSION_MODE_77' is unknown; use one of create_if_missing, require_existing",
    ),
    "an unknown session that must exist": (
        {"session_id": "never-seen", "session_mode": REQUIRE},
        NOT_FOUND,
        "session_not_found",
        "session 'never-seen' does not exist; use create_if_missing to begin it",
    ),
    "a required session without an id": (
        {"session_mode": REQUIRE},
        INVALID,
        "invalid_request",
        "session_mode require_existing needs a session_id",
    ),
    "a relative workspace": (
        {"workspace": "here/there"},
        INVALID,
        "invalid_request",
        "workspace 'here/there' is not an absolute path",
    ),
    "a missing workspace": (
        {"workspace": "/dev/null/gone"},
        INVALID,
        "invalid_request",
        "workspace '/dev/null/gone' does not exist on this node",
    ),
    "a workspace that is a file": (
        {"workspace": "/etc/passwd"},
        INVALID,
        "invalid_request",
        "workspace '/etc/passwd' is not a directory on this node",
    ),
    "a workspace with a NUL": ({"workspace": "/tmp\0x"}, INVALID, "invalid_request", "is not an absolute path"),
    "a negative timeout": (
        {"timeout": Duration(seconds=-3)},
        INVALID,
        "invalid_request",
        "timeout is -3.0 s; use 0 for none, or a positive duration",
    ),
    "a timeout of two signs": (
        {"timeout": Duration(seconds=1, nanos=-1)},
        INVALID,
        "invalid_request",
        "timeout of 1 s and -1 ns is not a duration",
    ),
    "a timeout beyond any clock": ({"timeout": Duration(seconds=1 << 40)}, INVALID, "invalid_request", "timeout"),
    "too much input": (
        {"input": "x" * (LIMIT + 1)},
        INVALID,
        "invalid_request",
        f"input is {LIMIT + 1} bytes; the limit is {LIMIT}: pass large material as files in the workspace",
    ),
    "too much input in other letters": (
        {"input": "€" * (LIMIT // 3 + 1)},
        INVALID,
        "invalid_request",
        "input is 3500001 bytes",
    ),
    "an id that is a path": (
        {"run_id": "../../outside"},
        INVALID,
        "invalid_request",
        "run_id '../../outside' is not allowed",
    ),
    "an id that is an option": ({"run_id": "--help"}, INVALID, "invalid_request", "run_id '--help' is not allowed"),
    "an id of other letters": ({"run_id": "rün"}, INVALID, "invalid_request", "run_id 'rün' is not allowed"),
    "an id that is too long": ({"run_id": "a" * 129}, INVALID, "invalid_request", "use 1 to 128 of A-Z a-z 0-9 . _ -"),
    "policy of ours that is unknown": (
        {"policy": policy(iop={"colour": "red"})},
        INVALID,
        "invalid_request",
        "policy.iop.colour is unknown; known: silence_timeout_s, budget, mcp_servers",
    ),
    "policy of ours that is no number": (
        {"policy": policy(iop={"silence_timeout_s": "long"})},
        INVALID,
        "invalid_request",
        "policy.iop.silence_timeout_s is 'long'; it must be a positive number",
    ),
    "policy that nobody declared": (
        {"policy": policy(sandbox="off")},
        INVALID,
        "invalid_request",
        "policy.sandbox is not understood by target 'demo-agent'; declared: none",
    ),
    "a cursor into the past": (
        {"after_sequence": -1},
        INVALID,
        "invalid_request",
        "after_sequence is -1; use 0 for the beginning",
    ),
    "a cursor into the future": (
        {"after_sequence": 9},
        grpc.StatusCode.OUT_OF_RANGE,
        "cursor_out_of_range",
        "after_sequence 9 is beyond",
    ),
}


@pytest.mark.req("RT-04", "RT-10", "RT-31", "NB-16", "NB-03", "E-4", "RT-09")
@pytest.mark.parametrize("name", BAD)
async def test_bad_input_is_refused_before_anything_is_stored_or_started(node: Node, stub: Stub, name: str) -> None:
    fields, status, code, sentence = BAD[name]
    before = await _state(node, stub)

    refused = await refusal(stub.Run(node_pb2.RunRequest(**{"target": "demo-agent", "input": "hi", **fields})))

    assert (refused[0], refused[1]) == (status, code)
    assert sentence in refused[2]
    assert await _state(node, stub) == before


@pytest.mark.req("RT-11", "NB-16")
async def test_hostile_session_ids_never_become_paths_or_options(node: Node, stub: Stub) -> None:
    hostile = [
        "../../outside",
        "..",
        "-rf",
        "--dangerously-skip-permissions",
        "line1\nline2",
        "nul\0byte",
        "a" * 5000,
        "/abs",
    ]
    before = await _state(node, stub)

    found = [
        await refusal(stub.Run(node_pb2.RunRequest(target="demo-agent", session_id=name, session_mode=CREATE)))
        for name in hostile
    ]

    assert [(status, code) for status, code, _ in found] == [(INVALID, "invalid_request")] * len(hostile)
    assert all("session_id" in sentence and len(sentence) < 200 for _, _, sentence in found)
    assert await _state(node, stub) == before
    assert not (node.root.parent / "outside").exists()


async def test_the_empty_session_id_and_a_good_one_are_accepted(client: NodeClient) -> None:
    anonymous = await run(client, "shell", "echo hi")
    named = await run(client, "shell", "echo hi", session_id="good-id_01", session_mode="create_if_missing")

    assert anonymous[0].session_id.startswith("anon-")
    assert named[0].session_id == "good-id_01"


@pytest.mark.req("RT-09", "RT-31")
async def test_a_session_belongs_to_its_target(client: NodeClient, stub: Stub) -> None:
    await run(client, "shell", "echo hi", session_id="of-shell", session_mode="create_if_missing")

    other: dict[str, Any] = {"target": "demo-agent", "input": "hi", "session_id": "of-shell"}
    created = await refusal(stub.Run(node_pb2.RunRequest(**other, session_mode=CREATE)))
    required = await refusal(stub.Run(node_pb2.RunRequest(**other, session_mode=REQUIRE)))

    sentence = "session 'of-shell' belongs to target 'shell', not 'demo-agent'; use another session_id"
    assert created == (grpc.StatusCode.ALREADY_EXISTS, "conflict", sentence)
    assert required == (NOT_FOUND, "session_not_found", sentence)


@pytest.mark.req("E-12", "NB-16")
@pytest.mark.parametrize("changed", ["input", "target", "metadata", "timeout", "background", "session"])
async def test_an_id_that_was_used_for_another_request_is_a_conflict(
    client: NodeClient, stub: Stub, changed: str
) -> None:
    first: dict[str, Any] = {"run_id": f"taken-{changed}", "target": "shell", "input": "echo hi"}
    events = await run(client, **{k: v for k, v in first.items() if k != "input"}, prompt=first["input"])
    changes: dict[str, dict[str, Any]] = {
        "input": {"input": "echo ho"}, "target": {"target": "demo-agent"}, "metadata": {"metadata": {"k": "v"}},
        "timeout": {"timeout": Duration(seconds=9)}, "background": {"background": True},
        "session": {"session_id": "s", "session_mode": CREATE},
    }  # fmt: skip

    refused = await refusal(stub.Run(node_pb2.RunRequest(**{**first, **changes[changed]})))

    sentence = f"run 'taken-{changed}' exists with another request; use a new run_id"
    assert refused == (grpc.StatusCode.ALREADY_EXISTS, "conflict", sentence)
    assert await follow(client.attach(f"taken-{changed}", include_activity=True)) == events


@pytest.mark.req("RT-12")
async def test_a_session_has_one_active_run(client: NodeClient, stub: Stub) -> None:
    named = {"session_id": "busy-talk", "session_mode": "create_if_missing"}
    async with begun(client, "shell", "sleep 60", **named) as (run_id, events):
        second = node_pb2.RunRequest(target="shell", input="echo hi", session_id="busy-talk", session_mode=CREATE)
        refused = await refusal(stub.Run(second))
        await client.cancel(run_id)
        await follow(events)
    after = await run(client, "shell", "echo hi", **named)

    sentence = "session 'busy-talk' has an active run; dispatch the next one when it has ended"
    assert refused == (grpc.StatusCode.FAILED_PRECONDITION, "session_busy", sentence)
    assert words(after) == ["start", "delta", "complete"]


@pytest.mark.req("RT-20", "NB-16")
async def test_an_unknown_run_is_not_found_by_any_call(node: Node, stub: Stub) -> None:
    sentence = "run 'no-such-run' is not known here; list your runs to see which are"
    calls = [
        stub.CancelRun(node_pb2.CancelRunRequest(run_id="no-such-run")),
        stub.GetRun(node_pb2.GetRunRequest(run_id="no-such-run")),
        stub.AttachRun(node_pb2.AttachRunRequest(run_id="no-such-run")),
        stub.ListArtifacts(node_pb2.ListArtifactsRequest(run_id="no-such-run")),
        stub.GetArtifact(node_pb2.GetArtifactRequest(run_id="no-such-run", name="answer")),
    ]

    assert [await refusal(call) for call in calls] == [(NOT_FOUND, "not_found", sentence)] * len(calls)


async def test_an_unknown_artifact_is_refused_with_those_there_are(client: NodeClient, stub: Stub) -> None:
    run_id = (await run(client, "shell", "echo hi"))[0].run_id

    refused = await refusal(stub.GetArtifact(node_pb2.GetArtifactRequest(run_id=run_id, name="video")))

    sentence = f"run {run_id!r} has no artifact 'video'; it has answer, raw"
    assert refused == (NOT_FOUND, "not_found", sentence)


@pytest.mark.req("NB-06", "NB-16")
async def test_text_that_is_not_utf8_is_refused_by_name(node: Node) -> None:
    """gRPC itself would answer INTERNAL with no word of the cause."""
    malformed = node_pb2.RunRequest(target="demo-agent").SerializeToString() + b"\x4a\x02\xff\xfe"  # field 9, input
    async with grpc.aio.insecure_channel(node.address) as channel:
        call: Any = channel.unary_stream("/iop.node.v1.NodeService/Run")
        text = await refusal(call(malformed))
        noise = await refusal(call(b"\x00\x01\x02"))

    assert text == (
        INVALID,
        "invalid_request",
        "input of iop.node.v1.RunRequest is not valid UTF-8; text must be UTF-8",
    )
    assert noise == (INVALID, "invalid_request", "the bytes are not a iop.node.v1.RunRequest message")


async def test_a_method_that_is_not_there_is_unimplemented(node: Node) -> None:
    async with grpc.aio.insecure_channel(node.address) as channel:
        method: Any = channel.unary_unary("/iop.node.v1.NodeService/NoSuchMethod")
        refused = await refusal(method(b""))

    assert refused[0] is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.req("NB-16")
async def test_a_message_over_the_servers_limit_is_refused_by_grpc(node: Node, stub: Stub) -> None:
    refused = await refusal(stub.Run(node_pb2.RunRequest(target="demo-agent", input="x" * (9 << 20))))

    assert refused[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.req("RT-12")
async def test_of_two_turns_at_the_same_moment_one_executes(client: NodeClient, stub: Stub, tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "target": "turns",
        "input": "1.5",
        "session_id": "twins",
        "session_mode": CREATE,
        "workspace": str(tmp_path),
    }
    calls = [stub.Run(node_pb2.RunRequest(**asked)) for _ in range(2)]

    found = await asyncio.gather(*(_outcome(call) for call in calls))
    later = [await _outcome(stub.Run(node_pb2.RunRequest(**{**asked, "input": "0"}))) for _ in range(2)]

    assert sorted(found) == ["complete", "session_busy"]
    assert later == ["complete", "complete"]
    turns = [line.split() for line in (tmp_path / "turns.log").read_text().splitlines()]
    assert [resumed for resumed, _, _ in turns] == ["none", "prov-1", "prov-1"]
    assert all(float(before[2]) <= float(after[1]) for before, after in pairwise(turns))


async def _outcome(call: Any) -> str:
    try:
        return str([event.type async for event in call][-1])
    except grpc.aio.AioRpcError as error:
        return reason_of(error)


async def _state(node: Node, stub: Stub) -> tuple[list[str], list[str], list[str]]:
    """Everything a run would leave a trace in."""
    listed = await stub.ListRuns(node_pb2.ListRunsRequest(page_size=1000))
    sessions = sorted(path.name for path in (node.data_dir / "sessions").iterdir())
    return [one.run_id for one in listed.runs], [path.name for path in node.run_directories()], sessions
