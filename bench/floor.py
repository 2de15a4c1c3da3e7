"""The floor: child → pipe → JSON → RunEvent → gRPC stream, and nothing else.

It serves the node's own ``Run`` with events of the same content, so one client can talk to both. It keeps nothing: no
journal, no grammar, no recovery, no cancel that reaches further than the process group. What the node costs beyond this
is the price of its promises.

    python -m bench.floor        # prints host:port, serves until stdin ends
"""

from __future__ import annotations

import asyncio
import collections
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # before the first grpc import

import grpc
import grpc.aio
import msgspec

from bench.catalog import AGENT, QUICK
from node.pb import node_pb2

BATCH = 64
HIGH = 256  # lines that wait before the pipe is left to fill up

# as long as the node's own
RUN_ID, SESSION_ID, NODE_ID = "01k" + "0" * 23, "01K" + "1" * 23, "node-01k" + "2" * 23


class _Delta(msgspec.Struct, gc=False):
    text: str = ""
    thinking: str = ""


class _Message(msgspec.Struct, gc=False):
    id: str = ""


class _Event(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    message: _Message | None = None


class _Frame(msgspec.Struct, gc=False):
    event: _Event | None = None


decode = msgspec.json.Decoder(_Frame).decode


class Pipe:
    """Lines of a pipe; stops reading while more than ``HIGH`` wait, which holds the child back."""

    def __init__(self, fd: int) -> None:
        self._fd, self._rest, self._is_reading, self._at_end = fd, b"", True, False
        self._lines: collections.deque[bytes] = collections.deque()
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._ready)

    def _ready(self) -> None:
        try:
            chunk = os.read(self._fd, 65536)
        except BlockingIOError:
            return
        if chunk:
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            self._lines.extend(lines)
            if len(self._lines) > HIGH:
                self._loop.remove_reader(self._fd)
                self._is_reading = False
        else:
            self.close()
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[bytes]:
        """Up to ``BATCH`` lines; none at the end."""
        while not self._lines:
            if self._at_end:
                return []
            self._waiter = self._loop.create_future()
            await self._waiter
        lines = self._lines
        taken = [lines.popleft() for _ in range(min(BATCH, len(lines)))]
        if not self._is_reading and not self._at_end and len(lines) <= HIGH // 2:
            self._loop.add_reader(self._fd, self._ready)
            self._is_reading = True
        return taken

    def close(self) -> None:
        if not self._at_end:
            self._at_end = True
            self._loop.remove_reader(self._fd)
            os.close(self._fd)


async def run(request: node_pb2.RunRequest, context: Any) -> AsyncIterator[node_pb2.RunEvent]:
    """One child for one call, one event for one line."""
    argv = [*(QUICK if request.target == "quick" else AGENT), request.input]
    read, write = os.pipe()
    process = subprocess.Popen(  # noqa: ASYNC220  # the floor has no keeper; a vfork is short
        argv, stdin=subprocess.DEVNULL, stdout=write, start_new_session=True
    )
    os.close(write)
    pipe = Pipe(read)
    sequence, message_id = 0, ""
    try:
        while lines := await pipe.take():
            for line in lines:
                event = decode(line).event
                if event is None:
                    continue
                if event.delta is None:
                    message_id = event.message.id if event.message else message_id
                    continue
                sequence += 1
                text = event.delta.text
                message = node_pb2.RunEvent(
                    run_id=RUN_ID, type="delta" if text else "reasoning_delta", delta=text or event.delta.thinking,
                    metadata={"message_id": message_id},
                    session_id=SESSION_ID, node_id=NODE_ID, sequence=sequence, previous_sequence=sequence - 1,
                )  # fmt: skip
                stamp = message.timestamp
                stamp.seconds, stamp.nanos = divmod(time.time_ns(), 1_000_000_000)
                yield message
    finally:
        pipe.close()
        if process.poll() is None:
            await _end(process)


async def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    loop = asyncio.get_running_loop()
    fd, gone = os.pidfd_open(process.pid), loop.create_future()
    loop.add_reader(fd, lambda: gone.done() or gone.set_result(None))
    try:
        await gone
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    process.wait()


async def _serve() -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", 10_000)])
    method = grpc.unary_stream_rpc_method_handler(
        run, node_pb2.RunRequest.FromString, node_pb2.RunEvent.SerializeToString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("iop.node.v1.NodeService", {"Run": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"floor listening on 127.0.0.1:{port}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(_serve())
