"""A provider that plays a script: for hosts that try the runtime without a process, and for tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from runtime.provider import EventSink, RunContext
from runtime.types import Capabilities, ExecutionSpec

Script = Callable[[RunContext, ExecutionSpec, EventSink], Awaitable[None]]


class ScriptedProvider:
    """Executes *script* for every run; serves *targets*."""

    def __init__(
        self,
        script: Script,
        *,
        targets: tuple[str, ...] = ("scripted",),
        max_concurrency: int = 0,
        policy_keys: frozenset[str] = frozenset(),
    ) -> None:
        self._script = script
        self._capabilities = Capabilities(targets=targets, max_concurrency=max_concurrency, policy_keys=policy_keys)
        self.closed = 0

    async def capabilities(self) -> Capabilities:
        return self._capabilities

    async def execute(self, ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        await self._script(ctx, spec, sink)

    async def close(self) -> None:
        self.closed += 1
