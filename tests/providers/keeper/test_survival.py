"""Who may die without whom: node, keeper and warden, each killed while a run lives."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from providers.keeper.client import ExitRecord, Keeper, end_orphans, lock_is_held, open_keeper, read_exit
from providers.keeper.home import CODE_FILES
from providers.keeper.keeper import SPARES
from providers.keeper.protocol import PROTOCOL, FrameReader, Kind, encode
from providers.keeper.warden_link import connect_within
from tests.support.nodes import kill, wait_until
from tests.support.wardens import (
    ChildrenOf,
    CommandOf,
    IsRunning,
    Marked,
    Printed,
    Request,
    Spawn,
    Stop,
    Until,
    WardenOf,
)

PROJECT = Path(__file__).parents[3]
TERM: Stop = {"steps": ["term"], "grace_s": 5.0, "reason": "test"}


async def test_a_killed_keeper_disturbs_no_run_and_the_next_spawn_has_a_new_one(
    keeper: Keeper, spawn: Spawn, until: Until, is_running: IsRunning, printed: Printed
) -> None:
    link = await spawn("needs_time.py", "0")
    await printed(link, b"ready")
    killed = keeper.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    await until(lambda: not is_running(killed))

    second = await spawn("/bin/true")

    assert await second.wait_gone(10)
    assert keeper.pid not in (None, killed)
    link.stop(**TERM)
    assert await link.wait_gone(10)
    assert read_exit(link.directory) == ExitRecord(code=0, signal=None, stopped="test", killed=False, stderr_bytes=0)


async def test_a_keeper_killed_under_many_spawns_loses_none(keeper: Keeper, spawn: Spawn) -> None:
    spawns = [asyncio.ensure_future(spawn("/bin/true")) for _ in range(20)]
    await asyncio.wait(spawns, return_when=asyncio.FIRST_COMPLETED)
    assert keeper.pid is not None
    os.kill(keeper.pid, signal.SIGKILL)

    links = await asyncio.gather(*spawns)

    assert all([await link.wait_gone(10) for link in links])
    assert {link.exit.code if link.exit else None for link in links} == {0}


@pytest.mark.req("RT-21")
async def test_what_a_killed_warden_leaves_is_found_and_ended(
    spawn: Spawn, printed: Printed, warden_of: WardenOf, until: Until, marked: Marked
) -> None:
    link = await spawn("ignores_signals.py")
    await printed(link, b"worker ready")
    await printed(link, b"parent ready")
    os.kill(warden_of(link), signal.SIGKILL)
    await until(lambda: link.lost)
    assert (link.exit, link.gone, lock_is_held(link.directory)) == (None, False, False)
    assert len(marked(link.directory.name)) == 2

    ended = await asyncio.to_thread(end_orphans, link.directory.name)

    assert (ended.ended, ended.left) == (2, 0)
    assert marked(link.directory.name) == []


async def test_a_warden_killed_while_it_ends_survivors_is_lost_although_the_exit_is_known(
    spawn: Spawn, until: Until, is_running: IsRunning
) -> None:
    link = await spawn("daemonises.py", "stubborn")
    await asyncio.to_thread(wait_until, lambda: read_exit(link.directory) is not None)
    daemon = int((link.directory / "stdout").read_bytes().split()[-1])
    os.kill(_parent(daemon), signal.SIGKILL)

    await until(lambda: link.lost or link.gone)

    assert (link.lost, link.gone) == (True, False)
    assert link.exit is not None and link.exit.code == 0
    assert (await asyncio.to_thread(end_orphans, link.directory.name)).ended == 1
    assert not is_running(daemon)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_orphans_of_another_marker_are_spared(spawn: Spawn) -> None:
    link = await spawn("/bin/sleep", "300", name="run-10")

    ended = await asyncio.to_thread(end_orphans, "run-1")

    assert (ended.ended, ended.left) == (0, 0)
    assert lock_is_held(link.directory)
    link.stop(**TERM)
    assert await link.wait_gone(10)


async def test_a_warden_that_is_asked_to_leave_stays_with_its_child(
    spawn: Spawn, printed: Printed, warden_of: WardenOf
) -> None:
    link = await spawn("needs_time.py", "0")
    await printed(link, b"ready")

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(warden_of(link), number)
    link.stop(**TERM)

    assert await link.wait_gone(10)
    assert link.exit == ExitRecord(code=0, signal=None, stopped="test", killed=False, stderr_bytes=0)


async def test_killed_spares_cost_no_run(keeper: Keeper, spawn: Spawn, until: Until, children_of: ChildrenOf) -> None:
    assert await (await spawn("/bin/true")).wait_gone(10)
    parent = keeper.pid
    assert parent is not None
    await until(lambda: len(children_of(parent)) == SPARES)
    for pid in children_of(parent):  # or the warden of the first run, which is leaving
        kill(pid)

    link = await spawn("/bin/true")

    assert await link.wait_gone(10)
    assert link.exit is not None and link.exit.code == 0


async def test_spares_end_with_their_keeper(
    keeper: Keeper, until: Until, children_of: ChildrenOf, is_running: IsRunning
) -> None:
    pid = keeper.pid
    assert pid is not None
    await until(lambda: len(children_of(pid)) == SPARES)
    spares = children_of(pid)

    os.kill(pid, signal.SIGKILL)

    await until(lambda: not any(map(is_running, spares)))


async def test_an_order_larger_than_a_socket_buffer_arrives_whole(spawn: Spawn) -> None:
    env = {f"K{index}": "x" * 100_000 for index in range(12)}

    link = await spawn("/usr/bin/env", env=env)

    assert await link.wait_gone(10)
    assert len((link.directory / "stdout").read_bytes()) > 1_200_000


async def test_a_terminated_keeper_leaves_its_wardens_to_themselves(
    keeper: Keeper, spawn: Spawn, until: Until, is_running: IsRunning
) -> None:
    link = await spawn("/bin/sleep", "300")
    pid = keeper.pid
    assert pid is not None

    os.kill(pid, signal.SIGTERM)

    await until(lambda: not is_running(pid))
    assert lock_is_held(link.directory)
    link.stop(**TERM)
    assert await link.wait_gone(10)


@pytest.mark.req("RT-33")
async def test_a_run_goes_on_without_its_node_and_the_next_one_adopts_it(
    data_dir: Path, program: CommandOf, until: Until, is_running: IsRunning
) -> None:
    node = _start_node(data_dir, "run-1", *program("needs_time.py"), "0.01")
    assert node.stdout is not None
    told = json.loads(await asyncio.to_thread(node.stdout.readline))
    node.kill()
    node.communicate()

    async with open_keeper(data_dir, generation=2) as keeper:
        assert keeper.pid == told["keeper"]
        link = await keeper.adopt(data_dir / "run-1")
        assert link is not None and link.owner is not None
        await until(lambda: b"ready" in (data_dir / "run-1" / "stdout").read_bytes())
        link.stop(**TERM)
        assert await link.wait_gone(10)
        assert link.exit == ExitRecord(code=0, signal=None, stopped="test", killed=False, stderr_bytes=0)
        assert await keeper.adopt(data_dir / "run-1") is None


def _start_node(data_dir: Path, name: str, *argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "programs" / "node.py"), str(data_dir), name, "1", *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )


async def test_a_closed_link_ends_no_run(keeper: Keeper, spawn: Spawn) -> None:
    link = await spawn("/bin/sleep", "300")
    await link.close()

    again = await keeper.adopt(link.directory)

    assert again is not None and again.owner == link.owner
    again.stop(**TERM)
    assert await again.wait_gone(10)
    assert (link.exit, link.gone) == (None, False)


async def test_a_newer_node_takes_the_run_and_an_older_one_cannot_take_it_back(
    data_dir: Path, keeper: Keeper, spawn: Spawn, until: Until
) -> None:
    old = await spawn("/bin/sleep", "300")

    async with open_keeper(data_dir, generation=2) as newer:
        new = await newer.adopt(old.directory)
        assert new is not None
        await until(lambda: old.fenced)
        old.stop(**TERM)
        with pytest.raises(Exception, match="newer node"):
            await keeper.adopt(old.directory)
        assert lock_is_held(old.directory)
        new.stop(**TERM)
        assert await new.wait_gone(10)
    assert not old.gone


async def test_a_broken_link_is_made_anew(spawn: Spawn, until: Until) -> None:
    link = await spawn("/bin/sleep", "300")
    assert link._sock is not None
    link._sock.shutdown(socket.SHUT_WR)  # the warden hears an end and closes; the node hears that
    await until(lambda: link._sock is not None and _is_connected(link._sock))

    link.stop(**TERM)

    assert await link.wait_gone(10)
    assert not link.lost


def _is_connected(sock: socket.socket) -> bool:
    try:
        return sock.send(b"", socket.MSG_NOSIGNAL) == 0
    except OSError:
        return False


@dataclass
class KeptByHand:
    """Starts keepers of one home when it is called."""

    home: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __call__(self, mode: str = "stay", linger_s: str = "60") -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-I", "-S", str(self.home / "keeper.py"), mode, linger_s]
        self.started.append(subprocess.Popen(argv))
        return self.started[-1]


@pytest.fixture
def kept_by_hand(data_dir: Path) -> Iterator[KeptByHand]:
    """A keeper in the foreground, started from a copy of exactly its files, with one second of patience."""
    home = data_dir / "keeper-by-hand"
    home.mkdir()
    for name in CODE_FILES:
        shutil.copy(PROJECT / "providers" / "keeper" / name, home)
    start = KeptByHand(home)
    yield start
    for process in start.started:
        process.kill()
        process.wait()


def listens(home: Path) -> bool:
    """Whether somebody can connect: the socket's name is there a moment before."""
    sock = connect_within(home, "sock")
    if sock is not None:
        sock.close()
    return sock is not None


