"""An agent server made with the Python SDK of A2A, over gRPC, as its documentation shows: ``a2a_server.py ADDRESS DB BEGUN``.

Tasks are kept in the SDK's database store (SQLite); each word of the agent is a status update.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import grpc.aio
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.tasks import DatabaseTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, Part, Task, TaskState, TaskStatus, a2a_pb2_grpc
from sqlalchemy.ext.asyncio import create_async_engine

AGENT = Path(__file__).with_name("agent.py")


class Executor(AgentExecutor):
    def __init__(self, begun: str) -> None:
        self._begun = begun

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task_id, context_id = str(context.task_id), str(context.context_id)
        if context.current_task is None:
            status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
            task = Task(id=task_id, context_id=context_id, status=status, history=[context.message])
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task_id, context_id)
        agent = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(AGENT), "lines", self._begun,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdin.write(context.get_user_input().encode())
        agent.stdin.close()
        async for line in agent.stdout:
            word = updater.new_agent_message([Part(text=line.decode().strip())])
            await updater.update_status(TaskState.TASK_STATE_WORKING, message=word)
        await agent.wait()
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


async def main() -> None:
    address, database, begun = sys.argv[1:]
    store = DatabaseTaskStore(create_async_engine(f"sqlite+aiosqlite:///{database}"))
    await store.initialize()
    card: Any = AgentCard(name="compare", version="1", capabilities=AgentCapabilities(streaming=True))
    handler = DefaultRequestHandler(agent_executor=Executor(begun), task_store=store, agent_card=card)
    server = grpc.aio.server()
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(handler), server)
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()


asyncio.run(main())
