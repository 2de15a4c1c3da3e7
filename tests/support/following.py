"""Many runs followed at once, over breaks of the connection, for tests that kill things under them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from node.client import NodeClient, NodeError
from providers.keeper.client import read_owner
from runtime.events import RuntimeEvent
from runtime.types import RunRequest
from tests.support.books import directory_of, outcome_of

WITHIN_S = 60.0


class Follower:
    """One run and the events its caller has got; the caller comes back when the node does."""

    def __init__(
        self, client: NodeClient, run_id: str, prompt: str, *, target: str = "demo-agent", **fields: Any
    ) -> None:
        self.run_id = run_id
        self.events: list[RuntimeEvent] = []
        self.refused: NodeError | None = None
        self._client = client
        self._request = RunRequest(run_id=run_id, target=target, input=prompt, **fields)
        self.task = asyncio.create_task(self._follow(), name=f"follow {run_id}")

    async def _follow(self) -> None:
        try:
            async for event in self._client.run(self._request):
                self.events.append(event)
        except NodeError as error:
            self.refused = error

    @property
    def outcome(self) -> str:
        """How the run ended: ``complete``, ``cancelled``, or the failure's code."""
        assert self.events, f"{self.run_id}: {self.refused!r}"
        assert self.events[-1].is_terminal, f"{self.run_id} has not ended: {self.refused!r}"
        return outcome_of(self.events[-1])

    async def has(self, count: int) -> None:
        """Wait until that many events came."""
        await until(lambda: len(self.events) >= count or self.task.done())
        assert len(self.events) >= count, f"{self.run_id}: {len(self.events)} events, {self.refused!r}"

    def directory(self, directories: Sequence[Path]) -> Path:
        return directory_of(directories, self.run_id)


class Frozen:
    """Agents that stand still, so that what is done meanwhile finds them in mid-answer however slow the machine is.

    In the block they are frozen one by one; at its end all of them go on.
    """

    def __init__(self) -> None:
        self._pids: list[int] = []

    def __enter__(self) -> Frozen:
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on()

    async def freeze(self, directory: Path) -> int:
        """Stop the agent of the run in *directory*; its pid. It has begun, and must not have ended."""
        await until(lambda: read_owner(directory) is not None)
        owner = read_owner(directory)
        assert owner is not None
        os.kill(owner.pid, signal.SIGSTOP)
        self._pids.append(owner.pid)
        return owner.pid

    def go_on(self) -> None:
        """Let them all go on; repeating does nothing."""
        pids, self._pids = self._pids, []
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass


async def until(is_so: Callable[[], object], within_s: float = WITHIN_S) -> None:
    """Return when *is_so* holds."""
    async with asyncio.timeout(within_s):
        while not is_so():
            await asyncio.sleep(0.01)


async def ended(followers: Sequence[Follower], within_s: float = WITHIN_S) -> None:
    """Return when every follower has its terminal."""
    async with asyncio.timeout(within_s):
        await asyncio.gather(*(follower.task for follower in followers))


def can_mount() -> bool:
    """Whether this user may mount a small file system here."""
    try:
        probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
        return subprocess.run(probe, capture_output=True, check=False, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@contextmanager
def small_disk(at: Path, megabytes: int) -> Iterator[Path]:
    """A file system of that size at *at*, made and removed again."""
    at.mkdir(parents=True, exist_ok=True)
    options = f"size={megabytes}m,mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(at)], check=True, timeout=30)
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True, timeout=30)


def fill(directory: Path, *, leaving: int = 0) -> Path:
    """Take all the free space of *directory*'s file system but *leaving* bytes; the file that holds it."""
    path, block = directory / "filler", b"\0" * 65536
    with open(path, "ab", buffering=0) as file:
        try:
            while True:
                file.write(block)
                if len(block) == 65536 and leaving and _free(directory) <= leaving:
                    break
        except OSError:
            pass
    return path


def _free(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize
