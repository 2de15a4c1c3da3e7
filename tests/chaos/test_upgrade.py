"""A node that is replaced, drained or reconfigured while it works: nothing is cut off, nothing lost, nothing begun twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import yaml

from node.client import NodeClient, NodeError
from node.pb import node_pb2, node_pb2_grpc
from providers.cli.run_files import LAUNCH
from runtime.types import RunRequest
from tests.support.books import assert_whole, stored_events
from tests.support.following import WITHIN_S, Follower, Frozen, ended, until
from tests.support.nodes import DEMO, Agent, Node, catalog_of, shell

AGENTS = {"demo-agent": Agent(command=DEMO, args=["--model", "{{model}}"]), "shell": shell()}
STREAMING = "[[demo words=100 delay_ms=20]]"
LONG = "[[demo words=500 delay_ms=50]]"

NewNode = Callable[..., Node]


@pytest.fixture
def new_node(tmp_path: Path) -> Iterator[NewNode]:
    """Makes nodes, not started, all of one directory; everything of them is ended with the test."""
    made: list[Node] = []

    def make(**options: Any) -> Node:
        options.setdefault("agents", AGENTS)
        options["times"] = {"foreground_grace_s": 30, "cancel_grace_s": 1.0} | options.get("times", {})
        made.append(Node(tmp_path, **options))
        return made[-1]

    yield make
    for node in made:
        node.close()


async def started(node: Node) -> Node:
    return await asyncio.to_thread(node.start)


@asynccontextmanager
async def stub_of(node: Node) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(node.address) as channel:
        yield node_pb2_grpc.NodeServiceStub(channel)  # type: ignore[no-untyped-call]  # generated


async def status_of(node: Node) -> Any:
    async with stub_of(node) as stub:
        return await stub.GetNodeStatus(node_pb2.GetNodeStatusRequest())


async def streaming(client: NodeClient, count: int, prompt: str = STREAMING) -> list[Follower]:
    followers = [Follower(client, f"up-{n:02d}", prompt) for n in range(count)]
    for follower in followers:
        await follower.has(5)
    return followers


async def streaming_at_once(client: NodeClient, node: Node, count: int, prompt: str = STREAMING) -> list[Follower]:
    """That many runs that stream: who began early stands still until the last one has begun."""
    followers = [Follower(client, f"up-{n:02d}", prompt) for n in range(count)]

    async def stop(follower: Follower) -> None:
        await follower.has(5)
        await agents.freeze(follower.directory(node.run_directories()))

    with Frozen() as agents:
        await asyncio.gather(*map(stop, followers))
    return followers


def assert_all_whole(node: Node, followers: list[Follower], *expected: str) -> None:
    for follower in followers:
        directory = follower.directory(node.run_directories())
        assert_whole(follower.run_id, directory, *expected, received=follower.events)


# --- hand-over


@pytest.mark.req("NB-19", "BAN-18", "E-19")
async def test_a_hand_over_while_twenty_runs_stream_loses_nothing(new_node: NewNode) -> None:
    """SIGTERM, exit code 0 at once, the next process finishes them all; foreground readers come back within the grace."""
    node = await started(new_node())
    async with NodeClient(node.address) as client:
        followers = await streaming_at_once(client, node, 20, "[[demo words=300 delay_ms=25]]")

        began = time.monotonic()
        code = await asyncio.to_thread(node.stop)
        took = time.monotonic() - began
        next_node = await started(new_node(listen=node.address))
        await ended(followers)

        assert (code, [f.outcome for f in followers]) == (0, ["complete"] * 20)
        assert took < 30, "it does not wait for its runs"
        assert_all_whole(next_node, followers)
        details = [await client.get(follower.run_id) for follower in followers]
        assert all(one.run.recovered for one in details)
    await asyncio.to_thread(next_node.assert_no_agents)


# --- the queue


@pytest.mark.req("RT-24", "E-15", "BAN-18")
async def test_a_thousand_queued_runs_survive_a_restart_and_begin_in_order(new_node: NewNode) -> None:
    """Only the beginning of the queue is executed, the rest is cancelled: what is proved is order and durability."""
    count = 1000
    queue = {"max_concurrent_runs": 2, "max_queued_runs": 1000}
    holds = 'while [ ! -e "$HOME/go" ]; do sleep 0.1; done; '
    order = 'printf "%s\\n" {n} >> "$HOME/order"; echo done'
    node = await started(new_node(limits=queue))
    async with stub_of(node) as stub:
        for n in range(count + 2):
            script = (holds if n < 2 else "") + order.format(n=n)
            call = stub.Run(node_pb2.RunRequest(run_id=f"q-{n:04d}", target="shell", input=script, background=True))
            async with asyncio.timeout(WITHIN_S):
                while await place(stub, n) < 0:
                    await asyncio.sleep(0)
            call.cancel()
        assert (await stub.GetNodeStatus(node_pb2.GetNodeStatusRequest())).queued_runs == count
        one_more = stub.Run(node_pb2.RunRequest(run_id="too-many", target="shell", input="true", background=True))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await one_more.read()
        places = [await place(stub, n) for n in (0, 2, 3, 500, count + 1)]

    await asyncio.to_thread(node.kill)
    next_node = await started(new_node(listen=node.address, limits=queue))
    async with stub_of(next_node) as stub:
        info = await stub.GetNodeStatus(node_pb2.GetNodeStatusRequest())
        far = await place(stub, count + 1)
        cpu = cpu_s(next_node.pid)
        await asyncio.sleep(1.0)
        idle_cpu = cpu_s(next_node.pid) - cpu
        for n in range(count + 1, 61, -1):
            await stub.CancelRun(node_pb2.CancelRunRequest(run_id=f"q-{n:04d}"))
        (next_node.home / "go").touch()
        async with asyncio.timeout(200):
            while (await stub.GetNodeStatus(node_pb2.GetNodeStatusRequest())).active_runs:
                await asyncio.sleep(0.1)
        cancelled = [await state(stub, n) for n in (62, 500, count + 1)]
        done = [await state(stub, n) for n in range(62)]

    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert places == [0, 1, 2, 499, count]
    assert info.recovery_complete
    assert (info.queued_runs, far) == (count, count)
    assert idle_cpu < 0.5, "a thousand waiting runs keep the node busy"
    assert set(cancelled) == {node_pb2.RUN_STATE_CANCELLED}
    assert set(done) == {node_pb2.RUN_STATE_COMPLETE}
    begun = [int(line) for line in (next_node.home / "order").read_text().split()]
    assert sorted(begun) == list(range(62)), "one was begun twice, or never"
    in_order = [n for n in in_order_of_launch(next_node) if n > 1]  # the first two held the slots; two begin at a time
    assert all(abs(at - n) <= 3 for at, n in enumerate(in_order, 2)), in_order


def in_order_of_launch(node: Node) -> list[int]:
    """The numbers of the runs that were begun. What an agent itself notes is later by as long as the machine lets it wait."""
    launched = sorted((node.data_dir / "runs").glob(f"*/{LAUNCH}"), key=lambda note: note.stat().st_mtime_ns)
    return [int(stored_events(note.parent)[0].run_id.removeprefix("q-")) for note in launched]


async def place(stub: Any, number: int) -> int:
    """The place in the queue; 0: it is executed, or over; -1: not accepted yet."""
    try:
        return int((await stub.GetRun(node_pb2.GetRunRequest(run_id=f"q-{number:04d}"))).run.queue_position)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.NOT_FOUND:
            raise
        return -1


async def state(stub: Any, number: int) -> int:
    return int((await stub.GetRun(node_pb2.GetRunRequest(run_id=f"q-{number:04d}"))).run.state)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.req("NB-15", "E-6")
async def test_with_one_slot_whoever_sees_a_terminal_can_dispatch_at_once(new_node: NewNode) -> None:
    """Complete, failed and cancelled ones, one after the other: never refused, so the ticket is free before the terminal."""
    node = await started(new_node(limits={"max_concurrent_runs": 1}))
    scripts = ["echo hi", "exit 3", "sleep 60"]
    async with NodeClient(node.address) as client:
        for n in range(90):
            events = []
            request = RunRequest(run_id=f"t-{n}", target="shell", input=scripts[n % 3])
            async for event in client.run(request):
                events.append(event)
                if n % 3 == 2 and len(events) == 1:
                    cancelling = asyncio.create_task(client.cancel(request.run_id))
            assert events[-1].type == ("complete", "error", "cancelled")[n % 3]
        assert (await cancelling).state == "cancelled"


# --- drain


@pytest.mark.req("NB-16", "RT-20", "RT-33")
async def test_a_drained_node_takes_nothing_new_and_serves_what_it_has(new_node: NewNode) -> None:
    node = await started(new_node())
    async with NodeClient(node.address) as client, stub_of(node) as stub:
        followers = await streaming_at_once(client, node, 3)
        answer = await stub.Drain(node_pb2.DrainRequest())
        async with asyncio.timeout(WITHIN_S):
            while await client.is_serving():
                await asyncio.sleep(0.02)

        call = stub.Run(node_pb2.RunRequest(run_id="new", target="demo-agent", input="hello"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await stub.GetRun(node_pb2.GetRunRequest(run_id="new"))
        attached = [event async for event in client.attach(followers[0].run_id)]
        receipt = await client.cancel(followers[1].run_id)
        await ended(followers)
        status = await stub.GetNodeStatus(node_pb2.GetNodeStatusRequest())

    assert (answer.active_runs, status.draining) == (3, True)
    assert (refused.value.code(), unknown.value.code()) == (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND)
    assert attached[-1].type == "complete"
    assert [follower.outcome for follower in followers] in (["complete", "cancelled", "complete"], ["complete"] * 3)
    assert receipt.state in ("cancelled", "complete")
    assert await asyncio.to_thread(node.stop) == 0


@pytest.mark.req("NB-16", "RT-20", "RT-33")
async def test_a_node_that_is_told_to_stop_answers_until_its_runs_have_ended(new_node: NewNode) -> None:
    """SIGTERM with a time to drain: no handler is cut off, and the node leaves when the last run has ended."""
    node = await started(new_node(times={"drain_s": 60}))
    async with NodeClient(node.address, reattach_s=0) as client:
        followers = await streaming(client, 4)
        long = Follower(client, "long", LONG)
        await long.has(5)

        os.kill(node.pid, signal.SIGTERM)
        async with asyncio.timeout(WITHIN_S):
            while await client.is_serving():
                await asyncio.sleep(0.02)
        late = asyncio.create_task(read_all(client, followers[0].run_id))
        with pytest.raises(NodeError) as refused:
            _ = [event async for event in client.run(RunRequest(target="demo-agent", input="new"))]
        receipt = await client.cancel("long")
        await ended([*followers, long])
        attached = await late

        await until(lambda: not node.is_running)
    assert refused.value.code == "draining"
    assert (receipt.accepted, long.outcome) == (True, "cancelled")
    assert [follower.outcome for follower in followers] == ["complete"] * 4
    assert attached[-1].type == "complete"
    assert [f.refused for f in followers] == [None] * 4, "a stream was cut off"
    assert_all_whole(node, followers)
    assert node.stop() == 0


async def read_all(client: NodeClient, run_id: str) -> list[Any]:
    return [event async for event in client.attach(run_id)]


@pytest.mark.req("RT-20", "RT-21", "E-5")
async def test_a_second_signal_cancels_what_still_runs(new_node: NewNode) -> None:
    node = await started(new_node(times={"drain_s": 60}))
    async with NodeClient(node.address, reattach_s=0) as client:
        followers = await streaming(client, 5, LONG)

        os.kill(node.pid, signal.SIGTERM)
        async with asyncio.timeout(WITHIN_S):
            while await client.is_serving():
                await asyncio.sleep(0.02)
        os.kill(node.pid, signal.SIGTERM)
        await ended(followers)
        await until(lambda: not node.is_running)

    assert [(f.outcome, f.events[-1].message) for f in followers] == [
        ("cancelled", "the node was told twice to stop")
    ] * 5
    await asyncio.to_thread(node.assert_no_agents)
    assert_all_whole(node, followers, "cancelled")
    assert node.stop() == 0


# --- configuration refresh


def reconfigure(node: Node, agents: dict[str, Agent]) -> None:
    """The operator writes another catalog; the node does not know yet."""
    (node.root / "catalog.yaml").write_text(yaml.safe_dump(catalog_of(agents)))


async def generation(node: Node) -> int:
    return int((await status_of(node)).config_generation)


WHO = {"who": shell(env={"WHO": "old"})}
SAYS_WHO = 'echo "$WHO 1"; sleep 1.5; echo "$WHO 2"'


@pytest.mark.req("NB-12", "NB-13", "NB-14", "RT-32")
@pytest.mark.parametrize("way", ["signal", "call"])
async def test_a_refresh_serves_new_runs_and_leaves_running_ones_their_provider(new_node: NewNode, way: str) -> None:
    node = await started(new_node(agents={**AGENTS, **WHO}, times={"cancel_grace_s": 10.0}))
    async with NodeClient(node.address) as client, stub_of(node) as stub:
        old = Follower(client, "old", SAYS_WHO, target="who")
        # its child is signalled too and may be gone before the shell hears of it
        waits = 'trap "echo $WHO stopped; exit 0" TERM; echo on; while :; do sleep 60 & wait $!; done'
        stopped = Follower(client, "stopped", waits, target="who")
        await old.has(2)
        await stopped.has(2)

        for number, name in enumerate(("middle", "new"), 2):  # several generations at once
            reconfigure(node, {**AGENTS, "who": shell(env={"WHO": name})})
            if way == "signal":
                os.kill(node.pid, signal.SIGHUP)
                async with asyncio.timeout(WITHIN_S):
                    while await generation(node) < number:
                        await asyncio.sleep(0.02)
            else:
                assert (await stub.ReloadConfig(node_pb2.ReloadConfigRequest())).generation == number
            await Follower(client, name, SAYS_WHO, target="who").has(2)
        receipt = await client.cancel("stopped")
        others = [Follower(client, name, SAYS_WHO, target="who") for name in ("middle", "new")]
        await ended([old, stopped, *others])

    said = ["".join(event.delta for event in follower.events) for follower in (old, *others)]
    assert said == [f"{name} 1\n{name} 2\n" for name in ("old", "middle", "new")]
    assert (receipt.accepted, stopped.outcome) == (True, "cancelled")
    assert "".join(event.delta for event in stopped.events) == "on\nold stopped\n"
    await asyncio.to_thread(node.assert_no_agents)


@pytest.mark.req("NB-12", "NB-13", "RT-32")
@pytest.mark.parametrize("way", ["signal", "call"])
async def test_an_unusable_file_is_refused_and_the_last_good_one_stays(new_node: NewNode, way: str) -> None:
    node = await started(new_node(agents={**AGENTS, **WHO}))
    async with NodeClient(node.address) as client, stub_of(node) as stub:
        running = Follower(client, "running", SAYS_WHO, target="who")
        await running.has(2)
        (node.root / "catalog.yaml").write_text("version: 1\nproviders: nonsense\n")
        if way == "signal":
            os.kill(node.pid, signal.SIGHUP)
        else:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.ReloadConfig(node_pb2.ReloadConfigRequest())
            assert refused.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)
        async with asyncio.timeout(WITHIN_S):
            while not any("the last reload was refused" in note for note in (await client.status()).notes):
                await asyncio.sleep(0.02)
        still = Follower(client, "still", SAYS_WHO, target="who")
        await ended([running, still])
        at_first = await generation(node)

        reconfigure(node, {**AGENTS, "who": shell(env={"WHO": "new"})})
        assert (await stub.ReloadConfig(node_pb2.ReloadConfigRequest())).generation == at_first + 1
        fixed = Follower(client, "fixed", SAYS_WHO, target="who")
        await ended([fixed])
        notes = (await client.status()).notes

    said = ["".join(event.delta for event in follower.events) for follower in (running, still, fixed)]
    assert (said, at_first) == (["old 1\nold 2\n", "old 1\nold 2\n", "new 1\nnew 2\n"], 1)
    assert not any("reload" in note for note in notes)


@pytest.mark.req("NB-12", "NB-13", "NB-14", "RT-30", "RT-31")
async def test_a_removed_profile_is_served_to_its_last_run_and_unknown_to_the_next(new_node: NewNode) -> None:
    node = await started(new_node(agents={**AGENTS, **WHO}))
    async with NodeClient(node.address) as client, stub_of(node) as stub:
        running = Follower(client, "running", SAYS_WHO, target="who")
        await running.has(2)
        reconfigure(node, AGENTS)
        await stub.ReloadConfig(node_pb2.ReloadConfigRequest())

        refused = Follower(client, "refused", SAYS_WHO, target="who")
        await ended([refused, running])
        targets = {target.target for target in (await client.capabilities()).targets}

    assert refused.refused is not None
    assert (refused.refused.code, running.outcome) == ("target_not_found", "complete")
    assert targets == set(AGENTS)


@pytest.mark.req("NB-12")
async def test_what_cannot_change_while_the_node_runs_is_refused_by_name(new_node: NewNode) -> None:
    node = await started(new_node(node_id="first"))
    async with stub_of(node) as stub:
        settings = yaml.safe_load((node.root / "node.yaml").read_text()) | {"node_id": "second"}
        (node.root / "node.yaml").write_text(yaml.safe_dump(settings))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ReloadConfig(node_pb2.ReloadConfigRequest())

    assert "node_id cannot change from first to second" in (refused.value.details() or "")
    assert node.node_id == "first"


# --- liveness


@pytest.mark.slow
@pytest.mark.req("NB-19", "NB-16")
async def test_a_reader_of_a_quiet_run_is_not_taken_for_a_flood_of_pings(new_node: NewNode) -> None:
    """Its keepalive pings are all it sends: three of them were one too many under gRPC's own default."""
    node = await started(new_node())
    async with NodeClient(node.address, reattach_s=0) as client:
        quiet = Follower(client, "quiet", "echo on; sleep 100; echo off", target="shell")
        await quiet.has(2)
        await until(quiet.task.done, 115)

    assert quiet.refused is None
    assert quiet.outcome == "complete"


