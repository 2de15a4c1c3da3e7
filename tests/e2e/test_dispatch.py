"""Dispatching runs over gRPC to a real node: what a caller sends, and what it gets back."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from node.client import NodeClient
from node.pb import node_pb2
from runtime.types import RunRequest, SessionMode
from tests.support.nodes import Node
from tests.support.runs import BOUND_S, begun, ending, follow, run, text, told, words

Stub = Any

COUNT_TO_50 = "for i in $(seq 50); do echo $1$i; done"


@pytest.mark.req("PKG-01", "PKG-04", "NB-02", "NB-03", "NB-04", "NB-05", "NB-16")
async def test_a_target_and_an_input_are_a_whole_request(node: Node, stub: Stub) -> None:
    call = stub.Run(node_pb2.RunRequest(target="demo-agent", input="[[demo text=hello delay_ms=0]]"))
    events = [event async for event in call]

    deltas = [e.delta for e in events if e.type == "delta"]
    assert (events[0].type, "".join(deltas)) == ("start", "turn 1: hello")
    last = (events[-1].type, events[-1].delta, events[-1].message, events[-1].error)
    assert last == ("complete", "", "turn 1: hello", "")
    assert (await call.code()).name == "OK"


@pytest.mark.req("NB-09", "NB-07", "NB-08", "RT-18")
async def test_every_event_says_who_and_where_it_is_from(node: Node, stub: Stub) -> None:
    asked = node_pb2.RunRequest(
        run_id="identities", target="demo-agent", input="[[demo text=hello delay_ms=0]]", session_id="talk-identities",
        session_mode=node_pb2.SESSION_MODE_CREATE_IF_MISSING, background=True,
    )  # fmt: skip

    events = [event async for event in stub.Run(asked)]

    common = ("identities", "talk-identities", True, "node-of-the-tests")
    assert [(e.run_id, e.session_id, e.background, e.node_id) for e in events] == [common] * len(events)
    assert [e.previous_sequence for e in events] == [0, *(e.sequence for e in events[:-1])]
    assert events[-1].sequence == 5
    stamps = [e.timestamp.ToNanoseconds() for e in events]
    assert stamps == sorted(stamps) and stamps[0] > 0
    assert [bool(e.metadata.get("message_id")) for e in events] == [e.type == "delta" for e in events]
    usage = events[-1].usage
    assert [e.HasField("usage") for e in events] == [e.type == "complete" for e in events]
    assert (usage.input_tokens, usage.output_tokens, usage.cost_usd) == (8, 3, 0.0)
    assert not usage.HasField("reasoning_tokens"), "absent is not zero"


@pytest.mark.req("PKG-01", "NB-09")
async def test_a_run_without_an_id_is_told_its_id_before_its_first_event(node: Node, stub: Stub) -> None:
    call = stub.Run(node_pb2.RunRequest(target="demo-agent", input="[[demo text=hi delay_ms=0]]"))

    told = dict(await call.initial_metadata())["iop-run-id"]
    events = [event async for event in call]

    assert {event.run_id for event in events} == {told}
    assert (await stub.GetRun(node_pb2.GetRunRequest(run_id=told))).run.state == node_pb2.RUN_STATE_COMPLETE


async def test_an_id_that_was_sent_comes_back_in_the_initial_metadata(node: Node, stub: Stub) -> None:
    call = stub.Run(node_pb2.RunRequest(run_id="mine", target="shell", input="echo hi"))

    assert dict(await call.initial_metadata())["iop-run-id"] == "mine"
    assert [event.type async for event in call] == ["start", "delta", "complete"]


@pytest.mark.req("RT-13", "NB-05")
async def test_activity_is_sent_to_those_who_ask_and_changes_nothing_for_the_others(node: Node, stub: Stub) -> None:
    asked: dict[str, Any] = {
        "run_id": "with-tools",
        "target": "demo-agent",
        "input": "[[demo:tool cmd=echo%20tools text=done delay_ms=0]]",
    }
    without = [e async for e in stub.Run(node_pb2.RunRequest(**asked))]
    attach = node_pb2.AttachRunRequest(run_id="with-tools", include_activity=True)
    all_of_it = [e async for e in stub.AttachRun(attach)]

    six = [e for e in all_of_it if e.type != "activity"]
    assert {e.type for e in without} == {"start", "delta", "complete"}
    assert _said(six) == _said(without) == ["start:", "delta:turn 1: done", "complete:turn 1: done"]
    kinds = [e.activity.WhichOneof("kind") for e in all_of_it if e.type == "activity"]
    assert kinds == ["tool_call", "tool_result"]
    result = next(e.activity.tool_result for e in all_of_it if e.activity.WhichOneof("kind") == "tool_result")
    assert (result.output, result.is_error) == ("tools", False)
    for stream in (without, all_of_it):
        assert [e.previous_sequence for e in stream] == [0, *(e.sequence for e in stream[:-1])]


@pytest.mark.req("PKG-05", "RT-14", "RT-15")
async def test_parallel_streams_see_their_own_events_in_order(client: NodeClient) -> None:
    async def one(number: int) -> None:
        events = await run(client, "shell", COUNT_TO_50.replace("$1", f"{number}-"))
        assert text(events) == "".join(f"{number}-{i}\n" for i in range(1, 51))
        assert [e.sequence for e in events] == sorted({e.sequence for e in events})
        assert (events[0].type, events[-1].type, events[-1].sequence) == ("start", "complete", 52)

    async with asyncio.timeout(BOUND_S):
        await asyncio.gather(*(one(number) for number in range(24)))


@pytest.mark.req("PKG-05")
async def test_edges_share_a_node_without_seeing_each_other(node: Node) -> None:
    async def edge(number: int) -> list[str]:
        async with NodeClient(node.address) as client:
            return [ending((await run(client, "shell", f"echo {number}.{turn}"))[-1])[1] for turn in range(3)]

    found = await asyncio.gather(*(edge(number) for number in range(8)))

    assert found == [[f"{number}.{turn}\n" for turn in range(3)] for number in range(8)]


@pytest.mark.req("RT-14", "RT-15", "NB-16", "E-1")
@pytest.mark.parametrize(
    ("kind", "code", "retryable"),
    [
        ("auth", "auth_required", False),
        ("rate", "rate_limited", True),
        ("quota", "quota_exhausted", False),
        ("overloaded", "provider_overloaded", True),
        ("model", "model_unavailable", False),
        ("refusal", "refused", False),
        ("exit", "process_failed", False),
        ("killed", "process_failed", False),
        ("garbage", "output_invalid", False),
        ("nothing", "output_invalid", False),
        ("torn", "output_invalid", False),
    ],
)
async def test_what_an_agent_says_of_its_failure_is_a_typed_terminal(
    stub: Stub, node: Node, kind: str, code: str, retryable: bool
) -> None:
    call = stub.Run(node_pb2.RunRequest(target="demo-agent", input=f"[[demo:fail kind={kind} delay_ms=0]]"))
    events = [event async for event in call]

    last = events[-1]
    assert (events[0].type, last.type, last.failure.code, last.failure.retryable) == ("start", "error", code, retryable)
    assert {e.type for e in events[1:-1]} <= {"delta"}
    assert last.error and not last.error.lstrip().startswith(("{", "["))
    assert (await call.code()).name == "OK", "a run that was accepted ends with OK"


@pytest.mark.req("RT-24", "FAIL-07", "E-15")
async def test_the_timeout_of_a_request_ends_the_run_as_deadline_exceeded(client: NodeClient) -> None:
    events = await run(client, "demo-agent", "[[demo:silent]]", timeout=timedelta(seconds=0.5))

    assert words(events) == ["start", "error"]
    failure = events[-1].failure
    assert failure is not None and (failure.code, failure.retryable) == ("deadline_exceeded", True)
    assert (events[-1].time_ns - events[0].time_ns) / 1e9 < 30


@pytest.mark.req("RT-24", "E-15")
async def test_the_tighter_of_two_deadlines_ends_a_foreground_run(node: Node, stub: Stub) -> None:
    asked = node_pb2.RunRequest(
        run_id="outer-deadline", target="demo-agent", input="[[demo:silent]]", timeout=Duration(seconds=60)
    )
    with pytest.raises(Exception, match="DEADLINE_EXCEEDED"):
        await asyncio.gather(*[_drain(stub.Run(asked, timeout=2))])

    found = [e async for e in stub.AttachRun(node_pb2.AttachRunRequest(run_id="outer-deadline"))]

    assert [(e.type, e.failure.code) for e in found] == [("start", ""), ("error", "deadline_exceeded")]


@pytest.mark.req("E-15", "RT-33")
async def test_the_deadline_of_a_call_ends_only_the_stream_of_a_background_run(
    node: Node, stub: Stub, tmp_path: Path
) -> None:
    script = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo late"
    asked = node_pb2.RunRequest(run_id="patient", target="shell", input=script, background=True)
    with pytest.raises(Exception, match="DEADLINE_EXCEEDED"):
        await _drain(stub.Run(asked, timeout=1.5))
    (tmp_path / "go").touch()

    found = [e async for e in stub.AttachRun(node_pb2.AttachRunRequest(run_id="patient"))]

    assert [(e.type, e.message) for e in found] == [("start", ""), ("delta", ""), ("complete", "late\n")]


@pytest.mark.req("E-12", "E-19")
async def test_the_same_request_again_attaches_and_executes_once(client: NodeClient, tmp_path: Any) -> None:
    mark = tmp_path / "executed"
    asked = RunRequest(run_id="once", target="shell", input=f"echo x >> {mark}; echo done", metadata={"k": "v"})

    streams = await asyncio.gather(*(follow(client.run(asked)) for _ in range(5)))
    again = await follow(client.run(asked))

    assert mark.read_text() == "x\n"
    assert [told(stream) for stream in streams] == [told(again)] * 5
    assert ending(again[-1]) == ("complete", "done\n")


@pytest.mark.req("NB-15")
async def test_a_seen_terminal_means_a_free_slot(client: NodeClient) -> None:
    """Capacity 1: whoever sees the terminal is admitted at once, also after an error and a cancel."""
    for turn in range(60):
        events = await run(client, "one-at-a-time", "echo ok" if turn % 2 else "exit 3")
        assert words(events)[-1] == ("complete" if turn % 2 else "error")
    async with begun(client, "one-at-a-time", "sleep 60") as (run_id, events_to_come):
        await client.cancel(run_id)
        assert [e.type for e in await follow(events_to_come)][-1] == "cancelled"
        assert words(await run(client, "one-at-a-time", "echo ok"))[-1] == "complete"


@pytest.mark.req("RT-27")
async def test_a_full_node_still_answers_questions_and_says_so_of_runs(client: NodeClient, stub: Stub) -> None:
    async with begun(client, "one-at-a-time", "sleep 60") as (run_id, _):
        refused = await _refused(client, "one-at-a-time")
        answered = (await client.get(run_id)).run.state, (await client.status()).recovery_complete

        await client.cancel(run_id)

    assert refused == ("capacity_exhausted", "all 1 slots of target 'one-at-a-time' are in use")
    assert answered == ("running", True)


@pytest.mark.req("NB-06", "RT-13")
async def test_a_long_answer_arrives_whole_in_pieces_a_client_can_take(client: NodeClient) -> None:
    """Twice the limit of a message: the deltas are cut, the terminal points to the artifact."""
    events = await run(client, "demo-agent", "[[demo:flood lines=4 bytes=600000]]")

    deltas = [e for e in events if e.type == "delta"]
    whole = "".join(e.delta for e in deltas)
    assert len(whole) == 2_400_000 and max(len(e.delta) for e in deltas) <= 256 * 1024
    last = events[-1]
    assert (last.type.value, last.message, last.metadata["message_bytes"]) == ("complete", "", "2400000")
    answer = b"".join([piece async for piece in client.artifact(last.run_id, "answer")])
    assert answer.decode() == whole


async def test_what_a_run_left_can_be_listed_and_read(client: NodeClient) -> None:
    events = await run(client, "shell", "echo out; echo err >&2")
    run_id = events[0].run_id

    listed = {one.name: one.size_bytes for one in await client.artifacts(run_id)}
    read = {name: b"".join([p async for p in client.artifact(run_id, name)]) for name in listed}

    assert listed == {"answer": 4, "raw": 4, "stderr": 4}
    assert read == {"answer": b"out\n", "raw": b"out\n", "stderr": b"err\n"}


@pytest.mark.req("RT-03")
async def test_capabilities_name_the_targets_and_their_limits(client: NodeClient) -> None:
    view = await client.capabilities()

    found = {(t.adapter, t.target): t.max_concurrency for t in view.targets}
    assert (found["cli", "one-at-a-time"], found["cli", "demo-agent"]) == (1, 0)
    assert (view.limits["max_concurrent_runs"], view.limits["max_input_bytes"]) == (256, 3_500_000)


async def test_runs_are_listed_newest_first_page_by_page(client: NodeClient, stub: Stub) -> None:
    ids = [(await run(client, "shell", "echo x", run_id=f"listed-{n}"))[0].run_id for n in range(4)]

    pages, token = [], ""
    for _ in range(2):
        page = await stub.ListRuns(node_pb2.ListRunsRequest(page_size=2, page_token=token))
        pages.append([one.run_id for one in page.runs])
        token = page.next_page_token

    assert pages == [[ids[3], ids[2]], [ids[1], ids[0]]]


@pytest.mark.req("RT-34")
async def test_the_workspace_of_a_request_is_where_the_agent_works(client: NodeClient, tmp_path: Any) -> None:
    events = await run(client, "shell", "pwd -P", workspace=str(tmp_path))

    assert ending(events[-1]) == ("complete", f"{tmp_path.resolve()}\n")


async def test_two_runs_in_one_workspace_know_of_each_other(client: NodeClient, tmp_path: Any) -> None:
    async with begun(client, "shell", "sleep 60", workspace=str(tmp_path)) as (first, _):
        events = await run(client, "shell", "echo x", workspace=str(tmp_path), session_id="", session_mode=None)
        details = await client.get(events[0].run_id)
        await client.cancel(first)

    assert details.run.workspace_shared_with == (first,)


def _said(events: list[Any]) -> list[str]:
    """Type and text; pieces that follow each other count as one."""
    found: list[str] = []
    for event in events:
        if event.delta and found[-1].startswith("delta:"):
            found[-1] += event.delta
        else:
            found.append(f"{event.type}:{event.delta or event.message}")
    return found


async def _drain(call: Any) -> None:
    async for _ in call:
        pass


async def _refused(client: NodeClient, target: str) -> tuple[str, str]:
    from node.client import NodeError

    try:
        await run(client, target, "echo", session_mode=SessionMode.CREATE_IF_MISSING)
    except NodeError as error:
        return error.code, str(error)
    raise AssertionError("not refused")