def hello(home: Path) -> socket.socket:
    sock = connect_within(home, "sock")
    assert sock is not None
    sock.setblocking(True)
    sock.settimeout(30)
    sock.sendall(encode({"kind": Kind.HELLO, "protocol": PROTOCOL, "generation": 1}))
    return sock


def answer(sock: socket.socket) -> dict[str, object]:
    reader = FrameReader()
    while True:
        for frame in reader.feed(sock.recv(4096)):
            return frame


async def test_a_second_keeper_of_one_home_leaves_at_once(kept_by_hand: KeptByHand, until: Until) -> None:
    first = kept_by_hand()
    await until(lambda: listens(kept_by_hand.home))

    second = kept_by_hand()

    assert await asyncio.to_thread(second.wait, 30) == 0
    with hello(kept_by_hand.home) as sock:
        assert answer(sock)["pid"] == first.pid


async def test_a_keeper_survives_a_reset_and_nonsense(kept_by_hand: KeptByHand, until: Until) -> None:
    first = kept_by_hand()
    await until(lambda: listens(kept_by_hand.home))
    hello(kept_by_hand.home).close()  # its answer is unread: the keeper gets ECONNRESET
    with hello(kept_by_hand.home) as sock:
        answer(sock)
        sock.sendall(struct.pack(">I", 1 << 31) + b"nonsense")
        assert sock.recv(1) == b""
    with hello(kept_by_hand.home) as sock:
        answer(sock)
        sock.sendall(encode({"kind": Kind.SPAWN}))
        assert sock.recv(1) == b""
    with hello(kept_by_hand.home) as sock, open(os.devnull) as null:
        answer(sock)
        socket.send_fds(sock, [encode({"kind": Kind.SPAWN, "argv": None})], [null.fileno()] * 3)
        assert sock.recv(1) == b""

    with hello(kept_by_hand.home) as sock:
        assert answer(sock)["pid"] == first.pid
    assert first.poll() is None


