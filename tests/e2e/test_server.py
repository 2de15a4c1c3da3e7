"""Starting, listening, leaving: what a node says when it cannot serve, and what stays when it goes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from node.client import NodeClient, NodeError
from node.pb import node_pb2, node_pb2_grpc
from tests.support.nodes import START_S, Node, shell, wait_until
from tests.support.runs import BOUND_S, begun, follow, refusal, run, text, told

NewNode = Callable[..., Node]

HOLD = "until [ -e {} ]; do sleep 0.05; done"
SERVICE = "iop.node.v1.NodeService"


def refused(node: Node, *arguments: str) -> tuple[int, str]:
    """The exit code and the last words of a node that does not start."""
    process = node.launch(*arguments)
    try:
        process.wait(START_S)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    return process.returncode, node.logged().splitlines()[-1]


# --- what a node refuses to be


@pytest.mark.req("PKG-01")
async def test_a_port_in_use_is_a_clear_error_and_a_failure(node: Node, new_node: NewNode) -> None:
    code, sentence = refused(new_node(listen=node.address))

    assert code == 1
    assert sentence == f"iop-node: cannot listen on {node.address}: it is in use, or not an address of this machine"


@pytest.mark.req("PKG-01")
async def test_a_port_that_somebody_else_has_is_refused_too(new_node: NewNode) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, sentence = refused(new_node(listen=f"127.0.0.1:{taken.getsockname()[1]}"))

    assert code == 1 and "cannot listen on 127.0.0.1:" in sentence


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.7:50400", "build.example:50400"])
async def test_an_address_that_others_can_reach_is_refused_with_the_way_out(new_node: NewNode, address: str) -> None:
    code, sentence = refused(new_node(listen=address))

    assert code == 2
    assert sentence == (
        f"iop-node: listen {address!r} can be reached from other machines, and neither TLS nor authentication is configured; "
        "listen on 127.0.0.1 or a unix socket, or write insecure: true in the configuration to accept that"
    )


async def test_insecure_is_accepted_where_it_is_written(new_node: NewNode) -> None:
    node = new_node(agents={"shell": shell()}, listen="0.0.0.0:0", insecure=True).start()

    async with NodeClient(f"127.0.0.1:{node.address.rpartition(':')[2]}") as client:
        assert text(await run(client, "shell", "echo hi")) == "hi\n"


async def test_a_second_node_on_a_data_directory_is_refused_by_name(new_node: NewNode) -> None:
    first = new_node("one", agents={"shell": shell()}).start()
    code, sentence = refused(first)

    assert code == 1
    assert sentence == (
        f"iop-node: data directory {first.data_dir} is in use by another node; stop it, or give this one --data-dir"
    )
    async with NodeClient(first.address) as client:
        assert text(await run(client, "shell", "echo unharmed")) == "unharmed\n"


@pytest.mark.req("RT-37")
async def test_a_mistake_in_the_configuration_is_named_with_file_key_and_value(new_node: NewNode) -> None:
    node = new_node(limits={"max_concurrent_runs": 0})
    code, sentence = refused(node)

    assert code == 2
    assert str(node.root / "node.yaml") in sentence
    assert "limits.max_concurrent_runs" in sentence and "0" in sentence


async def test_a_catalog_that_is_not_there_is_named(new_node: NewNode) -> None:
    node = new_node(catalog="missing.yaml")
    code, sentence = refused(node)

    assert code != 0
    assert str(node.root / "missing.yaml") in sentence


# --- unix sockets


async def test_a_unix_socket_is_its_owners_alone_and_a_stale_one_is_no_obstacle(
    new_node: NewNode, tmp_path: Path
) -> None:
    path = tmp_path / "n.sock"
    node = new_node(agents={"shell": shell()}, listen=f"unix:{path}").start()
    mode = stat.S_IMODE(os.stat(path).st_mode)
    async with NodeClient(f"unix:{path}") as client:
        first = text(await run(client, "shell", "echo first"))
    node.kill()
    left = path.exists()
    node.start()
    async with NodeClient(f"unix:{path}") as client:
        second = text(await run(client, "shell", "echo second"))

    assert (mode, first, left, second) == (0o600, "first\n", True, "second\n")


async def test_a_file_that_is_no_socket_is_not_removed(new_node: NewNode, tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("mine")
    code, sentence = refused(new_node(listen=f"unix:{path}"))

    assert code == 1 and f"cannot listen on unix:{path}" in sentence
    assert path.read_text() == "mine"


# --- health and reflection


async def serving(channel: grpc.aio.Channel, service: str) -> int:
    check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
    return int((await check).status)


@pytest.mark.req("PKG-06")
async def test_health_is_told_for_the_node_and_for_its_service(node: Node) -> None:
    async with grpc.aio.insecure_channel(node.address) as channel:
        assert [await serving(channel, name) for name in ("", SERVICE)] == [health_pb2.HealthCheckResponse.SERVING] * 2
        unknown = await refusal(health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="x")))

    assert unknown[0] is grpc.StatusCode.NOT_FOUND


@pytest.mark.req("PKG-01")
async def test_a_node_that_leaves_says_not_serving_first(new_node: NewNode) -> None:
    node = new_node(agents={"shell": shell()}).start()
    async with grpc.aio.insecure_channel(node.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        first = await watch.read()
        os.kill(node.pid, signal.SIGTERM)
        second = await watch.read()
        watch.cancel()

    assert (first.status, second.status) == (
        health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING,
    )  # fmt: skip
    wait_until(lambda: not node.is_running)


async def listed_services(address: str) -> list[str]:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        async for answer in call:
            return sorted(service.name for service in answer.list_services_response.service)
    return []


async def status_of_reflection(address: str) -> grpc.StatusCode:
    """How a call without any request ends: one that is written while the refusal arrives fails in the client's own words."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([]))
        status: grpc.StatusCode = await call.code()
        return status


