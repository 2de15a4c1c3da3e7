"""What the fixtures of the keeper's tests are: the types of the callables that a test asks for by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypedDict, Unpack

from providers.keeper.client import SpawnRequest, WardenLink

Command = tuple[str, ...]

CommandOf = Callable[[str], Command]
Until = Callable[[Callable[[], bool]], Awaitable[None]]
Printed = Callable[[WardenLink, bytes], Awaitable[bytes]]
IsRunning = Callable[[int], bool]
ChildrenOf = Callable[[int], list[int]]
WardenOf = Callable[[WardenLink], int]
Marked = Callable[[str], list[int]]


class Changes(TypedDict, total=False):
    """The fields of a ``SpawnRequest`` that a test may set otherwise."""

    cwd: str
    stdin_fd: int | None
    stdin_pipe: bool
    deadline_boot_s: float | None
    output_bytes: int
    disk_watermark_bytes: int
    process_limit: int | None


class Request(Protocol):
    def __call__(
        self, *argv: str, name: str = "", env: dict[str, str] | None = None, **changes: Unpack[Changes]
    ) -> SpawnRequest: ...


class Spawn(Protocol):
    async def __call__(
        self,
        program: str,
        *arguments: str,
        name: str = "",
        env: dict[str, str] | None = None,
        **changes: Unpack[Changes],
    ) -> WardenLink: ...


class StopManner(TypedDict):
    """The arguments of ``WardenLink.stop`` but for the grace."""

    steps: list[str]
    reason: str


class Stop(StopManner):
    """All arguments of ``WardenLink.stop``."""

    grace_s: float
