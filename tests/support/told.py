"""A host of a provider that is nothing but a list of drafts, and what it asks to be executed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from providers.cli.provider import CliProvider
from runtime.events import Draft
from runtime.provider import RunContext
from runtime.types import ExecutionSpec

BOUND_S = 60.0

Make = Callable[..., CliProvider]
"""Makes a provider of a dialect; the rest are members of its profile."""
Context = Callable[..., RunContext]
"""Makes a context with a run directory of its own, or of a given one that is used again."""


@dataclass
class Told:
    """A sink that keeps what it is told."""

    drafts: list[Draft] = field(default_factory=list)
    was_told: asyncio.Event = field(default_factory=asyncio.Event)

    async def emit(self, drafts: Sequence[Draft], /) -> None:
        self.drafts += drafts
        self.was_told.set()

    def said(self) -> list[tuple[str, str]]:
        return [(draft.type.value, draft.text) for draft in self.drafts]

    async def until(self, count: int) -> None:
        async with asyncio.timeout(BOUND_S):
            while len(self.drafts) < count:
                self.was_told.clear()
                await self.was_told.wait()


def spec(script: str, workspace: Path, **changes: Any) -> ExecutionSpec:
    values = {"run_id": "r", "adapter": "cli", "target": "p", "workspace": str(workspace), "input": script, **changes}
    return ExecutionSpec(**values)
