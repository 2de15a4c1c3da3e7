"""What the driver asks of a program under test; one adapter each, in a module of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

AGENT = Path(__file__).with_name("agent.py")
START_S = 20.0


@dataclass(slots=True)
class Said:
    """One thing that a reader was told: the words in it, the cursor to come back with, and whether it is the end."""

    words: list[int]
    cursor: int = 0
    is_end: bool = False
    how: str = ""


Stream = AsyncGenerator[Said, None]


class Refused(Exception):
    """The program answered that it cannot, or will not."""


class Peer(ABC):
    """A program under test in a directory of its own. ``notes`` are what it does not claim to do."""

    name = ""
    version = ""
    scale = 1.0
    """The share of the words that this one is asked for where it would need minutes for all of them."""
    notes: tuple[str, ...] = ()

    def __init__(self, root: Path, cache: Path) -> None:
        self.root, self.cache = root, cache
        self.begun_path = root / "begun"
        self.process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    async def start(self) -> None:
        """Start it, or start it again over what it left; return when it takes calls."""

    @abstractmethod
    def dispatch(self, run_id: str, prompt: str) -> Stream:
        """Start the work and follow it."""

    @abstractmethod
    def attach(self, run_id: str, after: int) -> Stream:
        """Follow work beyond a cursor."""

    async def close(self) -> None:  # noqa: B027  # not every peer holds a connection
        """Let go of connections."""

    # -- the process

    def launch(self, command: list[str], env: dict[str, str]) -> None:
        with open(self.root / "log", "ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.root, start_new_session=True,
                env={"PATH": os.environ["PATH"], "HOME": str(self.root), "LANG": "C.UTF-8", **env},
            )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL to the program itself, as the kernel does when memory is short; its children are its own business."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def begun(self) -> list[int]:
        """The process ids of the agents, one for each prompt that was executed."""
        return [int(line) for line in self.begun_path.read_text().split()] if self.begun_path.exists() else []

    def living_agents(self) -> int:
        return sum(_is_alive(pid) for pid in set(self.begun()))

    def end_everything(self) -> None:
        """Of this test: the program, then agents that outlived it."""
        self.kill()
        for pid in set(self.begun()):
            if _is_alive(pid) and str(AGENT).encode() in _command(pid):
                os.kill(pid, signal.SIGKILL)
        ends_at = time.monotonic() + 5
        while self.living_agents() and time.monotonic() < ends_at:
            time.sleep(0.02)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _is_alive(pid: int) -> bool:
    return str(AGENT).encode() in _command(pid)
