"""Runs as a test sees them: dispatched, followed to the end, and compared as whole sequences."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc.aio
from google.rpc.error_details_pb2 import ErrorInfo  # type: ignore[import-untyped]  # no stubs exist
from grpc_status import rpc_status

from node.client import NodeClient
from runtime.events import RuntimeEvent
from runtime.types import RunRequest

BOUND_S = 60.0


async def run(client: NodeClient, target: str, prompt: str = "", **fields: Any) -> list[RuntimeEvent]:
    """Every event of a run, activity included."""
    return await follow(client.run(RunRequest(target=target, input=prompt, **fields), include_activity=True))


async def follow(events: Any) -> list[RuntimeEvent]:
    """All *events* of a stream."""
    async with aclosing(events) as stream:
        return [event async for event in stream]


@asynccontextmanager
async def begun(
    client: NodeClient, target: str, prompt: str = "", **fields: Any
) -> AsyncIterator[tuple[str, AsyncIterator[RuntimeEvent]]]:
    """A run whose start was seen: its id, and the events to come. Leaving the block ends the stream."""
    async with aclosing(client.run(RunRequest(target=target, input=prompt, **fields))) as events:
        first = await anext(events)
        assert first.type == "start"
        yield first.run_id, events


def words(events: Sequence[RuntimeEvent]) -> list[str]:
    """The types in order."""
    return [event.type.value for event in events]


def text(events: Sequence[RuntimeEvent]) -> str:
    """The deltas, put together."""
    return "".join(event.delta for event in events if event.type == "delta")


def told(events: Sequence[RuntimeEvent]) -> list[tuple[str, str, str]]:
    """What *events* say, the same for every reader: pieces of one message count as one, since a reader that is behind
    gets them merged.
    """
    found: list[tuple[str, str, str]] = []
    last = ""
    for event in events:
        key = f"{event.type.value} {event.metadata.get('message_id', '')}"
        if event.delta and key == last:
            found[-1] = (event.type.value, found[-1][1] + event.delta, "")
        else:
            said = event.delta or event.message or event.error
            found.append((event.type.value, said, event.failure.code if event.failure else ""))
        last = key
    return found


def ending(event: RuntimeEvent) -> tuple[str, str]:
    """How a run ended: the terminal's type, and the failure's code or else the message."""
    return event.type.value, event.failure.code if event.failure else event.message


async def refusal(call: Any) -> tuple[grpc.StatusCode, str, str]:
    """Why a call was refused: status, the code of its ErrorInfo, and the sentence. Reads a stream to its end."""
    try:
        found = [message async for message in call] if hasattr(call, "__aiter__") else [await call]
    except grpc.aio.AioRpcError as error:
        return error.code(), reason_of(error), error.details() or ""
    raise AssertionError(f"not refused, but answered {found!r}")


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """The reason in the error's ErrorInfo, empty when it has none."""
    status, info = rpc_status.from_call(error), ErrorInfo()
    if status is None or not any(detail.Unpack(info) for detail in status.details):
        return ""
    assert info.domain == "iop.node"
    return str(info.reason)
