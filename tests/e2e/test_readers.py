"""Readers that come late, leave, stop reading, or come back: the run does not care, except for a foreground run's grace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc
import pytest

from node.client import NodeClient
from node.pb import node_pb2, node_pb2_grpc
from runtime.events import RuntimeEvent
from runtime.types import RunRequest
from tests.support.commands import PROGRAM
from tests.support.nodes import Node, shell
from tests.support.runs import BOUND_S, begun, ending, follow, refusal, run, text, told, words

Stub = Any


def waiting_for(path: Path, then: str) -> str:
    """A script that does *then* when *path* is there."""
    return f"until [ -e {path} ]; do sleep 0.05; done; {then}"


TICKS = "for i in $(seq 60); do echo $i; sleep 0.02; done"
TICKED = "".join(f"{i}\n" for i in range(1, 61))


async def until(client: NodeClient, run_id: str, *states: str) -> str:
    """The run's state once it is one of *states*."""
    async with asyncio.timeout(BOUND_S):
        while (state := (await client.get(run_id)).run.state) not in states:
            await asyncio.sleep(0.02)
    return state


async def readers(client: NodeClient, count: int) -> None:
    async with asyncio.timeout(BOUND_S):
        while (await client.status()).attached_readers != count:
            await asyncio.sleep(0.01)


# --- when the caller goes away


@pytest.mark.req("RT-33", "NB-16", "PKG-05")
async def test_a_foreground_run_ends_after_the_grace_when_its_caller_is_gone(new_node: Callable[..., Node]) -> None:
    node = new_node(agents={"shell": shell()}, times={"foreground_grace_s": 2}).start()
    async with NodeClient(node.address) as client:
        async with begun(client, "shell", "sleep 600") as (run_id, _):
            pass
        at_once = (await client.get(run_id)).run.state
        state = await until(client, run_id, "complete", "error", "cancelled")
        events = await follow(client.attach(run_id))

    assert (at_once, state) == ("running", "cancelled")
    assert ending(events[-1]) == ("cancelled", "no reader for 2 s")
    node.assert_no_agents()


@pytest.mark.req("RT-33")
async def test_coming_back_within_the_grace_keeps_a_foreground_run(
    new_node: Callable[..., Node], tmp_path: Path
) -> None:
    """Three times, each well within the grace, and together longer than it."""
    node = new_node(agents={"shell": shell()}, times={"foreground_grace_s": 2.5}).start()
    async with NodeClient(node.address) as client:
        async with begun(client, "shell", waiting_for(tmp_path / "go", "echo done")) as (run_id, _):
            pass
        for _ in range(3):
            await asyncio.sleep(1.0)
            async with aclosing(client.attach(run_id)) as events:
                await anext(events)
        (tmp_path / "go").touch()
        events_in_the_end = await follow(client.attach(run_id))

    assert ending(events_in_the_end[-1]) == ("complete", "done\n")


@pytest.mark.req("RT-33")
async def test_one_reader_is_enough(client: NodeClient, tmp_path: Path) -> None:
    async with begun(client, "shell", waiting_for(tmp_path / "go", "echo done")) as (run_id, _):
        other = asyncio.create_task(follow(client.attach(run_id)))
        await readers(client, 2)
    await readers(client, 1)
    await asyncio.sleep(0.6)  # the grace of the shared node, and a half
    (tmp_path / "go").touch()

    assert ending((await other)[-1]) == ("complete", "done\n")


@pytest.mark.req("RT-33", "RT-34")
async def test_a_background_run_goes_on_without_a_caller_and_keeps_its_terminal(client: NodeClient) -> None:
    async with begun(client, "shell", "sleep 0.8; echo done", background=True) as (run_id, _):
        pass
    state = await until(client, run_id, "complete", "error", "cancelled")
    events = await follow(client.attach(run_id))

    assert state == "complete"
    assert [(e.type.value, e.background) for e in events] == [("start", True), ("delta", True), ("complete", True)]


@pytest.mark.req("RT-33")
async def test_without_a_grace_a_foreground_run_ends_with_its_stream(new_node: Callable[..., Node]) -> None:
    node = new_node(agents={"shell": shell()}, times={"foreground_grace_s": 0}).start()
    async with NodeClient(node.address) as client:
        async with begun(client, "shell", "sleep 60") as (run_id, _):
            pass
        state = await until(client, run_id, "complete", "error", "cancelled")

    assert state == "cancelled"


