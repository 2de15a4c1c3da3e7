"""Real keepers, wardens and children below a temporary data directory; everything started here is ended here."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import pytest

from providers.keeper.client import Keeper, SpawnRequest, WardenLink, clear_append_only, end_orphans, open_keeper
from providers.keeper.process_tree import all_processes, read_process
from tests.support.nodes import end_keepers
from tests.support.wardens import (
    Changes,
    ChildrenOf,
    Command,
    CommandOf,
    IsRunning,
    Marked,
    Printed,
    Request,
    Spawn,
    Until,
    WardenOf,
)

PROGRAMS = Path(__file__).parent / "programs"
WAIT_S = 60.0


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """A data directory whose path is longer than the name of a socket may be; its runs and keepers end with the test."""
    directory = tmp_path / ("d" * 120)
    directory.mkdir(mode=0o700)
    yield directory
    end_everything_below(directory)


def end_everything_below(directory: Path) -> None:
    end_keepers(directory)
    for run in directory.iterdir():
        if (run / "stdout").exists():
            assert end_orphans(run.name).left == 0
            clear_append_only(run / "stdout")


@pytest.fixture
async def keeper(data_dir: Path) -> AsyncIterator[Keeper]:
    async with open_keeper(data_dir, generation=1) as opened:
        yield opened


@pytest.fixture
def request_for(data_dir: Path) -> Iterator[Request]:
    """Makes the request for a new run directory, its stdin and stdout opened as a node opens them."""
    descriptors: list[int] = []

    def make(*argv: str, name: str = "", env: dict[str, str] | None = None, **changes: Unpack[Changes]) -> SpawnRequest:
        directory = data_dir / (name or f"run-{os.getpid()}-{time.monotonic_ns()}")
        directory.mkdir(mode=0o700, exist_ok=True)
        (directory / "stdin").touch()
        stdout = directory / "stdout"
        descriptors.append(os.open(directory / "stdin", os.O_RDONLY))
        flags = os.O_APPEND | os.O_CREAT if not stdout.exists() else os.O_APPEND
        descriptors.append(os.open(stdout, os.O_WRONLY | flags, 0o400))
        request = SpawnRequest(
            directory=directory,
            argv=argv,
            cwd=str(data_dir),
            env=env or {"PATH": os.environ["PATH"]},
            marker=directory.name,
            stdin_fd=descriptors[-2],
            stdout_fd=descriptors[-1],
        )
        return replace(request, **changes)

    yield make
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.fixture
def spawn(keeper: Keeper, request_for: Request) -> Spawn:
    """Spawns a program: ``await spawn("/bin/true")``, or a Python one of ``programs/`` by its name."""

    async def run(
        program: str,
        *arguments: str,
        name: str = "",
        env: dict[str, str] | None = None,
        **changes: Unpack[Changes],
    ) -> WardenLink:
        return await keeper.spawn(request_for(*command(program), *arguments, name=name, env=env, **changes))

    return run


def command(program: str) -> Command:
    if program.endswith(".py"):
        return (sys.executable, "-I", "-S", str(PROGRAMS / program))
    return ("/bin/bash", str(PROGRAMS / program)) if program.endswith(".sh") else (program,)


@pytest.fixture
def program() -> CommandOf:
    """The command line of one of ``programs/``."""
    return command


@pytest.fixture
def until() -> Until:
    """Waits for a condition, and fails when it does not come."""

    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.005)

    return wait


@pytest.fixture
def printed(until: Until) -> Printed:
    """Waits until a run has printed something, and gives all it has printed."""

    async def wait(link: WardenLink, text: bytes) -> bytes:
        await until(lambda: text in (link.directory / "stdout").read_bytes())
        return (link.directory / "stdout").read_bytes()

    return wait


@pytest.fixture
def is_running() -> IsRunning:
    def check(pid: int) -> bool:
        process = read_process(pid)
        return process is not None and process.is_alive

    return check


@pytest.fixture
def children_of() -> ChildrenOf:
    """The living children of a process: of a keeper, its wardens and spares."""

    def find(parent: int) -> list[int]:
        return [pid for pid, process in all_processes().items() if process.parent == parent and process.is_alive]

    return find


@pytest.fixture
def warden_of() -> WardenOf:
    """The pid of the warden behind a link: the parent of its child."""

    def find(link: WardenLink) -> int:
        assert link.owner is not None
        child = read_process(link.owner.pid)
        assert child is not None
        return child.parent

    return find


@pytest.fixture
def marked() -> Marked:
    """The living processes that carry a marker."""

    def find(marker: str) -> list[int]:
        entry = f"IOP_RUN={marker}".encode()
        return [pid for pid in all_processes() if entry in _environment(pid).split(b"\0")]

    return find


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