async def test_a_keeper_nobody_needs_leaves(kept_by_hand: KeptByHand, data_dir: Path) -> None:
    kept_by_hand("detach", "1.5").wait(30)

    with hello(kept_by_hand.home) as sock:
        pid = answer(sock)["pid"]
        assert isinstance(pid, int)
        pidfd = os.pidfd_open(pid)
    await asyncio.to_thread(_wait_for, pidfd)

    assert not (kept_by_hand.home / "sock").exists()


async def test_a_keeper_leaves_after_bye_once_its_last_warden_has(
    data_dir: Path, request_for: Request, is_running: IsRunning
) -> None:
    async with open_keeper(data_dir, generation=1) as keeper:
        pid = keeper.pid
        assert pid is not None
        link = await keeper.spawn(request_for("/bin/sleep", "300"))
    assert is_running(pid)
    pidfd = os.pidfd_open(pid)

    async with open_keeper(data_dir, generation=2) as keeper:
        assert keeper.pid == pid
        again = await keeper.adopt(link.directory)
        assert again is not None
        again.stop(**TERM)
        assert await again.wait_gone(10)
        assert is_running(pid)

    await asyncio.to_thread(_wait_for, pidfd)


async def test_a_keeper_of_another_build_is_retired(data_dir: Path, kept_by_hand: KeptByHand, until: Until) -> None:
    other = kept_by_hand()
    await until(lambda: listens(kept_by_hand.home))

    async with open_keeper(data_dir, generation=1) as keeper:
        assert keeper.pid != other.pid
        assert await asyncio.to_thread(other.wait, 30) == 0


def _wait_for(pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(30_000), "it still runs"
    os.close(pidfd)