@pytest.mark.req("PKG-06")
async def test_reflection_names_the_services(node: Node) -> None:
    assert await listed_services(node.address) == [
        "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection", SERVICE,
    ]  # fmt: skip


@pytest.mark.req("PKG-06")
async def test_reflection_can_be_switched_off(new_node: NewNode) -> None:
    node = new_node(reflection=False).start()

    assert await status_of_reflection(node.address) is grpc.StatusCode.UNIMPLEMENTED


# --- leaving


@pytest.mark.req("PKG-01", "RT-33")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_node_leaves_at_once_and_takes_its_keeper_along(
    new_node: NewNode, number: signal.Signals
) -> None:
    node = new_node(agents={"shell": shell()}).start()
    async with NodeClient(node.address) as client:
        await run(client, "shell", "echo hi")
    os.kill(node.pid, number)
    wait_until(lambda: not node.is_running)

    assert node.stop() == 0
    wait_until(lambda: not node.own_processes(), problem=lambda: f"left: {node.own_processes()}")
    assert "Traceback" not in node.logged()


@pytest.mark.req("RT-33", "PKG-01")
@pytest.mark.parametrize("way", ["stop", "kill"])
async def test_runs_go_on_without_the_node_and_the_next_one_adopts_them(
    new_node: NewNode, tmp_path: Path, way: str
) -> None:
    node = new_node(agents={"shell": shell()}).start()
    script = f"for i in $(seq 1 30); do echo $i; sleep 0.02; [ $i != 20 ] || {HOLD.format(tmp_path / 'go')}; done"
    async with asyncio.timeout(BOUND_S):
        async with (
            NodeClient(node.address) as client,
            begun(client, "shell", script, background=True) as (run_id, events),
        ):
            before = [await anext(events) for _ in range(3)]
        getattr(node, way)()
        alive = len(node.agent_processes())
        node.start()
        (tmp_path / "go").touch()
        async with NodeClient(node.address) as client:
            after = await follow(client.attach(run_id, after_sequence=before[-1].sequence))
            whole = await follow(client.attach(run_id))
            record = (await client.get(run_id)).run

    everything = "".join(f"{i}\n" for i in range(1, 31))
    assert alive >= 1
    assert text([*before, *after]) == everything
    assert told(whole) == [("start", "", ""), ("delta", everything, ""), ("complete", everything, "")]
    assert (whole[-1].sequence, record.state, record.recovered) == (32, "complete", True)
    node.assert_no_agents()


@pytest.mark.req("RT-33")
async def test_a_stream_survives_a_restart_of_the_node_on_its_address(new_node: NewNode, tmp_path: Path) -> None:
    """The client comes back by itself, from its cursor, and hands out every event once."""
    node = new_node(agents={"shell": shell()}).start()
    script = f"for i in $(seq 1 30); do echo $i; sleep 0.02; [ $i != 20 ] || {HOLD.format(tmp_path / 'go')}; done"

    async with (
        asyncio.timeout(BOUND_S),
        NodeClient(node.address) as client,
        begun(client, "shell", script) as (_, events),
    ):
        await anext(events)
        node.kill()
        new_node(agents={"shell": shell()}, listen=node.address).start()
        (tmp_path / "go").touch()
        rest = await follow(events)

    assert rest[-1].type == "complete"
    assert rest[-1].message == "".join(f"{i}\n" for i in range(1, 31))
    assert [e.sequence for e in rest] == sorted({e.sequence for e in rest})


