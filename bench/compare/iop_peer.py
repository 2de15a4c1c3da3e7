"""This node, over gRPC, with its own client."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from bench.compare.peer import AGENT, START_S, Peer, Refused, Said, Stream
from node.client import NodeClient, NodeError
from runtime.types import RunRequest


class IopPeer(Peer):
    name = "iop-node"
    version = version("iop-node")

    def __init__(self, root: Path, cache: Path) -> None:
        super().__init__(root, cache)
        self.client: NodeClient | None = None
        provider = {"id": "p", "command": [sys.executable, "-I", "-S", str(AGENT), "claude", str(self.begun_path)],
                    "dialect": "claude_stream_json"}  # fmt: skip
        catalog = {
            "version": 1, "providers": [provider], "models": [{"id": "m", "provider": "p", "target": "none"}],
            "profiles": [{"id": "agent", "provider": "p", "model": "m"}],
        }  # fmt: skip
        (root / "catalog.yaml").write_text(yaml.safe_dump(catalog))
        (root / "node.yaml").write_text(yaml.safe_dump({"catalog": "catalog.yaml"}))

    async def start(self) -> None:
        address = f"unix:{self.root}/s"
        program = str(Path(sys.executable).parent / "iop-node")
        config = ["--config", str(self.root / "node.yaml"), "--data-dir", str(self.root / "data")]
        self.launch([program, "serve", "--listen", address, *config], {})
        if self.client is None:
            self.client = await NodeClient(address, reattach_s=0).__aenter__()
        async with asyncio.timeout(START_S):
            while not await self._is_serving():
                await asyncio.sleep(0.02)

    async def _is_serving(self) -> bool:
        assert self.client is not None
        try:
            return await self.client.is_serving()
        except NodeError:
            return False

    def dispatch(self, run_id: str, prompt: str) -> Stream:
        assert self.client is not None
        request = RunRequest(run_id=run_id, target="agent", input=prompt, background=True)
        return self._follow(self.client.run(request))

    def attach(self, run_id: str, after: int) -> Stream:
        assert self.client is not None
        return self._follow(self.client.attach(run_id, after))

    async def _follow(self, events: Any) -> Stream:
        try:
            async with aclosing(events) as stream:
                async for event in stream:
                    words = [int(word) for word in event.delta.split()]
                    yield Said(words, event.sequence, event.is_terminal, event.type.value)
        except NodeError as error:
            raise Refused(f"{error.code}: {error}") from error

    async def close(self) -> None:
        if self.client is not None:
            await self.client.__aexit__(None, None, None)