@pytest.mark.req("RT-33", "PKG-05")
async def test_a_client_that_is_killed_counts_as_gone(node: Node, client: NodeClient) -> None:
    process = await asyncio.create_subprocess_exec(
        str(PROGRAM), "run", "--node", node.address, "--target", "demo-agent", "--run-id", "killed-client", "[[demo:slow]]",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    async with asyncio.timeout(BOUND_S):
        while not [one async for one in client.list(active_only=True) if one.run_id == "killed-client"]:
            await asyncio.sleep(0.02)
        await until(client, "killed-client", "running")
        process.kill()
        await process.wait()

        assert await until(client, "killed-client", "cancelled", "complete", "error") == "cancelled"


@pytest.mark.req("PKG-05", "NB-19")
async def test_fifty_dropped_streams_cost_a_background_run_nothing(client: NodeClient) -> None:
    asked = RunRequest(run_id="dropped", target="shell", input=TICKS, background=True)
    for _ in range(50):
        async with aclosing(client.run(asked)) as stream:
            for _ in range(3):
                await anext(stream)
    await readers(client, 0)
    events = await follow(client.attach("dropped"))

    assert told(events) == [("start", "", ""), ("delta", TICKED, ""), ("complete", TICKED, "")]
    assert events[-1].sequence == 62


@pytest.mark.req("NB-19")
@pytest.mark.parametrize("events_first", [1, 0])
async def test_a_cancelled_call_is_cleaned_up_without_an_event_of_the_run(
    client: NodeClient, stub: Stub, events_first: int
) -> None:
    """While the handler waits for the next event, and before it had any."""
    async with begun(client, "shell", "sleep 60", background=True) as (run_id, _):
        call = stub.AttachRun(node_pb2.AttachRunRequest(run_id=run_id, after_sequence=1 - events_first))
        if events_first:
            await call.read()
        await readers(client, 2)
        call.cancel()
        await readers(client, 1)
    await readers(client, 0)
    await client.cancel(run_id)


@pytest.mark.req("NB-19")
async def test_a_call_that_is_cancelled_inside_a_write_is_cleaned_up(client: NodeClient, stub: Stub) -> None:
    """The client's window is full, so the handler is stuck in its write."""
    call = stub.Run(node_pb2.RunRequest(run_id="stuck", target="firehose", input="40000", background=True))
    await call.read()
    await until(client, "stuck", "complete")
    await readers(client, 0)  # the run has ended: its stream is read from the journal, and counts no more
    call.cancel()
    again = await follow(client.attach("stuck"))

    assert text(again) == "p" * 400 * 40_000


@pytest.mark.req("PKG-05", "NB-19")
async def test_a_reader_that_stops_reading_delays_nobody_and_loses_nothing(node: Node, client: NodeClient) -> None:
    count = 30_000
    before = _resident_kib(node.pid)
    async with asyncio.timeout(200), grpc.aio.insecure_channel(node.address) as channel:
        stub = node_pb2_grpc.NodeServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        slow = aiter(stub.Run(node_pb2.RunRequest(run_id="firehose", target="firehose", input=str(count))))
        first = await anext(slow)
        began = asyncio.get_running_loop().time()
        fast = await follow(client.attach("firehose"))
        took = asyncio.get_running_loop().time() - began
        other = await run(client, "shell", "echo quick")
        grown = _resident_kib(node.pid) - before
        rest = [event async for event in slow]

    assert text(fast) == "p" * 400 * count and fast[-1].type == "complete"
    assert took < 120
    assert ending(other[-1]) == ("complete", "quick\n")
    assert grown < 48 << 10, f"{grown} KiB for about 15 MiB of events"
    assert "".join(event.delta for event in rest) == text(fast)
    assert [e.previous_sequence for e in rest] == [first.sequence, *(e.sequence for e in rest[:-1])]
    assert (rest[-1].type, rest[-1].sequence) == ("complete", fast[-1].sequence)


# --- cursors


@pytest.mark.req("NB-09")
async def test_two_readers_of_one_run_see_the_same_events_and_a_late_one_the_missing_tail(client: NodeClient) -> None:
    async with begun(client, "shell", TICKS) as (run_id, events):
        dropped = await _some(client, run_id, 10)  # fewer, if they came merged
        whole = asyncio.create_task(follow(client.attach(run_id)))
        rest = await follow(events)
    tail = await follow(client.attach(run_id, after_sequence=dropped[-1].sequence))

    first = await whole
    assert text(first) == TICKED
    assert told([*dropped, *tail]) == told(first)
    assert told(rest) == told(first)[1:]


@pytest.mark.req("E-4")
async def test_a_cursor_says_where_it_stands_or_why_it_cannot(client: NodeClient, stub: Stub) -> None:
    events = await run(client, "shell", "echo a; echo b; echo c")
    run_id, last = events[0].run_id, events[-1].sequence

    async def after(sequence: int) -> list[int]:
        call = stub.AttachRun(node_pb2.AttachRunRequest(run_id=run_id, after_sequence=sequence))
        return [event.sequence async for event in call]

    assert [await after(n) for n in (0, 1, 3, last - 1, last)] == [[1, 2, 3, 4, 5], [2, 3, 4, 5], [4, 5], [5], []]
    beyond = stub.AttachRun(node_pb2.AttachRunRequest(run_id=run_id, after_sequence=last + 1))
    negative = stub.AttachRun(node_pb2.AttachRunRequest(run_id=run_id, after_sequence=-1))
    assert await refusal(beyond) == (
        grpc.StatusCode.OUT_OF_RANGE, "cursor_out_of_range",
        f"run {run_id!r} has events up to {last}; after_sequence {last + 1} is beyond",
    )  # fmt: skip
    assert await refusal(negative) == (
        grpc.StatusCode.INVALID_ARGUMENT, "invalid_request", "after_sequence is -1; use 0 for the beginning",
    )  # fmt: skip


async def test_a_cursor_at_the_present_waits_for_what_comes(client: NodeClient) -> None:
    async with begun(client, "shell", "sleep 0.5; echo late") as (run_id, _):
        events = await follow(client.attach(run_id, after_sequence=1))

    assert [(e.type.value, e.sequence) for e in events] == [("delta", 2), ("complete", 3)]


@pytest.mark.req("NB-09")
async def test_a_cursor_taken_before_a_restart_points_to_the_same_event_after_it(new_node: Callable[..., Node]) -> None:
    node = new_node(agents={"shell": shell()}).start()
    named = {"session_id": "s", "session_mode": "create_if_missing"}
    async with NodeClient(node.address) as client:
        first = await run(client, "shell", "echo a; echo b", run_id="first", **named)
    node_id = node.node_id
    node.stop()
    node.start()
    async with NodeClient(node.address) as client:
        second = await run(client, "shell", "echo c; echo d", run_id="second", **named)
        again = await follow(client.attach("first"))
        middle = await follow(client.attach("first", after_sequence=2))

    assert told(again) == told(first)
    assert [(e.sequence, e.delta) for e in middle] == [(3, "b\n"), (4, "")]
    assert (second[0].sequence, second[-1].sequence) == (1, 4)
    assert node.node_id == node_id, "the same data directory is the same node"


async def test_events_are_the_same_however_they_are_read(client: NodeClient) -> None:
    """Live, late, event by event, and through the command's JSON."""
    live = await run(client, "demo-agent", "[[demo:think thoughts=3 words=5 delay_ms=1]]")
    run_id = live[0].run_id

    late = await follow(client.attach(run_id, include_activity=True))
    one_by_one: list[RuntimeEvent] = []
    while not one_by_one or not one_by_one[-1].is_terminal:
        one_by_one += await _some(client, run_id, 1, after=one_by_one[-1].sequence if one_by_one else 0)

    assert told(late) == told(live)
    assert [e.sequence for e in one_by_one] == sorted({e.sequence for e in one_by_one})
    assert told(one_by_one) == told(live)
    assert {"start", "reasoning_delta", "delta", "complete"} == set(words(live))


async def _some(client: NodeClient, run_id: str, count: int, after: int = 0) -> list[RuntimeEvent]:
    """The first events beyond *after*, *count* of them if there are as many."""
    found: list[RuntimeEvent] = []
    async with aclosing(client.attach(run_id, after_sequence=after, include_activity=True)) as events:
        async for event in events:
            found.append(event)
            if len(found) == count:
                break
    return found


def _resident_kib(pid: int) -> int:
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS:"))
    return int(line.split()[1])