async def test_a_node_that_leaves_takes_no_new_runs(new_node: NewNode) -> None:
    node = new_node(agents={"shell": shell()}).start()
    async with NodeClient(node.address, reattach_s=0) as client:
        run_id = await _in_background(client)
        os.kill(node.pid, signal.SIGTERM)
        wait_until(lambda: not node.is_running)
        with pytest.raises(NodeError) as refused_by:
            await run(client, "shell", "echo hi")
    assert refused_by.value.is_broken
    node.stop()
    node.start()
    async with NodeClient(node.address) as client:
        await client.cancel(run_id)
    node.assert_no_agents()


async def _in_background(client: NodeClient) -> str:
    async with begun(client, "shell", "sleep 60", background=True) as (run_id, _):
        return run_id


# --- what a caller is told of our own mistakes


async def test_an_internal_error_is_an_id_and_not_its_text(new_node: NewNode) -> None:
    """The journal of a run is replaced by nonsense: whatever happens then, the caller reads no path and no traceback."""
    node = new_node(agents={"shell": shell()}).start()
    async with NodeClient(node.address) as client:
        run_id = (await run(client, "shell", "echo hi"))[0].run_id
        async with asyncio.timeout(BOUND_S):
            while (await client.status()).active_runs:  # what a live run has in memory needs no journal
                await asyncio.sleep(0.02)
    journal = node.run_directories()[0] / "events.jsonl"
    journal.unlink()
    journal.mkdir()

    async with grpc.aio.insecure_channel(node.address) as channel:
        stub: Any = node_pb2_grpc.NodeServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        status, reason, sentence = await refusal(stub.AttachRun(node_pb2.AttachRunRequest(run_id=run_id)))

    assert (status, reason) == (grpc.StatusCode.INTERNAL, "internal")
    assert sentence.startswith("internal error ") and "/" not in sentence and "Error:" not in sentence
    assert f"internal error {sentence.split()[-1]}" in node.logged(), "the log has the whole of it, under the same id"


# --- what a node carries


def test_serving_imports_neither_the_commands_nor_their_libraries() -> None:
    """A node is long-lived and often one of many: typer and rich would cost it memory and a slower start."""
    code = "import sys, node.serve, node.host, node.server; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)

    assert set(found.stdout.split()) & {"typer", "rich", "click", "opentelemetry", "acp", "pytest"} == set()


async def test_an_idle_node_is_small_and_starts_quickly(new_node: NewNode) -> None:
    node = new_node()
    began = asyncio.get_running_loop().time()
    node.start()
    took = asyncio.get_running_loop().time() - began
    status = Path(f"/proc/{node.pid}/status").read_text()
    resident = int(next(x for x in status.splitlines() if x.startswith("VmRSS:")).split()[1])

    assert resident < 80 << 10
    assert took < 30, "1 s on a quiet machine"


@pytest.mark.req("PKG-05")
async def test_two_hundred_short_runs_beside_twenty_open_streams(node: Node, client: NodeClient) -> None:
    """Spawning beside a busy gRPC server once killed one child in ten, or hung the server."""
    ticking = "while :; do echo tick; sleep 0.05; done"

    async def watch(number: int) -> str:
        async with begun(client, "shell", ticking, run_id=f"open-{number}") as (run_id, events):
            opened.append(run_id)
            return (await follow(events))[-1].type.value

    async def short(number: int) -> str:
        async with limit:
            events = await run(client, "shell", f"echo {number}")
            return str(events[-1].message or events[-1].error)

    opened: list[str] = []
    limit = asyncio.Semaphore(16)
    async with asyncio.timeout(200):
        streams = [asyncio.create_task(watch(number)) for number in range(20)]
        answers = await asyncio.gather(*(short(number) for number in range(200)))
        alive = sum(not stream.done() for stream in streams)
        await asyncio.gather(*(client.cancel(run_id) for run_id in opened))
        ends = await asyncio.gather(*streams)

    assert answers == [f"{number}\n" for number in range(200)]
    assert (alive, ends) == (20, ["cancelled"] * 20)


async def test_a_socket_that_another_node_listens_on_is_not_taken_from_it(new_node: NewNode, tmp_path: Path) -> None:
    path = tmp_path / "n.sock"
    new_node(agents={"shell": shell()}, listen=f"unix:{path}").start()

    code, sentence = refused(new_node("other", listen=f"unix:{path}"))

    assert code == 1 and f"cannot listen on unix:{path}: another process does" in sentence
    async with NodeClient(f"unix:{path}") as client:
        assert text(await run(client, "shell", "echo still here")) == "still here\n"
