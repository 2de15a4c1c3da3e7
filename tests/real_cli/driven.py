"""One vendor's CLI behind a node: how a cell asks it, waits for it, and looks at what it left."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from node.client import NodeClient, new_run_id
from providers.cli.dialect import TurnContext
from providers.cli.dialects import load_dialect
from providers.keeper.client import lock_is_held, read_exit
from runtime.events import RuntimeEvent
from runtime.types import RunRequest
from tests.real_cli.agents import SILENCE_S, RealAgent, provider_of
from tests.support.expect import decode
from tests.support.mockllm.scenario import Plan
from tests.support.mockllm.server import ModelServer
from tests.support.nodes import Node, wait_until
from tests.support.runs import follow

RUN_S = 150.0
"""No cell's run takes so long; a slow machine with all CLIs at once comes near half of it."""


@dataclass(slots=True, kw_only=True)
class Driven:
    """One CLI, ready to be asked."""

    agent: RealAgent
    node: Node
    client: NodeClient
    model: ModelServer
    workspace: Path
    home: Path
    asked: list[str] = field(default_factory=list)
    """The ids of the runs so far."""

    async def ask(self, prompt: str, *, with_tools: bool = False, **fields: Any) -> list[RuntimeEvent]:
        """Every event of a run, activity included."""
        async with asyncio.timeout(RUN_S):
            return await follow(
                self.client.run(self.request(prompt, with_tools=with_tools, **fields), include_activity=True)
            )

    async def fail(self, prompt: str, *, cell: str) -> list[RuntimeEvent]:
        """As :meth:`ask`; where the CLI tries again in silence, with the time-out that ends that."""
        policy = {"iop": {"silence_timeout_s": SILENCE_S}} if cell in self.agent.silent_cells else {}
        return await self.ask(prompt, policy=policy)

    @asynccontextmanager
    async def asking(self, prompt: str, **fields: Any) -> AsyncIterator[tuple[str, AsyncIterator[RuntimeEvent]]]:
        """A run whose start was seen: its id, and the events to come."""
        request = self.request(prompt, **fields)
        async with (
            asyncio.timeout(RUN_S),
            aclosing(self.client.run(request, include_activity=True)) as events,
        ):
            assert (await anext(events)).type == "start"
            yield request.run_id, events

    def request(self, prompt: str, *, with_tools: bool = False, **fields: Any) -> RunRequest:
        target = self.agent.tools_profile if with_tools and self.agent.tools_profile else self.agent.profile
        self.asked.append(run_id := new_run_id())
        return RunRequest(run_id=run_id, target=target, input=prompt, workspace=str(self.workspace), **fields)

    async def forks(self) -> bool:
        """Whether the profile declares that it can fork a session."""
        targets = (await self.client.capabilities()).targets
        return next(each.forks for each in targets if each.target == self.agent.profile)

    # -- what the model says and sees

    def answer(self, prompt: str, *, turn: int = 1) -> str:
        """What the scripted model answers to *prompt* as the *turn*-th of its conversation."""
        return Plan.of(prompt).answer(turn + self.agent.turn_offset)

    async def until_answering(self, directive: str, within_s: float = 60.0) -> None:
        """Return when the model is in the middle of answering *directive*."""
        await until(lambda: any(entry.get("directive") == directive for entry in self.model.answering), within_s)

    def requests(self, directive: str) -> list[dict[str, Any]]:
        """The requests with *directive* that were answered so far."""
        return [entry for entry in self.model.entries if entry.get("directive") == directive]

    # -- what a run left

    async def directory(self, run_id: str) -> Path:
        """The directory of a run, told by the marker of its agent's process."""
        for directory in reversed(self.node.run_directories()):
            with open(directory / "events.jsonl", encoding="utf-8") as journal:
                if f'"{run_id}"' in journal.readline():
                    return directory
        raise AssertionError(f"no directory of {run_id}")

    async def raw(self, run_id: str) -> bytes:
        """What the CLI printed."""
        return b"".join([piece async for piece in self.client.artifact(run_id, "raw")])

    async def native_id(self, run_id: str) -> str:
        """The vendor's own id of the conversation, decoded anew from what the CLI printed."""
        decoder = load_dialect(provider_of(self.agent.profile).dialect).decoder(TurnContext())
        decode([await self.raw(run_id)], decoder)
        assert decoder.native_id is not None
        return decoder.native_id

    async def assert_nothing_is_left(self, run_id: str, within_s: float = 1.0) -> None:
        """No process carries the run's mark, and its warden has gone after it wrote how the CLI ended."""
        directory = await self.directory(run_id)
        await asyncio.to_thread(self.node.assert_no_agents, within_s)
        wait_until(lambda: not lock_is_held(directory), within_s, lambda: "the warden is still there")
        assert read_exit(directory) is not None

    def forget_sessions(self) -> None:
        """Remove what the CLI remembers its conversations in."""
        found = [path for pattern in self.agent.sessions for path in self.home.glob(pattern)]
        assert found, f"nothing matches {self.agent.sessions} below {self.home}"
        for path in found:
            remove(path)


async def until(is_so: Callable[[], object], within_s: float) -> None:
    """Return when *is_so* holds; looked at every 20 ms, without holding the loop."""
    ends_at = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < ends_at, "it did not come about"
        await asyncio.sleep(0.02)


def remove(path: Path) -> None:
    """A file, or a folder with everything in it."""
    if path.is_dir() and not path.is_symlink():
        for each in path.iterdir():
            remove(each)
        path.rmdir()
    else:
        path.unlink()


def as_text(events: list[RuntimeEvent]) -> str:
    """*events* in full, for looking something up in them."""
    return json.dumps(msgspec.to_builtins(events))
