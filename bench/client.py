"""The client of the measurements, in a process of its own; it cannot tell the node from the floor.

python -m bench.client COMMAND JSON        # prints one JSON object
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # before the first grpc import

import grpc
import grpc.aio

from bench import proc
from bench.servers import Server
from node.pb import node_pb2, node_pb2_grpc

Result = dict[str, float]
CLIENT_S = 240
_SAMPLE_S = 0.2
_DELTAS = ("delta", "reasoning_delta")


def ask(command: str, server: Server, **arguments: Any) -> Result:
    """Run *command* against *server* in a new process and return what it measured."""
    arguments |= {"address": server.address, "pid": server.pid, "keeper": server.keeper}
    done = subprocess.run(
        [sys.executable, "-m", "bench.client", command, json.dumps(arguments)],
        capture_output=True, text=True, timeout=CLIENT_S,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"client {command} on the {server.name}: {done.stderr[-2000:]}")
    result: Result = json.loads(done.stdout)
    return result


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _request(target: str, **orders: Any) -> node_pb2.RunRequest:
    return node_pb2.RunRequest(target=target, input=json.dumps(orders))


@contextmanager
def _gate() -> Iterator[tuple[str, Callable[[], None]]]:
    """A FIFO on which all agents wait, so that they begin at one moment and after all of them have started."""
    with tempfile.TemporaryDirectory(prefix="iop-bench-gate-") as directory, ExitStack() as opened:
        path = os.path.join(directory, "gate")
        os.mkfifo(path)

        def open_gate() -> None:
            opened.callback(os.close, os.open(path, os.O_RDWR))

        yield path, open_gate


class _Wardens:
    """The CPU of the keeper and of its wardens, who leave when their runs end: the last figure seen counts."""

    def __init__(self, keeper: int) -> None:
        self._pids = [keeper, *proc.children(keeper)] if keeper else []
        self._first = {pid: proc.cpu_s(pid) for pid in self._pids}
        self._last = dict(self._first)

    def look(self) -> None:
        for pid in self._pids:
            self._last[pid] = max(self._last[pid], proc.cpu_s(pid))

    def used_s(self) -> float:
        self.look()
        return sum(self._last.values()) - sum(self._first.values())

    async def watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(_SAMPLE_S)


class _Count:
    """What came: ``events`` as they were made, ``messages`` as they were sent, which may hold several."""

    def __init__(self, *, with_latency: bool = False) -> None:
        self.events = self.messages = 0
        self.last_at = 0.0
        self.latencies: list[int] | None = [] if with_latency else None

    def take(self, event: node_pb2.RunEvent) -> None:
        held = event.sequence - event.previous_sequence
        self.events += held
        self.messages += 1
        self.last_at = time.monotonic()
        if self.latencies is not None:
            now, size = time.monotonic_ns(), len(event.delta) // held
            self.latencies += [now - int(event.delta[i : i + 19]) for i in range(0, size * held, size)]


async def _stream(stub: Any, orders: dict[str, Any], ready: asyncio.Queue[None], count: _Count) -> None:
    """Read one run to its end. Its first delta only says that the agent is there."""
    is_ready = False
    async for event in stub.Run(_request("bench", **orders)):
        if event.type in _DELTAS:
            if is_ready:
                count.take(event)
            else:
                is_ready = True
                ready.put_nowait(None)
        elif event.type == "error":
            raise RuntimeError(event.error)


async def _together(stub: Any, orders: list[dict[str, Any]], count: _Count, began: Callable[[], None]) -> None:
    """All *orders* at once, begun together, to their ends."""
    ready = asyncio.Queue[None]()
    with _gate() as (path, open_gate):
        streams = [asyncio.create_task(_stream(stub, each | {"gate": path}, ready, count)) for each in orders]
        for _ in orders:
            await asyncio.wait_for(ready.get(), 60)
        await asyncio.sleep(0.2)  # what starting cost is over
        began()
        open_gate()
        await asyncio.gather(*streams)


async def throughput(stub: Any, a: dict[str, Any]) -> Result:
    """Agents that print as fast as they can: events a second to the last one, CPU to the ends of all runs."""
    marks: dict[str, Any] = {}

    def began() -> None:
        marks["wardens"] = _Wardens(a["keeper"])
        marks["own"], marks["server"] = _own_cpu_s(), proc.cpu_s(a["pid"])
        marks["at"] = time.monotonic()
        marks["watch"] = asyncio.create_task(marks["wardens"].watch())

    count = _Count()
    orders = [{"events": a["events"], "apart": a["apart"]} for _ in range(a["runs"])]
    await _together(stub, orders, count, began)
    marks["watch"].cancel()
    events = count.events
    return {
        "events_per_s": events / (count.last_at - marks["at"]),
        "events_a_message": events / count.messages,
        "cpu_us": (proc.cpu_s(a["pid"]) - marks["server"]) / events * 1e6,
        "keeper_cpu_us": marks["wardens"].used_s() / events * 1e6,
        "client_cpu_us": (_own_cpu_s() - marks["own"]) / events * 1e6,
    }


async def latency(stub: Any, a: dict[str, Any]) -> Result:
    """Agents that print at a steady rate: from the child's write to here."""
    pause_us = int(1e6 * a["runs"] / a["rate"])
    events = max(3, int(a["seconds"] * 1e6 / pause_us))
    orders = [{"events": events, "us": pause_us, "phase_us": i * pause_us // a["runs"]} for i in range(a["runs"])]
    count = _Count(with_latency=True)
    await _together(stub, orders, count, lambda: None)
    found = [each / 1e6 for each in count.latencies or ()]
    return {"p50_ms": percentile(found, 0.5), "p99_ms": percentile(found, 0.99), "max_ms": max(found)}


async def start(stub: Any, a: dict[str, Any]) -> Result:
    """One dispatch after the other: from the call to the first delta of a child that answers at once."""
    found = []
    for _ in range(a["tries"]):
        began = time.monotonic()
        first = None
        async for event in stub.Run(node_pb2.RunRequest(target="quick", input=a["input"])):
            if first is None and event.type == "delta":
                first = time.monotonic() - began
        assert first is not None, "no delta came"
        found.append(first * 1e3)
    return {"p50_ms": percentile(found, 0.5), "p99_ms": percentile(found, 0.99)}


async def warm(stub: Any, a: dict[str, Any]) -> Result:
    """Later turns of one session, from the call to the first delta; then what many sessions cost that wait."""
    before = proc.threads(a["pid"])
    found = [await _turn(stub, "warm", a["input"]) for _ in range(a["tries"] + 1)][1:]
    for number in range(1, a["sessions"]):
        await _turn(stub, f"warm-{number}", a["input"])
    await asyncio.sleep(1)
    wardens = [proc.private_kib(pid) for pid in proc.children(a["keeper"]) if proc.children(pid)]
    return {
        "p50_ms": percentile(found, 0.5), "p99_ms": percentile(found, 0.99),
        "warden_mb": statistics.median(wardens) * 1024 / 1e6, "threads_more": proc.threads(a["pid"]) - before,
    }  # fmt: skip


async def _turn(stub: Any, session: str, text: str) -> float:
    """One turn of *session*, to its end; milliseconds to its first delta."""
    began, first = time.monotonic(), 0.0
    mode = node_pb2.SESSION_MODE_CREATE_IF_MISSING
    request = node_pb2.RunRequest(target="talk", session_id=session, session_mode=mode, input=text)
    async for event in stub.Run(request):
        if not first and event.type == "delta":
            first = time.monotonic() - began
    assert first, "no delta came"
    return first * 1e3


async def cancel(stub: Any, a: dict[str, Any]) -> Result:
    """From the call of CancelRun to the death of the agent and of its child."""
    found = []
    for _ in range(a["tries"]):
        call = stub.Run(_request("bench", events=0, hold_s=300, family=True))
        run_id, pids = "", [0]
        async for event in call:
            if event.type == "delta":
                run_id, pids = event.run_id, [int(word) for word in event.delta.split()[1:]]
                break
        await asyncio.sleep(0.02)
        assert all(proc.is_alive(pid) for pid in pids), "the agent has no family"
        began = time.monotonic()
        receipt = asyncio.ensure_future(stub.CancelRun(node_pb2.CancelRunRequest(run_id=run_id)))
        while any(proc.is_alive(pid) for pid in pids):
            await asyncio.sleep(0.0002)
            assert time.monotonic() - began < 10, "the tree outlived its cancel"
        found.append((time.monotonic() - began) * 1e3)
        await receipt
        call.cancel()
    return {"p50_ms": percentile(found, 0.5), "p99_ms": percentile(found, 0.99)}


async def idle(stub: Any, a: dict[str, Any]) -> Result:
    """Many streams attached to a few silent runs."""
    names = [f"idle-{i}" for i in range(a["runs"])]
    runs = [
        stub.Run(node_pb2.RunRequest(run_id=n, target="bench", background=True, input='{"events":0,"hold_s":300}'))
        for n in names
    ]
    for call in runs:
        await _deltas(call, 1)
    await asyncio.sleep(0.5)
    before = proc.memory_kib(a["pid"])
    calls = [stub.AttachRun(node_pb2.AttachRunRequest(run_id=names[i % len(names)])) for i in range(a["streams"])]
    await asyncio.gather(*[_deltas(call, 1) for call in calls])
    await asyncio.sleep(0.5)
    after, used = proc.memory_kib(a["pid"]), proc.cpu_s(a["pid"])
    await asyncio.sleep(2)
    found = {
        "kib_per_stream": (after - before) / a["streams"],
        "threads": proc.threads(a["pid"]),
        "cpu_percent": (proc.cpu_s(a["pid"]) - used) / 2 * 100,
        "mib": after / 1024,
    }
    for call in (*calls, *runs):
        call.cancel()
    return found


async def fill(stub: Any, a: dict[str, Any]) -> Result:
    """Dispatch background runs and wait until each has given its *events* events."""

    async def one(name: str) -> None:
        request = node_pb2.RunRequest(run_id=name, target=a["target"], background=True, input=a["input"])
        call = stub.Run(request)
        async for event in call:  # only its beginning: the run goes on without us
            if event.type == "delta":
                break
        call.cancel()
        while await _last(stub, name) < a["events"]:
            await asyncio.sleep(0.1)

    for begin in range(0, a["runs"], 8):
        await asyncio.gather(*[one(f"{a['name']}-{i}") for i in range(begin, min(begin + 8, a["runs"]))])
    return {}


async def attach(stub: Any, a: dict[str, Any]) -> Result:
    """From the call of AttachRun near the end of a long run to its first event."""
    last = await _last(stub, a["run_id"])
    found = []
    for i in range(a["tries"]):
        began = time.monotonic()
        call = stub.AttachRun(node_pb2.AttachRunRequest(run_id=a["run_id"], after_sequence=last - 1 - i % 8))
        await call.read()
        found.append((time.monotonic() - began) * 1e3)
        call.cancel()
    return {"first_ms": found[0], "p50_ms": statistics.median(found), "max_ms": max(found), "last": last}


async def _last(stub: Any, run_id: str) -> int:
    response = await stub.GetRun(node_pb2.GetRunRequest(run_id=run_id))
    return int(response.run.last_sequence)


async def _deltas(call: Any, count: int) -> None:
    async for event in call:
        count -= event.type == "delta"
        if count == 0:
            return


def _own_cpu_s() -> float:
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


_COMMANDS: dict[str, Callable[[Any, dict[str, Any]], Awaitable[Result]]] = {
    each.__name__: each for each in (throughput, latency, start, warm, cancel, idle, fill, attach)
}


async def _main(command: str, arguments: dict[str, Any]) -> Result:
    options = [("grpc.max_receive_message_length", 8 << 20), ("grpc.enable_http_proxy", 0)]
    async with grpc.aio.insecure_channel(arguments["address"], options=options) as channel:
        await channel.channel_ready()
        stub = node_pb2_grpc.NodeServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        return await _COMMANDS[command](stub, arguments)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_main(sys.argv[1], json.loads(sys.argv[2])))))
