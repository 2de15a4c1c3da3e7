"""NodeClient: a node for edge servers written in Python.

A stream may break at any time: a node restarts, a network blinks. The run does not care, so neither should its reader.
The client keeps a cursor, the sequence of the last event it handed out, and attaches again from there until the
terminal event was seen; each event is handed out once. Before the first event it cannot know whether its request
arrived, so it sends the same request again under the same run id, which a node executes only once.

::

    async with NodeClient("127.0.0.1:50400") as client:
        async for event in client.run(RunRequest(target="demo-agent", input="say hi")):
            print(event.type, event.delta)
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import timedelta
from typing import Any, Self, TypeAlias

import grpc

from node.bridge_agents import command_to_wire
from node.connection import CONNECT_S, PROBE_S, Connection, NodeError, NodeUnreachable
from node.runtime_bridge import event_from_wire, request_to_wire
from node.session_views import SessionSummary, TranscriptEntry, entry_from_wire
from node.wire_views import (
    ArtifactView,
    CancelReceipt,
    CapabilitiesView,
    CommandView,
    NodeStatusView,
    ReadinessView,
    RunDetails,
    RunView,
)
from runtime.events import TERMINAL, RuntimeEvent
from runtime.provider import InputReceipt, InputVerb
from runtime.types import RunRequest

__all__ = ["DEFAULT_ADDRESS", "NodeClient", "NodeError", "NodeUnreachable", "new_run_id"]

DEFAULT_ADDRESS = "127.0.0.1:50400"

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 2.0

_Opener: TypeAlias = Callable[[int], AbstractAsyncContextManager[AsyncIterator[Any]]]


def new_run_id() -> str:
    """An id that no other run has."""
    return f"run-{uuid.uuid4().hex}"


def _id_of_run_made_by(verb: str) -> str:
    return new_run_id() if verb == InputVerb.QUEUE else ""


class NodeClient:
    """One node, by address. ``async with`` opens and closes the connection; calls may run side by side.

    Every method raises :class:`NodeError`: with a ``failure`` when the node refused, and as :class:`NodeUnreachable`
    when no node answered.
    """

    def __init__(self, address: str = DEFAULT_ADDRESS, *, reattach_s: float = 60.0) -> None:
        """
        Args:
            address: ``host:port`` or ``unix:/path``.
            reattach_s: how long a stream may stay broken before its reader is told; the clock starts anew with every
                event. 0: the first break is told.
        """
        self._connection = Connection(address)
        self._reattach_s = reattach_s

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._connection.__aexit__(*error)

    async def ready(self, within_s: float) -> None:
        """Return when the connection stands; without this, the first call makes it.

        Raises:
            NodeUnreachable: no node answers within *within_s*.
        """
        await self._connection.ready(within_s)

    async def run(self, request: RunRequest, *, include_activity: bool = False) -> AsyncGenerator[RuntimeEvent, None]:
        """Dispatch *request* and yield its events to the terminal one.

        An empty ``run_id`` is replaced by :func:`new_run_id`, so that a repeated dispatch stays one run. Leaving the
        loop early ends the stream, and a foreground run without readers is then cancelled by its node; close the
        iterator (``contextlib.aclosing``) to do so at once.

        Raises:
            NodeError: refused before acceptance, or the stream stayed broken. The run may be going on in that case.
            InvalidRequest: *request* cannot be put on the wire.
            Untranslatable: the node speaks of events that this build does not know.
        """
        if not request.run_id:
            request = dataclasses.replace(request, run_id=new_run_id())
        message = request_to_wire(request, include_activity=include_activity)

        def opener(cursor: int) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
            if cursor == 0:
                return self._connection.run(message)
            return self._connection.attach(request.run_id, cursor, include_activity)

        async with aclosing(self._follow(opener, 0)) as events:
            async for event in events:
                yield event

    async def attach(
        self, run_id: str, after_sequence: int = 0, *, include_activity: bool = False
    ) -> AsyncGenerator[RuntimeEvent, None]:
        """Yield the events of a run after *after_sequence*, live or finished, to the terminal one.

        Raises:
            NodeError: no such run, a cursor out of range, or the stream stayed broken.
            Untranslatable: the node speaks of events that this build does not know.
        """

        def opener(cursor: int) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
            return self._connection.attach(run_id, cursor, include_activity)

        async with aclosing(self._follow(opener, after_sequence)) as events:
            async for event in events:
                yield event

    async def cancel(self, run_id: str, *, reason: str = "") -> CancelReceipt:
        """End a run as cancelled; answers when it has ended, or has not within the node's grace. Safe to repeat."""
        return await self._connection.cancel(run_id, reason)

    async def get(self, run_id: str) -> RunDetails:
        """One run and the facts that explain it."""
        return await self._connection.get(run_id)

    async def list(self, *, active_only: bool = False, page_size: int = 0) -> AsyncGenerator[RunView, None]:
        """Runs, newest first, page after page as they are asked for. *page_size* 0 leaves it to the node."""
        token, more = "", True
        while more:
            runs, token = await self._connection.page(active_only, page_size, token)
            for run in runs:
                yield run
            more = bool(token)

    async def artifacts(self, run_id: str) -> tuple[ArtifactView, ...]:
        """What a run left: ``answer``, ``stderr``, ``raw``, as far as they exist."""
        return await self._connection.artifacts(run_id)

    async def artifact(self, run_id: str, name: str) -> AsyncGenerator[bytes, None]:
        """The bytes of one artifact, in pieces of at most 256 KiB."""
        async with self._connection.artifact(run_id, name) as pieces:
            async for piece in pieces:
                yield piece.data

    async def capabilities(self) -> CapabilitiesView:
        """What the node can run, and its limits."""
        return await self._connection.capabilities()

    async def status(self) -> NodeStatusView:
        """The node itself."""
        return await self._connection.status()

    async def readiness(self) -> tuple[ReadinessView, ...]:
        """The last known readiness of every profile, in ID order; nothing is started for it."""
        return await self._connection.readiness()

    async def probe_readiness(
        self, profile_ids: Iterable[str] = (), *, max_age: timedelta = timedelta()
    ) -> tuple[ReadinessView, ...]:
        """Ask the CLIs of *profile_ids* (none: of all) now; a result at most *max_age* old is taken as it is."""
        return await self._connection.probe(profile_ids, max_age)

    async def command(
        self, target: str, name: str = "status", *, adapter: str = "", arguments: Mapping[str, Any] | None = None,
        within_s: float = PROBE_S,
    ) -> CommandView:  # fmt: skip
        """Ask a provider something beside its runs; ``status`` is its usage and quota."""
        request = command_to_wire(target, name, adapter=adapter, arguments=arguments or {})
        return await self._connection.command(request, within_s)

    async def send_input(self, run_id: str, verb: str, text: str = "", *, new_run_id: str = "") -> InputReceipt:
        """Do *verb* (interrupt, steer or queue) to a running turn; a target that cannot refuses as ``unsupported``.

        ``queue`` makes a background run, under *new_run_id* or the id in the receipt: :meth:`attach` to it.
        """
        return await self._connection.send_input(run_id, verb, text, new_run_id or _id_of_run_made_by(verb))

    async def respond(
        self, run_id: str, request_id: str, *, allow: bool, message: str = "", answer: Mapping[str, Any] | None = None
    ) -> None:
        """Answer what a running agent asks (activity ``permission_request``); durable when this returns.

        One of kind ``question`` is allowed with an *answer*, by the names that its ``input_json`` has for what it asks.
        """
        await self._connection.respond(run_id, request_id, allow, message, answer)

    async def sessions(self) -> AsyncGenerator[SessionSummary, None]:
        """Logical sessions, the last used first."""
        token, more = "", True
        while more:
            found, token = await self._connection.sessions(token)
            for session in found:
                yield session
            more = bool(token)

    async def terminate_session(self, session_id: str, *, cancel_active: bool = False) -> SessionSummary:
        """End a session; refused while a run is active on it, unless that is to be cancelled."""
        return await self._connection.terminate_session(session_id, cancel_active)

    async def transcript(self, session_id: str) -> AsyncGenerator[TranscriptEntry, None]:
        """What was said in a session, as far as its runs are still held."""
        async with self._connection.transcript(session_id) as entries:
            async for entry in entries:
                yield entry_from_wire(entry)

    async def reload(self) -> int:
        """Have the node take its changed configuration into service; the generation now in service."""
        return await self._connection.reload()

    async def drain(self) -> int:
        """Have the node take no new runs; how many accepted ones are left."""
        return await self._connection.drain()

    async def is_serving(self) -> bool:
        """Whether the node says that it takes calls (it does so once its recovery is complete)."""
        return await self._connection.is_serving()

    async def _follow(self, opener: _Opener, after_sequence: int) -> AsyncGenerator[RuntimeEvent, None]:
        """The events after a cursor, each once, over as many streams as it takes."""
        cursor, patience = after_sequence, _Patience(self._reattach_s)
        while True:
            try:
                patience.begin()
                async with opener(cursor) as messages:
                    async for message in messages:
                        if message.previous_sequence > cursor:
                            raise _broken(f"events {cursor + 1} to {message.previous_sequence} are missing")
                        if message.sequence <= cursor:
                            continue
                        event = event_from_wire(message)
                        cursor = event.sequence
                        patience.renew()
                        yield event
                        if event.type in TERMINAL:
                            return
                if cursor == after_sequence > 0:
                    return  # the reader already had the terminal event
                raise _broken("the stream ended before the run did")
            except NodeError as error:
                if not error.is_broken:
                    raise
                await patience.wait(error)


class _Patience:
    """Bounded waiting between attempts: each wait is twice the last, and all of one outage stay within a total."""

    def __init__(self, total_s: float) -> None:
        self._total_s = total_s
        self.renew()

    def begin(self) -> None:
        """An attempt begins."""
        self._began_at = time.monotonic()

    def renew(self) -> None:
        """The stream is well; the next break begins a new outage."""
        self._wait_s = _FIRST_WAIT_S
        self._ends_at: float | None = None

    async def wait(self, error: NodeError) -> None:
        """Wait before the next attempt, or raise *error* when the time is used up."""
        now = time.monotonic()
        if now - self._began_at > 2 * CONNECT_S:  # too long for a failed dial: a quiet stream that was well
            self.renew()
        if self._ends_at is None:
            self._ends_at = now + self._total_s
        if now >= self._ends_at:
            raise error
        # edges that lost the same node at the same moment should not come back at the same moment
        await asyncio.sleep(min(self._wait_s * random.uniform(0.5, 1.0), self._ends_at - now))
        self._wait_s = min(self._wait_s * 2, _LONGEST_WAIT_S)


def _broken(message: str) -> NodeError:
    return NodeError(grpc.StatusCode.UNAVAILABLE, message)
