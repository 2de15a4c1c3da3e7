"""One CLI that serves a session behind a node: how a cell talks to it, answers it, and takes its process away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from node.client import NodeClient, NodeError, new_run_id
from runtime.events import EventType, PermissionRequest, RuntimeEvent
from runtime.types import RunRequest, SessionMode
from tests.real_cli.driven import RUN_S, remove, until
from tests.real_cli.session_agents import SESSIONS, SessionAgent
from tests.support.mockllm.scenario import Plan
from tests.support.nodes import Node


@dataclass(slots=True, kw_only=True)
class Turn:
    """A turn under way, and its events so far."""

    run_id: str
    events: list[RuntimeEvent] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    @property
    def questions(self) -> list[PermissionRequest]:
        return [each.activity for each in self.events if isinstance(each.activity, PermissionRequest)]

    async def has(self, is_so: Callable[[], object]) -> None:
        """Return when *is_so* holds; a turn that ends before is a failure that shows how."""
        assert self.task is not None
        await until(lambda: is_so() or self.task.done(), RUN_S)  # type: ignore[union-attr]  # it is there
        assert is_so(), self.events[-3:]

    async def end(self) -> list[RuntimeEvent]:
        assert self.task is not None
        await self.task
        return self.events


@dataclass(slots=True, kw_only=True)
class Talking:
    """One row, and one session of it."""

    agent: SessionAgent
    node: Node
    client: NodeClient
    workspace: Path
    home: Path
    session: str

    @classmethod
    def of(cls, row: str, node: Node, client: NodeClient, options: Mapping[str, Any], folder: Path) -> Talking:
        """A session of *row* with a workspace of its own below *folder*."""
        agent = SESSIONS[row]
        (workspace := folder / "workspace").mkdir()
        home = Path(options["profiles"][agent.profile]["env"]["HOME"])
        return cls(agent=agent, node=node, client=client, workspace=workspace, home=home, session=folder.name)

    async def say(
        self, prompt: str, *, allow: bool | None = None, silence_s: float | None = None
    ) -> list[RuntimeEvent]:
        """One turn of the session; every question is answered with *allow* (None: not at all)."""
        turn = self.begin(prompt, silence_s=silence_s)
        asked = 0
        while not turn.task.done():  # type: ignore[union-attr]  # it is there
            await asyncio.sleep(0.02)
            if allow is not None and len(turn.questions) > asked:
                await self.client.respond(turn.run_id, turn.questions[asked].request_id, allow=allow)
                asked += 1
        return await turn.end()

    async def forks(self) -> bool:
        """Whether the profile declares that it can fork a session."""
        targets = (await self.client.capabilities()).targets
        return next(each.forks for each in targets if each.target == self.agent.profile)

    def begin(self, prompt: str, *, silence_s: float | None = None, fork_from: str = "") -> Turn:
        """The turn that begins with *prompt*, under way; with *fork_from* it is the first of a fork of that session."""
        policy = {} if silence_s is None else {"iop": {"silence_timeout_s": silence_s}}
        request = RunRequest(
            run_id=new_run_id(), target=self.agent.profile, input=prompt, workspace=str(self.workspace),
            session_id=self.session, policy=policy, fork_from=fork_from,
            session_mode=SessionMode.FORK if fork_from else SessionMode.CREATE_IF_MISSING,
        )  # fmt: skip
        return self._followed(request.run_id, self.client.run(request, include_activity=True))

    def attach(self, run_id: str) -> Turn:
        """A turn that was dispatched already."""
        return self._followed(run_id, self.client.attach(run_id, include_activity=True))

    def _followed(self, run_id: str, events: AsyncGenerator[RuntimeEvent, None]) -> Turn:
        turn = Turn(run_id=run_id)
        turn.task = asyncio.create_task(self._follow(events, turn))
        return turn

    async def _follow(self, stream: AsyncGenerator[RuntimeEvent, None], turn: Turn) -> None:
        async with asyncio.timeout(RUN_S), aclosing(stream) as events:
            async for event in events:
                turn.events.append(event)

    def answer(self, prompt: str, *, turn: int = 1) -> str:
        """What the scripted model answers to *prompt* as the *turn*-th of its conversation."""
        return Plan.of(prompt).answer(turn + self.agent.turn_offset)

    async def respond(self, turn: Turn, *, allow: bool) -> None:
        """Answer the first question of *turn* once the node has it."""
        await turn.has(lambda: turn.questions)
        async with asyncio.timeout(RUN_S):
            while True:
                try:
                    return await self.client.respond(turn.run_id, turn.questions[0].request_id, allow=allow)
                except NodeError as error:  # the node is away, or has not asked again yet
                    if error.failure is not None and error.failure.code != "not_found":
                        raise
                await asyncio.sleep(0.1)

    async def pid(self, events: list[RuntimeEvent]) -> str:
        """The process that took a turn."""
        return (await self.client.get(events[0].run_id)).details["pid"]

    @property
    def asked_path(self) -> Path:
        """The file whose making the CLI asks for."""
        return (self.workspace.parent if self.agent.asks_outside else self.workspace) / "asked.txt"

    @property
    def asking(self) -> str:
        """A prompt that makes the CLI ask."""
        return f"[[mock:write path={self.asked_path} content=made]] hello"

    def processes(self) -> dict[int, str]:
        """The CLI's processes, and what they started."""
        return self.node.started_processes(self.home)

    async def evict(self) -> None:
        """Let a turn of another session take the place of this session's process: the node keeps one warm."""
        before = set(self.processes())
        other = replace(self, session=f"{self.session}-other")
        await other.say("[[mock words=3]] hello")
        await until(lambda: not before & set(self.processes()), 20)
        await self.client.terminate_session(other.session)

    def forget_sessions(self) -> None:
        """Remove what the CLI remembers its conversations in."""
        found = [path for pattern in self.agent.sessions for path in self.home.glob(pattern)]
        assert found, f"nothing matches {self.agent.sessions} below {self.home}"
        for path in found:
            remove(path)


def has_delta(turn: Turn) -> bool:
    return any(event.type is EventType.DELTA for event in turn.events)


def name_in(asked: PermissionRequest) -> str:
    """The name under which a question of one thing wants its answer."""
    told = json.loads(asked.input_json)
    if "questions" in told:
        return str(told["questions"][0]["question"])
    return str(next(iter(told["requestedSchema"]["properties"])))


async def refusal_of(talking: Talking, turn: Turn, verb: str) -> str:
    """The code with which *verb* is refused."""
    try:
        receipt = await talking.client.send_input(turn.run_id, verb, "go on")
    except NodeError as error:
        return "" if error.failure is None else error.failure.code
    raise AssertionError(f"{verb} was not refused: {receipt}")
