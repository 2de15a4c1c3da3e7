from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import pytest

from node.client import NodeClient, NodeError, NodeUnreachable
from node.pb import node_pb2
from node.wire_views import ArtifactView, CancelReceipt, TargetView, state_from_wire
from runtime.events import EventType, RuntimeEvent
from runtime.failure import FailureCode, InvalidRequest
from runtime.types import RunRequest
from tests.support.scripted_node import ScriptedNode, served

REQUEST = RunRequest(target="demo", input="hi", run_id="r1")


async def collect(node: ScriptedNode, request: RunRequest = REQUEST, *, activity: bool = False) -> list[RuntimeEvent]:
    async with served(node) as address, NodeClient(address) as client, asyncio.timeout(60):
        return [event async for event in client.run(request, include_activity=activity)]


@pytest.mark.req("PKG-05", "NB-02")
async def test_a_run_is_streamed_to_its_terminal() -> None:
    node = ScriptedNode("a", "b")

    assert await collect(node, activity=True) == node.events("r1")


@pytest.mark.req("NB-16")
@pytest.mark.parametrize("end", [EventType.ERROR, EventType.CANCELLED])
async def test_a_run_that_ends_badly_is_not_an_error_of_the_call(end: EventType) -> None:
    node = ScriptedNode("a", end=end)

    assert (await collect(node))[-1].type is end


@pytest.mark.req("RT-13")
async def test_without_activity_the_six_are_the_same() -> None:
    node = ScriptedNode("a", "b")

    assert await collect(node) == [event for event in node.events("r1") if event.activity is None]


@pytest.mark.req("NB-02")
@pytest.mark.parametrize(
    "breaks",
    [
        [(0, "abort")],
        [(2, "abort")],
        [(1, "abort"), (1, "abort"), (0, "abort"), (1, "abort")],
        [(2, "end")],
        [(2, "skip")],
        [(4, "abort")],
        [(3, "abort"), (4, "repeat")],
    ],
    ids=[
        "before the first",
        "midway",
        "again and again",
        "ends early",
        "loses one",
        "before the terminal",
        "repeats all",
    ],
)
async def test_a_broken_stream_is_continued_without_loss_or_repetition(breaks: Sequence[tuple[int, str]]) -> None:
    node = ScriptedNode("a", "b", "c", breaks=breaks)

    assert await collect(node, activity=True) == node.events("r1")


@pytest.mark.req("NB-02")
async def test_before_the_first_event_the_same_request_is_sent_again() -> None:
    node = ScriptedNode("a", breaks=[(0, "abort")])

    await collect(node, RunRequest(target="demo", input="hi"))

    first, second = node.requests
    assert first.run_id
    assert first == second


@pytest.mark.req("NB-02")
async def test_after_the_first_event_the_run_is_attached_from_the_cursor() -> None:
    node = ScriptedNode("a", "b", breaks=[(2, "abort")])

    await collect(node, activity=True)

    assert node.requests[1:] == [node_pb2.AttachRunRequest(run_id="r1", after_sequence=2, include_activity=True)]


@pytest.mark.req("NB-02")
async def test_a_node_that_restarts_is_found_again() -> None:
    """Between the two nodes nobody listens at all."""
    first = ScriptedNode("a", "b", breaks=[(2, "hang")])
    second = ScriptedNode("a", "b")
    seen: list[RuntimeEvent] = []

    async with asyncio.timeout(60):
        async with served(first) as address:
            client = await NodeClient(address).__aenter__()
            reading = asyncio.ensure_future(_drain(client, seen))
            await first.hanging.wait()
        async with served(second, address=address):
            await reading
        await client.__aexit__(None, None, None)

    assert seen == second.events("r1")


async def _drain(client: NodeClient, seen: list[RuntimeEvent]) -> None:
    async for event in client.run(REQUEST, include_activity=True):
        seen.append(event)  # noqa: PERF401 - what was seen before an error counts


@pytest.mark.req("NB-16")
async def test_an_outage_longer_than_the_bound_is_told() -> None:
    node = ScriptedNode("a", breaks=[(1, "abort")] + [(0, "abort")] * 1000)
    seen: list[RuntimeEvent] = []

    async with served(node) as address, NodeClient(address, reattach_s=1.5) as client, asyncio.timeout(60):
        with pytest.raises(NodeUnreachable):
            await _drain(client, seen)

    assert [event.sequence for event in seen] == [1]
    assert 2 < len(node.requests) < 20


@pytest.mark.req("NB-16")
async def test_no_node_at_all_is_told_as_unreachable() -> None:
    async with NodeClient("127.0.0.1:1", reattach_s=0) as client, asyncio.timeout(60):
        with pytest.raises(NodeUnreachable):
            await client.status()
        with pytest.raises(NodeUnreachable, match=r"127\.0\.0\.1:1"):
            await client.ready(0.2)
        with pytest.raises(NodeUnreachable):
            async for _ in client.run(REQUEST):
                pass


@pytest.mark.req("NB-16", "RT-31")
async def test_a_refusal_is_told_at_once_with_the_nodes_reason() -> None:
    node = ScriptedNode("a")

    with pytest.raises(NodeError) as caught:
        await collect(node, RunRequest(target="unknown"))

    assert caught.value.failure is not None
    assert caught.value.failure.code is FailureCode.TARGET_NOT_FOUND
    assert caught.value.code == "target_not_found"
    assert len(node.requests) == 1


@pytest.mark.req("NB-16")
async def test_another_request_under_the_same_id_is_a_conflict() -> None:
    node = ScriptedNode("a")

    async with served(node) as address, NodeClient(address) as client:
        assert len([event async for event in client.run(REQUEST)]) == 3
        with pytest.raises(NodeError, match="another request") as caught:
            async for _ in client.run(RunRequest(target="demo", input="other", run_id="r1")):
                pass

    assert caught.value.code == "conflict"


@pytest.mark.req("RT-10")
async def test_a_request_that_has_no_wire_form_is_not_sent() -> None:
    node = ScriptedNode("a")

    with pytest.raises(InvalidRequest):
        await collect(node, RunRequest(target="demo", session_id="s", session_mode="branch"))

    assert node.requests == []


@pytest.mark.req("RT-33")
@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_a_reader_that_leaves_ends_its_call(how: str) -> None:
    """grpc.aio never collects a call that is only dropped, and the node would think it is still read."""
    node = ScriptedNode("a", "b", breaks=[(2, "hang")])

    async with served(node) as address, NodeClient(address) as client, asyncio.timeout(60):
        reading = asyncio.ensure_future(_read(client, 1 if how == "closed" else 100))
        if how == "cancelled":
            await node.hanging.wait()
            reading.cancel()
        await asyncio.wait([reading])
        while node.streams_ended == 0:
            await asyncio.sleep(0)

        assert reading.cancelled() is (how == "cancelled")
        assert await client.status()  # the connection is still good


async def _read(client: NodeClient, count: int) -> None:
    async with aclosing(client.run(REQUEST)) as events:
        async for event in events:
            if event.sequence >= count:
                return


@pytest.mark.req("NB-02")
async def test_attaching_gives_what_lies_beyond_the_cursor() -> None:
    node = ScriptedNode("a", "b")
    events = node.events("r1")

    async with served(node) as address, NodeClient(address) as client, asyncio.timeout(60):
        beyond = [event async for event in client.attach("r1", 2, include_activity=True)]
        at_the_end = [event async for event in client.attach("r1", len(events))]
        with pytest.raises(NodeError) as too_far:
            [event async for event in client.attach("r1", len(events) + 1)]
        with pytest.raises(NodeError) as missing:
            [event async for event in client.attach("missing")]

    assert beyond == events[2:]
    assert at_the_end == []
    assert (too_far.value.code, missing.value.code) == ("cursor_out_of_range", "not_found")


@pytest.mark.req("RT-19", "RT-20")
async def test_the_questions_are_answered_in_plain_values() -> None:
    node = ScriptedNode("a")
    node.artifacts = {"stderr": b"0123456789"}
    node.pages = [
        node_pb2.ListRunsResponse(runs=[node.info("r3"), node.info("r2")], next_page_token="1"),
        node_pb2.ListRunsResponse(runs=[node.info("r1")]),
    ]

    async with served(node) as address, NodeClient(address) as client, asyncio.timeout(60):
        receipt = await client.cancel("r1", reason="enough")
        details = await client.get("r1")
        listed = [run.run_id async for run in client.list(active_only=True)]
        artifacts = await client.artifacts("r1")
        data = b"".join([piece async for piece in client.artifact("r1", "stderr")])
        capabilities = await client.capabilities()
        status = await client.status()
        serving = await client.is_serving()

    assert receipt == CancelReceipt(accepted=True, state="cancelled")
    assert node.cancels == [node_pb2.CancelRunRequest(run_id="r1", reason="enough")]
    assert (details.run.state, details.run.has_ended, details.details["exit_code"]) == ("complete", True, "3")
    assert listed == ["r3", "r2", "r1"]
    assert [request.active_only for request in node.requests] == [True, True]
    assert artifacts == (ArtifactView(name="stderr", size_bytes=10),)
    assert data == b"0123456789"
    assert capabilities.targets == (TargetView(adapter="scripted", target="demo", max_concurrency=2),)
    assert (status.node_id, status.recovery_complete, status.notes) == ("scripted", True, ("a note",))
    assert serving


@pytest.mark.req("NB-02")
def test_every_state_of_the_wire_has_its_word_and_an_unknown_one_shows() -> None:
    words = {name: state_from_wire(number) for name, number in node_pb2.RunState.items()}

    assert words == {name: name.removeprefix("RUN_STATE_").lower() for name in words}
    assert state_from_wire(77) == "unknown (77)"


@pytest.mark.req("PKG-05")
async def test_streams_of_one_client_run_side_by_side() -> None:
    node = ScriptedNode("a", "b")
    requests = [RunRequest(target="demo", run_id=f"r{number}") for number in range(20)]

    async with served(node) as address, NodeClient(address) as client, asyncio.timeout(60):

        async def ids(request: RunRequest) -> list[tuple[str, int]]:
            return [(event.run_id, event.sequence) async for event in client.run(request)]

        streams = await asyncio.gather(*map(ids, requests))

    assert streams == [[(request.run_id, sequence) for sequence in (1, 2, 3, 5)] for request in requests]
