"""The two programs under test, as processes of this one: started, asked whether they serve, ended without a rest."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # before the first grpc import

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.catalog import write_config
from node.pb import node_pb2, node_pb2_grpc

START_S, STOP_S = 60, 20


@dataclass(slots=True)
class Server:
    """A program that listens; ``keeper`` is 0 for the floor."""

    name: str
    process: subprocess.Popen[str]
    address: str
    keeper: int = 0
    started_s: float = 0.0

    @property
    def pid(self) -> int:
        return self.process.pid


@contextmanager
def floor() -> Iterator[Server]:
    """The floor, until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.floor"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Server("floor", process, _address(process))
    finally:
        assert process.stdin is not None
        process.stdin.close()
        _wait(process)


@dataclass(slots=True)
class Place:
    """A directory for nodes; one may follow another in it. Every keeper seen is ended with the place."""

    directory: Path
    config: Path
    keepers: set[int] = field(default_factory=set)

    def start(self, *, prefix: tuple[str, ...] = ()) -> Server:
        """A node that serves."""
        command = prefix or (sys.executable, "-m", "node")
        arguments = ["serve", "--config", str(self.config), "--listen", "127.0.0.1:0", "--log-level", "warning"]
        began = time.monotonic()
        process = subprocess.Popen(
            [*command, *arguments, "--data-dir", str(self.directory / "data")], stdout=subprocess.PIPE, text=True
        )
        try:
            server = Server("node", process, _address(process))
            with grpc.insecure_channel(server.address) as channel:
                _wait_until_serving(channel)
                server.started_s = time.monotonic() - began
                server.keeper = _stub(channel).GetNodeStatus(node_pb2.GetNodeStatusRequest()).keeper_pid
        except BaseException:
            process.kill()
            process.wait()
            raise
        self.keepers.add(server.keeper)
        return server


@contextmanager
def place(*, lines: int = 2000) -> Iterator[Place]:
    """A new directory for nodes, on a disk, removed at the end."""
    directory = Path(tempfile.mkdtemp(prefix="iop-bench-"))
    found = Place(directory, write_config(directory, lines=lines))
    try:
        yield found
    finally:
        for keeper in found.keepers - {0}:
            _terminate(keeper)
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def node(where: Place | None = None) -> Iterator[Server]:
    """A node until the block ends; its runs are cancelled first."""
    if where is None:
        with place() as where, node(where) as server:
            yield server
        return
    server = where.start()
    try:
        yield server
    finally:
        if server.process.poll() is None:
            cancel_all(server)
        stop(server)


def stop(server: Server) -> None:
    """Ask the node to leave; its runs stay."""
    server.process.send_signal(signal.SIGTERM)
    _wait(server.process)


def kill(server: Server) -> None:
    """End the node in the middle of whatever it does."""
    server.process.kill()
    _wait(server.process)


def cancel_all(server: Server) -> None:
    """End every run that goes on."""
    with grpc.insecure_channel(server.address) as channel:
        stub = _stub(channel)
        request = node_pb2.ListRunsRequest(page_size=1000, active_only=True)
        runs = stub.ListRuns(request, timeout=STOP_S).runs
        calls = [stub.CancelRun.future(node_pb2.CancelRunRequest(run_id=run.run_id), timeout=60) for run in runs]
        for call in calls:
            call.result()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    words = process.stdout.readline().split()
    if not words:
        raise RuntimeError(f"{process.args!r} did not start")
    return words[-1]


def _wait_until_serving(channel: grpc.Channel) -> None:
    health, until = health_pb2_grpc.HealthStub(channel), time.monotonic() + START_S
    while health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True).status != 1:
        if time.monotonic() > until:
            raise RuntimeError(f"the node does not serve after {START_S} s")
        time.sleep(0.002)


def _stub(channel: grpc.Channel) -> node_pb2_grpc.NodeServiceStub:
    return node_pb2_grpc.NodeServiceStub(channel)  # type: ignore[no-untyped-call]  # generated


def _wait(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _terminate(pid: int) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        until = time.monotonic() + 2
        while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
            time.sleep(0.01)
