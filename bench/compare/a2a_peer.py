"""A server made with the A2A Python SDK (PyPI ``a2a-sdk``), over gRPC. Run with the interpreter of the SDK's environment."""

from __future__ import annotations

import asyncio
import sys
import uuid
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc.aio
from a2a.types import Message, Part, Role, SendMessageRequest, SubscribeToTaskRequest, TaskState, a2a_pb2_grpc

from bench.compare.peer import START_S, Peer, Refused, Said, Stream

ENDED = {
    TaskState.TASK_STATE_COMPLETED: "complete", TaskState.TASK_STATE_FAILED: "error",
    TaskState.TASK_STATE_CANCELED: "cancelled", TaskState.TASK_STATE_REJECTED: "error",
}  # fmt: skip


class A2APeer(Peer):
    name = "a2a-sdk"
    scale = 0.05  # its task store writes the whole task with every update
    version = version("a2a-sdk")
    notes = (
        "is a library for agent servers: the process that executes is the author's own business",
        "subscribing again gives the task as it is and what comes after; there is no cursor",
        "task ids are made by the server: the same message sent twice is two tasks",
    )

    def __init__(self, root: Path, cache: Path) -> None:
        super().__init__(root, cache)
        self.address = f"unix:{root}/s"
        self.channel: Any = None
        self.tasks: dict[str, str] = {}

    async def start(self) -> None:
        server = Path(__file__).with_name("a2a_server.py")
        self.launch([sys.executable, str(server), self.address, str(self.root / "tasks.db"), str(self.begun_path)], {})
        await self.close()
        self.channel = grpc.aio.insecure_channel(self.address, options=[("grpc.max_receive_message_length", -1)])
        async with asyncio.timeout(START_S):
            await self.channel.channel_ready()

    async def dispatch(self, run_id: str, prompt: str) -> Stream:
        message = Message(
            message_id=str(uuid.uuid5(uuid.NAMESPACE_URL, run_id)), role=Role.ROLE_USER, parts=[Part(text=prompt)]
        )
        call = self._stub().SendStreamingMessage(SendMessageRequest(message=message))
        async for said in self._follow(call, run_id):
            yield said

    async def attach(self, run_id: str, after: int) -> Stream:
        if run_id not in self.tasks:
            raise Refused("no task id was heard")
        call = self._stub().SubscribeToTask(SubscribeToTaskRequest(id=self.tasks[run_id]))
        async for said in self._follow(call, run_id):
            yield said

    def _stub(self) -> Any:
        return a2a_pb2_grpc.A2AServiceStub(self.channel)

    async def _follow(self, call: Any, run_id: str) -> Stream:
        """A task tells all that its history holds, an update one word."""
        try:
            async for answer in call:
                kind = answer.WhichOneof("payload")
                if kind == "task":
                    self.tasks.setdefault(run_id, answer.task.id)
                    messages = [*answer.task.history, answer.task.status.message]
                    status = answer.task.status
                else:
                    status = answer.status_update.status
                    messages = [status.message]
                texts = [part.text for m in messages if m.role == Role.ROLE_AGENT for part in m.parts]
                yield Said([int(text) for text in texts], 0, status.state in ENDED, ENDED.get(status.state, ""))
        except grpc.aio.AioRpcError as error:
            raise Refused(f"{error.code().name}: {error.details()}") from error
        finally:
            call.cancel()

    async def close(self) -> None:
        if self.channel is not None:
            await self.channel.close()
            self.channel = None