FROZEN = """
import asyncio, sys
from node.client import NodeClient
from runtime.types import RunRequest
async def main():
    async with NodeClient(sys.argv[1]) as client:
        async for event in client.run(RunRequest(run_id="frozen", target="shell", input="echo on; sleep 100")):
            print(event.type.value, flush=True)
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.req("RT-33", "NB-19", "E-5")
async def test_a_frozen_client_is_noticed_by_keepalive(new_node: NewNode) -> None:
    """It holds its connection and answers nothing: after ping and time-out it counts as gone, and its foreground run ends."""
    node = await started(new_node(times={"foreground_grace_s": 0.5}))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FROZEN, node.address, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(20):
            while await process.stdout.readline() != b"delta\n":
                pass
        os.kill(process.pid, signal.SIGSTOP)
        began = time.monotonic()
        async with NodeClient(node.address) as client, asyncio.timeout(70):
            while not (await client.get("frozen")).run.has_ended:
                await asyncio.sleep(0.2)
            took, details = time.monotonic() - began, await client.get("frozen")
    finally:
        process.kill()
        await process.wait()

    assert details.run.state == "cancelled"
    assert 5 < took < 50
    await asyncio.to_thread(node.assert_no_agents)


@pytest.mark.req("RT-24", "E-15", "RT-33")
async def test_a_frozen_node_goes_on_where_it_was(new_node: NewNode) -> None:
    """Runs do not notice; a deadline that passed meanwhile was kept by the warden."""
    node = await started(new_node())
    async with NodeClient(node.address) as client:
        followers = await streaming(client, 5, "[[demo words=60 delay_ms=20]]")
        due = Follower(client, "due", LONG, timeout=timedelta(seconds=1.5))
        await due.has(2)

        os.kill(node.pid, signal.SIGSTOP)
        try:  # the warden keeps the deadline while the node is frozen
            await until(lambda: not [c for c in node.agent_processes().values() if "iop-demo-agent" in c])
        finally:
            os.kill(node.pid, signal.SIGCONT)
        await ended([*followers, due])

    assert ([f.outcome for f in followers], due.outcome) == (["complete"] * 5, "deadline_exceeded")
    assert_all_whole(node, followers)
