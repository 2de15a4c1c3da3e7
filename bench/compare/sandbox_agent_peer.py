"""sandbox-agent, the HTTP server of the npm package ``@sandbox-agent/cli``: ACP over POST, its notifications over SSE.

It starts agents by launchers in its own directory; the one of its built-in mock is replaced with one that starts the agent
of this comparison. A server instance (``/v1/acp/{id}``) is one agent process; a prompt is one of its JSON-RPC requests.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bench.compare.peer import AGENT, START_S, Peer, Refused, Said, Stream

READ_BYTES = 64 << 10


class SandboxAgentPeer(Peer):
    name = "sandbox-agent"
    notes = (
        "does not claim to survive its own end: agents are its children, events live in its memory",
        "has no run ids: a prompt sent twice is two prompts",
    )

    def __init__(self, root: Path, cache: Path) -> None:
        super().__init__(root, cache)
        package = cache / "sandbox-agent/node_modules/@sandbox-agent/cli-linux-x64"
        self.version = json.loads((package / "package.json").read_text())["version"]
        self.program = package / "bin/sandbox-agent"
        self.port = 0
        self.posts: set[asyncio.Task[Any]] = set()
        launcher = root / ".local/share/sandbox-agent/bin/agent_processes/mock-acp"
        launcher.parent.mkdir(parents=True)
        launcher.write_text(f"#!/bin/sh\nexec {sys.executable} -I -S {AGENT} acp {self.begun_path}\n")
        launcher.chmod(0o755)

    async def start(self) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
        command = [str(self.program), "server", "--no-token", "--no-telemetry", "--host", "127.0.0.1"]
        self.launch([*command, "--port", str(self.port)], {})
        async with asyncio.timeout(START_S):
            while not await self._is_serving():
                await asyncio.sleep(0.02)

    async def _is_serving(self) -> bool:
        try:
            await self._call("GET", "/v1/health", None)
        except (OSError, Refused):
            return False
        return True

    async def _open(self, method: str, path: str, body: bytes | None, *headers: str) -> Any:
        """A request on a connection of its own; the reader stands at the body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", "connection: close", *headers]
        if body is not None:
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        writer.write("\r\n".join([*lines, "", ""]).encode() + (body or b""))
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        status = head.split()[1]
        if not status.startswith("2"):
            said = (await reader.read(500)).decode(errors="replace")
            writer.close()
            raise Refused(f"HTTP {status}: {said}")
        return reader, writer, "transfer-encoding: chunked" in head

    async def _call(self, method: str, path: str, message: object) -> bytes:
        body = None if message is None else json.dumps(message).encode()
        reader, writer, _ = await self._open(method, path, body)
        try:
            return bytes(await reader.read())
        finally:
            writer.close()

    async def _begin(self, run_id: str, prompt: str) -> None:
        """Make the server instance unless it is there, and send the prompt; its answer comes with the last event."""
        path = f"/v1/acp/{run_id}"
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
        await self._call("POST", f"{path}?agent=mock", hello)
        new = {"jsonrpc": "2.0", "id": 2, "method": "session/new", "params": {"cwd": str(self.root), "mcpServers": []}}
        await self._call("POST", path, new)
        params = {"sessionId": "compare", "prompt": [{"type": "text", "text": prompt}]}
        ask = {"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": params}
        post = asyncio.create_task(self._call("POST", path, ask))
        post.add_done_callback(lambda task: (self.posts.discard(task), task.cancelled() or task.exception()))
        self.posts.add(post)

    async def dispatch(self, run_id: str, prompt: str) -> Stream:
        await self._begin(run_id, prompt)
        async for said in self.attach(run_id, 0):
            yield said

    async def attach(self, run_id: str, after: int) -> Stream:
        headers = ["accept: text/event-stream"] + ([f"last-event-id: {after}"] if after else [])
        reader, writer, is_chunked = await self._open("GET", f"/v1/acp/{run_id}", None, *headers)
        try:
            cursor = after
            async for line in _lines(reader, is_chunked):
                if line.startswith(b"id:"):
                    cursor = int(line[3:])
                elif line.startswith(b"data:"):
                    message = json.loads(line[5:])
                    if message.get("id") == 3:
                        yield Said([], cursor, True, "complete" if "result" in message else "error")
                        return
                    if message.get("method") == "session/update":
                        text = message["params"]["update"]["content"]["text"]
                        yield Said([int(word) for word in text.split()], cursor)
            raise Refused("the stream ended before the work did")
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Refused(f"the connection broke: {error!r}") from error
        finally:
            writer.close()

    async def close(self) -> None:
        for post in tuple(self.posts):
            post.cancel()


async def _lines(reader: asyncio.StreamReader, is_chunked: bool) -> AsyncIterator[bytes]:
    """The lines of a body that is cut into chunks anywhere."""
    held = b""
    while True:
        if is_chunked:
            size = int((await reader.readline()).strip() or b"0", 16)
            data = await reader.readexactly(size) if size else b""
            await reader.readline()
        else:
            data = await reader.read(READ_BYTES)
        if not data:
            return
        *lines, held = (held + data).split(b"\n")
        for line in lines:
            yield line
