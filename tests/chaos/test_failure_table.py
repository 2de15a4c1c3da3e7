"""What happens when a part dies: one test, or several, for each row of the failure table in ``docs/spec/keeper.md``.

The rows that need a unit of another user, a service manager or warm processes (F9, F14, F21, F22) come with those. Where a
machine cannot show a row the test is skipped with the reason; ``docs/failure-table.md`` lists them all.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from node.client import NodeClient
from providers.keeper.client import (
    KeeperUnavailable,
    clear_append_only,
    lock_is_held,
    open_keeper,
    read_exit,
    read_owner,
)
from providers.keeper.process_tree import all_processes, read_process
from runtime import storage
from runtime.types import SessionMode
from tests.support.books import assert_whole, stored_events
from tests.support.following import WITHIN_S, Follower, Frozen, can_mount, ended, fill, small_disk, until
from tests.support.nodes import DEMO, START_S, Agent, Node, files_holding, fork_bomb, shell

PROJECT = Path(__file__).parents[2]
CRASHING = (sys.executable, str(PROJECT / "tests/support/crashing_node.py"))
IS_ROOT = os.geteuid() == 0

SECRETIVE = 'cat > /dev/null; until [ -e "$HOME/go" ]; do sleep 0.05; done; echo "$MY_TOKEN" >&2; exit 3'
AGENTS = {
    "demo-agent": Agent(command=DEMO, args=["--model", "{{model}}"], resume_args=["--resume", "{{session}}"]),
    "shell": shell(),
    "shell-json": Agent(command=("/bin/sh", "-s")),
    "counted": Agent(command=("/bin/sh", "-c", 'echo begun >> "$HOME/begun"; exec iop-demo-agent "$@"', "sh")),
    "secretive": Agent(command=("/bin/sh", "-c", SECRETIVE), dialect="plain_text"),
}  # fmt: skip
STREAMING = "[[demo words=60 delay_ms=20]]"  # a good second of answer
LONG = "[[demo words=400 delay_ms=50]]"
IN_SESSION: dict[str, Any] = {"session_id": "s", "session_mode": SessionMode.CREATE_IF_MISSING}

needs_mount = pytest.mark.skipif(not (IS_ROOT and can_mount()), reason="only root may mount a small file system here")
needs_unshare = pytest.mark.skipif(not (IS_ROOT and can_mount()), reason="only root may make a pid namespace here")

NewNode = Callable[..., Node]


@pytest.fixture
def new_node(tmp_path: Path) -> Iterator[NewNode]:
    """Makes nodes, not started, all of one directory; everything of them is ended with the test."""
    made: list[Node] = []

    def make(name: str = "", **options: Any) -> Node:
        options.setdefault("agents", AGENTS)
        options["times"] = {"foreground_grace_s": 30, "cancel_grace_s": 1.0} | options.get("times", {})
        made.append(Node(tmp_path / name if name else tmp_path, **options))
        return made[-1]

    yield make
    for node in made:
        node.close()


@asynccontextmanager
async def client_of(node: Node) -> AsyncIterator[NodeClient]:
    async with NodeClient(node.address) as client:
        yield client


async def started(node: Node) -> Node:
    return await asyncio.to_thread(node.start)


async def many(client: NodeClient, count: int, prompt: str = STREAMING, **fields: Any) -> list[Follower]:
    """That many runs, each of which streams already."""
    followers = [Follower(client, f"run-{n:02d}", prompt, **fields) for n in range(count)]
    for follower in followers:
        await follower.has(3)
    return followers


def parent_of(pid: int) -> int:
    process = read_process(pid)
    assert process is not None
    return process.parent


def warden_of(directory: Path) -> int:
    owner = read_owner(directory)
    assert owner is not None
    return parent_of(owner.pid)


def is_alive(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.is_alive


# --- F1, F2: keeper and warden


@pytest.mark.req("BAN-18", "E-19")
async def test_f01_a_killed_keeper_is_replaced_and_its_runs_do_not_notice(new_node: NewNode) -> None:
    node = await started(new_node())
    async with client_of(node) as client:
        followers = await many(client, 5)
        keeper = (await client.status()).keeper_pid

        os.kill(keeper, signal.SIGKILL)
        again = Follower(client, "after", "[[demo words=3]]")
        await ended([*followers, again])

        assert (await client.status()).keeper_pid not in (0, keeper)
        for follower in (*followers, again):
            assert_whole(follower.run_id, follower.directory(node.run_directories()), received=follower.events)
    await asyncio.to_thread(node.assert_no_agents)


def may_lower_oom_score() -> bool:
    """It needs CAP_SYS_RESOURCE, which containers take even from root."""
    lower = ["/bin/sh", "-c", "echo -500 > /proc/self/oom_score_adj"]
    return subprocess.run(lower, capture_output=True, check=False).returncode == 0


async def test_f01_the_kernel_prefers_agents_when_memory_is_short(new_node: NewNode) -> None:
    node = await started(new_node())
    async with client_of(node) as client:
        [follower] = await many(client, 1, LONG)
        directory = follower.directory(node.run_directories())
        owner = read_owner(directory)
        assert owner is not None
        pids = {"keeper": (await client.status()).keeper_pid, "warden": warden_of(directory), "agent": owner.pid}
        scores = {name: int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for name, pid in pids.items()}
        await client.cancel(follower.run_id)
        await ended([follower])

    ours = -500 if may_lower_oom_score() else int(Path("/proc/self/oom_score_adj").read_text())
    assert scores == {"keeper": ours, "warden": ours, "agent": 500}


@pytest.mark.req("BAN-18", "E-6")
async def test_f02_a_killed_warden_is_judged_by_the_terminal_frame_else_interrupted(new_node: NewNode) -> None:
    """Two wardens are killed: of a run in mid-answer, and of one whose agent lingers after its result."""
    node = await started(new_node(times={"exit_grace_s": 20}))
    async with client_of(node) as client:
        middle, lingering = Follower(client, "middle", LONG), Follower(client, "lingering", "[[demo:linger words=5]]")
        await middle.has(5)
        await lingering.has(5)
        directories = [follower.directory(node.run_directories()) for follower in (middle, lingering)]
        await until(lambda: b'"type":"result"' in (directories[1] / "stdout").read_bytes())

        for directory in directories:
            os.kill(warden_of(directory), signal.SIGKILL)
        await ended([middle, lingering])

        assert (middle.outcome, lingering.outcome) == ("interrupted", "complete")
        assert_whole("middle", directories[0], "interrupted", received=middle.events)
        assert_whole("lingering", directories[1], received=lingering.events)
        assert [read_exit(directory) for directory in directories] == [None, None]
    await asyncio.to_thread(node.assert_no_agents)


# --- F3, F4: two versions, two nodes


@pytest.mark.req("BAN-18", "E-19")
async def test_f03_runs_of_an_earlier_keeper_are_finished_and_it_leaves_when_idle(new_node: NewNode) -> None:
    old = await started(new_node(prefix=[*CRASHING, "with_frozen_keeper"]))
    home = old.data_dir / "keeper-frozen-protocol-1"
    async with client_of(old) as client:
        followers = await many(client, 5, "[[demo words=150 delay_ms=20]]")
        directories = [follower.directory(old.run_directories()) for follower in followers]
        with Frozen() as agents:
            for directory in directories:
                await agents.freeze(directory)
            frozen = (await client.status()).keeper_pid
            assert str(home) in Path(f"/proc/{frozen}/cmdline").read_text()
            await asyncio.to_thread(old.kill)

            new = await started(new_node(listen=old.address))
            await client.ready(60)
            status = await client.status()
            assert status.keeper_pid != frozen
            assert {str(home) in Path(f"/proc/{warden_of(path)}/cmdline").read_text() for path in directories} == {True}

            later = Follower(client, "later", "[[demo words=100 delay_ms=20]]")
            await later.has(3)
            await agents.freeze(directory := later.directory(new.run_directories()))
            assert parent_of(warden_of(directory)) == status.keeper_pid, "the retired keeper took a run"
        cancelled = await client.cancel(followers[0].run_id)
        await ended([*followers, later])

    assert (cancelled.accepted, followers[0].outcome) == (True, "cancelled")
    for follower, directory in zip(followers[1:], directories[1:], strict=True):
        assert_whole(follower.run_id, directory, received=follower.events)
    assert_whole(later.run_id, later.directory(new.run_directories()), received=later.events)
    await until(lambda: not is_alive(frozen))
    assert not (home / "sock").exists()


@pytest.mark.req("PKG-01")
async def test_f04_a_second_node_of_one_data_directory_is_refused(new_node: NewNode) -> None:
    first = await started(new_node())
    async with client_of(first) as client:
        [follower] = await many(client, 1)

        second = first.launch()
        code = await asyncio.to_thread(second.wait, START_S)
        await ended([follower])

    assert second.stdout is not None
    assert (code, second.stdout.read()) == (1, b"")
    second.stdout.close()
    assert f"data directory {first.data_dir} is in use by another node" in first.logged()
    assert_whole(follower.run_id, follower.directory(first.run_directories()), received=follower.events)


def test_f04_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel says of the mounts is handed in: a test mounts no network file system."""
    device = os.stat(tmp_path).st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "21 1 0:1 / /proc rw,relatime - proc proc rw\n"
        f"36 21 {os.major(device)}:{os.minor(device)} / /data rw shared:7 - nfs4 server:/export rw,vers=4.2\n"
    )
    kind = storage.filesystem_of(tmp_path, mounts)
    here = storage.filesystem_of(tmp_path)
    monkeypatch.setattr(storage, "filesystem_of", lambda _: kind)

    assert kind == "nfs4"
    assert here not in ("", *storage.NETWORK_FILESYSTEMS)
    with (
        pytest.raises(storage.DataDirectoryOnNetwork, match="lies on nfs4; use a disk of this machine"),
        storage.open_storage(tmp_path / "data"),
    ):
        pass


async def test_f04_a_warden_obeys_the_newest_node_only(new_node: NewNode) -> None:
    node = await started(new_node())
    async with client_of(node) as client:
        [follower] = await many(client, 1)
        directory = follower.directory(node.run_directories())
        generation = int((node.data_dir / "lock").read_text())

        with Frozen() as agents:
            await agents.freeze(directory)
            async with open_keeper(node.data_dir, generation=generation - 1) as older:
                with pytest.raises(KeeperUnavailable, match="a newer node serves the run"):
                    await older.adopt(directory)
        await ended([follower])

    assert_whole(follower.run_id, directory, received=follower.events)


# --- F5: who enforces what when no node lives


@pytest.mark.req("RT-24", "E-15", "E-19")
async def test_f05_the_warden_keeps_the_deadline_of_a_dead_nodes_run(new_node: NewNode) -> None:
    from datetime import timedelta

    node = await started(new_node())
    async with client_of(node) as client:
        [follower] = await many(client, 1, LONG, timeout=timedelta(seconds=2))
        directory = follower.directory(node.run_directories())
        await asyncio.to_thread(node.kill)

        await until(lambda: read_exit(directory) is not None)
        await until(lambda: not node.agent_processes())
        await started(new_node(listen=node.address))
        await ended([follower])

    assert follower.outcome == "deadline_exceeded"
    assert_whole(follower.run_id, directory, "deadline_exceeded", received=follower.events)


@pytest.mark.req("RT-20", "E-5", "E-19", "BAN-18")
async def test_f05_an_accepted_cancel_outlives_the_node(new_node: NewNode) -> None:
    """The node dies between writing the cancel and the first signal."""
    node = await started(new_node(prefix=[*CRASHING, "between_cancel_and_signal"]))
    async with client_of(node) as client:
        [follower] = await many(client, 1, LONG)
        directory = follower.directory(node.run_directories())
        with pytest.raises(Exception):
            await client.cancel(follower.run_id, reason="asked before the crash")
        assert (node.root / "crashed").exists()
        assert (directory / "cancel").exists()
        assert node.agent_processes()

        node.kill()
        await started(new_node(listen=node.address))
        await client.ready(60)
        await ended([follower])
        again = await client.cancel(follower.run_id)

    assert (follower.outcome, follower.events[-1].message) == ("cancelled", "asked before the crash")
    assert (again.accepted, again.state) == (False, "cancelled")
    assert_whole(follower.run_id, directory, "cancelled", received=follower.events)
    await asyncio.to_thread(node.assert_no_agents)


# --- F6, F7: too much output, no space


@pytest.mark.req("BAN-18")
async def test_f06_a_flood_is_stopped_at_the_output_limit(new_node: NewNode) -> None:
    node = await started(new_node(limits={"output_bytes": 4 << 20}))
    async with client_of(node) as client:
        flood, other = (
            Follower(client, "flood", "[[demo:flood lines=600000 bytes=1000]]"),
            Follower(client, "o", STREAMING),
        )
        await ended([flood, other])

    assert (flood.outcome, other.outcome) == ("output_limit", "complete")
    directory = flood.directory(node.run_directories())
    record = read_exit(directory)
    assert record is not None
    assert record.stopped == "output_limit"  # by the warden, or by the node whose journal is as bounded
    assert (directory / "stdout").stat().st_size < 600_000_000
    assert_whole("flood", directory, "output_limit", received=flood.events)


@needs_mount
@pytest.mark.req("BAN-18")
async def test_f06_the_watermark_ends_who_prints_and_refuses_new_runs(new_node: NewNode, tmp_path: Path) -> None:
    script = 'echo one; until [ -e "$HOME/go" ]; do sleep 0.05; done; echo two'
    with small_disk(tmp_path / "data", 64) as disk:
        node = await started(new_node(limits={"disk_watermark_bytes": 16 << 20}))
        try:
            async with client_of(node) as client:
                silent = Follower(client, "silent", script, target="shell")
                await silent.has(2)
                flood = Follower(client, "flood", "[[demo:flood lines=100000 bytes=1000]]")
                await ended([flood])
                refused = Follower(client, "refused", STREAMING)
                await ended([refused])
                assert refused.refused is not None
                assert (flood.outcome, refused.refused.code) == ("storage_full", "storage_full")
                directory = flood.directory(node.run_directories())
                assert_whole("flood", directory, "storage_full", received=flood.events)
                await asyncio.sleep(1.1)  # a warden looks at its silent run once a second

                await asyncio.to_thread(shutil.rmtree, directory)  # and it may say something when there is room again
                await until(lambda: shutil.disk_usage(disk).free > 32 << 20)
                (node.home / "go").touch()
                await ended([silent])

            assert silent.outcome == "complete"
        finally:
            await asyncio.to_thread(node.close)


@needs_mount
@pytest.mark.req("BAN-18", "E-6", "E-19")
async def test_f07_a_full_disk_costs_no_run_its_terminal(new_node: NewNode, tmp_path: Path) -> None:
    """Ten runs stream while the disk runs full to the last byte; a run without a whole terminal frame is not complete."""
    with small_disk(tmp_path / "data", 48) as disk:
        node = await started(new_node(limits={"disk_watermark_bytes": 1 << 20}))
        try:
            async with client_of(node) as client:
                followers = await many(client, 10)
                fill(disk)
                await ended(followers)
                outcomes = {follower.run_id: follower.outcome for follower in followers}
                states = {run.run_id: run.state async for run in client.list()}
            (disk / "filler").unlink()
            await asyncio.to_thread(node.assert_no_agents)
            for follower in followers:
                directory = follower.directory(node.run_directories())
                frame = b'"type":"result"' in (directory / "stdout").read_bytes().rpartition(b"\n")[0]
                assert frame or outcomes[follower.run_id] != "complete"
                assert [e.is_terminal for e in stored_events(directory)].count(True) == 1
                assert len([e for e in follower.events if e.is_terminal]) == 1
            assert set(outcomes.values()) <= {"storage_full", "complete", "process_failed", "output_invalid"}
            assert all(state in ("error", "complete") for state in states.values()), states

            assert await asyncio.to_thread(node.stop) == 0
            again = await started(new_node(listen=node.address, limits={"disk_watermark_bytes": 1 << 20}))
            async with client_of(again) as client:
                for follower in followers:
                    late = [event async for event in client.attach(follower.run_id)]
                    assert late[-1].type == follower.events[-1].type
                after = Follower(client, "after", "[[demo words=3]]")
                await ended([after])
                assert after.outcome == "complete"
            await asyncio.to_thread(again.close)
        finally:
            await asyncio.to_thread(node.close)


@needs_mount
@pytest.mark.req("BAN-18", "RT-35")
async def test_f07_a_run_whose_events_the_disk_does_not_take_leaves_no_process(
    new_node: NewNode, tmp_path: Path
) -> None:
    """The agents say a word and then nothing for long: they would not notice the full disk themselves."""
    script = 'echo one; while [ ! -e "$HOME/go" ]; do sleep 0.05; done; echo two; sleep 300'
    with small_disk(tmp_path / "data", 48) as disk:
        node = await started(new_node(limits={"disk_watermark_bytes": 1 << 20}))
        try:
            async with client_of(node) as client:
                followers = [Follower(client, f"n-{n}", script, target="shell") for n in range(5)]
                for follower in followers:
                    await follower.has(2)
                for directory in node.run_directories():  # so that each one's next record needs a page more
                    with open(directory / "events.jsonl", "ab") as journal:
                        journal.write(b"\n" * (4096 - journal.tell() % 4096))
                fill(disk)
                (node.home / "go").touch()
                await until(lambda: any(follower.task.done() for follower in followers))
                (disk / "filler").unlink()
                for follower in followers:
                    await client.cancel(follower.run_id)
                await ended(followers)

            assert {follower.outcome for follower in followers} <= {"storage_full", "cancelled"}
            assert "storage_full" in {follower.outcome for follower in followers}
            await asyncio.to_thread(node.assert_no_agents)
        finally:
            await asyncio.to_thread(node.close)


# --- F8: the crash windows

WINDOWS = [
    "before_the_row", "between_intent_and_spawn", "between_spawn_and_owner", "between_owner_and_first_byte",
    "between_journal_and_wire", "between_terminal_in_file_and_journal", "between_ticket_and_terminal",
    "between_terminal_in_journal_and_wire", "between_wire_and_index",
]  # fmt: skip


@pytest.mark.req("BAN-18", "E-19", "E-6", "NB-15")
@pytest.mark.parametrize("window", WINDOWS)
async def test_f08_a_node_killed_in_a_window_executes_its_run_once_and_ends_it_once(
    new_node: NewNode, window: str
) -> None:
    node = await started(new_node(prefix=[*CRASHING, window]))
    async with client_of(node) as client:
        follower = Follower(client, "crash", "[[demo words=20 delay_ms=5]]", target="counted", **IN_SESSION)
        await until(lambda: (node.root / "crashed").exists() or follower.refused)
        assert not follower.refused, f"{follower.refused!r}"
        node.kill()
        next_node = await started(new_node(listen=node.address))
        await ended([follower])

        after = Follower(client, "after", "[[demo words=3]]", target="counted", **IN_SESSION)
        await ended([after])
        details = await client.get("crash")
        async with asyncio.timeout(WITHIN_S):
            while (await client.status()).active_runs:
                await asyncio.sleep(0.02)

    directory = follower.directory(next_node.run_directories())
    assert_whole("crash", directory, received=follower.events)
    assert details.run.state == "complete"
    assert (next_node.home / "begun").read_text() == "begun\n" * 2, "a run was executed twice, or not at all"
    assert after.outcome == "complete"
    await asyncio.to_thread(next_node.assert_no_agents)


@pytest.mark.req("BAN-18", "E-19")
async def test_f08_a_warden_killed_before_its_owner_record_starts_nothing_and_another_one_does(
    new_node: NewNode,
) -> None:
    """Its child waits at a barrier and never becomes the agent, so the run may be started again."""
    node = await started(new_node(prefix=[*CRASHING, "warden_dies_before_owner"]))
    async with client_of(node) as client:
        follower = Follower(client, "barrier", "[[demo words=20 delay_ms=5]]", target="counted")
        await ended([follower])

    assert (node.root / "crashed").exists()
    assert_whole("barrier", follower.directory(node.run_directories()), received=follower.events)
    assert (node.home / "begun").read_text() == "begun\n"


@pytest.mark.req("E-15", "RT-24")
async def test_f08_what_was_never_begun_is_not_begun_after_its_deadline(new_node: NewNode) -> None:
    from datetime import timedelta

    node = await started(new_node(prefix=[*CRASHING, "between_intent_and_spawn"]))
    async with client_of(node) as client:
        follower = Follower(client, "late", "hello", target="counted", timeout=timedelta(seconds=2), background=True)
        await until((node.root / "crashed").exists)
        node.kill()
        await asyncio.sleep(2.1)  # the deadline itself is what passes
        await started(new_node(listen=node.address))
        await ended([follower])

    assert follower.outcome == "deadline_exceeded"
    assert not (node.home / "begun").exists()


# --- F10: what forks without end


@pytest.mark.skipif(fork_bomb() is None, reason="needs root, to become a user who runs nothing else")
async def test_f10_a_fork_bomb_of_a_normal_user_is_bounded_and_ended(new_node: NewNode) -> None:
    """RLIMIT_NPROC does not bind root: there only a pids cgroup helps, so that nothing is proved for root here."""
    bomb = fork_bomb()
    assert bomb is not None
    node = await started(new_node(agents={**AGENTS, "bomb": bomb}, limits={"max_processes": 60}))
    most = 0
    async with client_of(node) as client:
        follower = Follower(client, "bomb", "boom", target="bomb")
        async with asyncio.timeout(WITHIN_S):
            while most < 50:
                most = max(most, len(node.agent_processes()))
                await asyncio.sleep(0.02)
        other = Follower(client, "other", "[[demo words=5]]")
        await ended([other])
        receipt = await client.cancel("bomb")
        await ended([follower])

    assert (receipt.accepted, follower.outcome, other.outcome) == (True, "cancelled", "complete")
    assert most <= 60
    await asyncio.to_thread(node.assert_no_agents)


# --- F11, F15: containers


def in_pid_namespace(*command: str, log: Path, cwd: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """*command* as process 1 of a pid namespace of its own; killing it ends everything in there, as a container's end does."""
    unshare = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child"]
    with open(log, "ab") as out:
        return subprocess.Popen(
            [*unshare, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd, env=env
        )


@asynccontextmanager
async def container(node: Node, *command: str) -> AsyncIterator[tuple[subprocess.Popen[bytes], str]]:
    """``iop-node COMMAND`` of *node*'s directory in a pid namespace, and its address; it is serving."""
    address = f"unix:{node.root}/s"
    program = [str(Path(sys.executable).parent / "iop-node"), *command, "--config", str(node.root / "node.yaml")]
    arguments = ["--listen", address, "--data-dir", str(node.data_dir)]
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(node.home), "LANG": "C.UTF-8"}
    process = in_pid_namespace(*program, *arguments, log=node.log, cwd=node.root, env=env)
    try:
        async with NodeClient(address) as client:
            async with asyncio.timeout(START_S):
                while not await is_serving(client):
                    await asyncio.sleep(0.05)
        yield process, address
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)


async def is_serving(client: NodeClient) -> bool:
    try:
        return await client.is_serving()
    except Exception:
        return False


@needs_unshare
@pytest.mark.req("BAN-18")
async def test_f11_a_restarted_container_adopts_nothing_and_signals_nobody_else(
    new_node: NewNode, tmp_path: Path
) -> None:
    """The boot id stays the same and pids come again: the run's old pid belongs to a stranger now."""
    node = new_node()
    bystander = node.root / "bystander.sh"
    bystander.write_text('for i in $(seq 60); do sleep 600 & done\nexec "$@"\n')
    async with container(node, "serve", "--as-pid-1") as (_, address), NodeClient(address, reattach_s=0) as client:
        follower = Follower(client, "run", LONG, background=True)
        await follower.has(5)
        [directory] = node.run_directories()
        owner = read_owner(directory)
        assert owner is not None
        assert owner.pid_ns != os.stat("/proc/self/ns/pid").st_ino
    await until(lambda: not lock_is_held(directory))

    program = [str(Path(sys.executable).parent / "iop-node"), "serve", "--as-pid-1", "--config"]
    command = ["/bin/sh", str(bystander), *program, str(node.root / "node.yaml"), "--data-dir", str(node.data_dir)]
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(node.home), "LANG": "C.UTF-8"}
    process = in_pid_namespace(*command, "--listen", f"unix:{node.root}/t", log=node.log, cwd=node.root, env=env)
    try:
        async with NodeClient(f"unix:{node.root}/t") as client:
            events = [event async for event in client.attach("run")]
            strangers = [p for p in all_processes().values() if _is_bystander(p.pid, process.pid)]
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)

    assert events[-1].failure is not None
    assert events[-1].failure.code == "interrupted"
    assert len(strangers) == 60
    assert_whole("run", directory, "interrupted", received=events)


def _is_bystander(pid: int, unshare: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    process = read_process(pid)
    parent = read_process(process.parent) if process is not None else None
    return (
        command == b"sleep\x00600\x00"
        and process is not None
        and process.is_alive
        and parent is not None
        and (parent.parent == unshare)
    )


@needs_unshare
@pytest.mark.req("PKG-01")
async def test_f15_serve_as_process_1_refuses_with_a_sentence(new_node: NewNode) -> None:
    node = new_node()
    program = [str(Path(sys.executable).parent / "iop-node"), "serve", "--data-dir", str(node.data_dir)]
    process = in_pid_namespace(*program, log=node.log, cwd=node.root, env={"PATH": os.environ["PATH"]})

    assert await asyncio.to_thread(process.wait, START_S) == 2
    assert "as process 1 of a container use iop-node supervise" in node.logged()


@needs_unshare
@pytest.mark.req("BAN-18")
async def test_f15_supervise_as_process_1_restarts_the_node_and_reaps(new_node: NewNode) -> None:
    node = new_node()
    async with container(node, "supervise") as (process, address), NodeClient(address) as client:
        followers = await many(client, 3, "[[demo words=120 delay_ms=20]]")
        [supervisor] = [p.pid for p in all_processes().values() if p.parent == process.pid]
        serving = [p.pid for p in all_processes().values() if p.parent == supervisor and _serves(p.pid)]

        os.kill(serving[0], signal.SIGKILL)
        await ended(followers)
        await until(lambda: not [p for p in all_processes().values() if p.parent == supervisor and not p.is_alive])

        for follower in followers:
            assert_whole(follower.run_id, follower.directory(node.run_directories()), received=follower.events)
        os.kill(supervisor, signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, START_S) == 0


def _serves(pid: int) -> bool:
    try:
        return b"\0serve\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


# --- F12: processes that hide


@pytest.mark.req("RT-21", "E-5")
async def test_f12_a_child_whose_environment_hides_is_ended_by_its_warden(new_node: NewNode) -> None:
    """It is not dumpable, has cleared its environment, left its session and ignores TERM; parentage is the proof."""
    hides = (
        "import ctypes, os, signal, sys, time\n"
        "if os.fork(): time.sleep(600)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if sys.argv[1] == 'once': os.execve(sys.executable, [sys.executable, '-S', sys.argv[0], 'bare'], {})\n"
    )
    hidden = (
        "import ctypes, os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"
        "open(os.path.join(os.path.dirname(__file__), 'hidden.pid'), 'w').write(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    node = new_node()
    (node.root / "hidden.py").write_text(hidden)
    (node.root / "hides.py").write_text(hides.replace("sys.argv[0], 'bare'", f"{str(node.root / 'hidden.py')!r}"))
    await started(node)
    async with client_of(node) as client:
        prompt = f"exec {sys.executable} -S {node.root / 'hides.py'} once"
        follower = Follower(client, "hides", prompt, target="shell")
        await until((node.root / "hidden.pid").exists)
        await until(lambda: (node.root / "hidden.pid").read_text().isdigit())
        pid = int((node.root / "hidden.pid").read_text())
        assert is_alive(pid)
        assert pid not in node.agent_processes()

        await client.cancel("hides")
        await ended([follower])

    assert follower.outcome == "cancelled"
    await until(lambda: not is_alive(pid))


# --- F16, F17: the data directory


@pytest.mark.req("BAN-18", "E-19")
async def test_f16_a_moved_data_directory_gives_every_run_its_terminal(new_node: NewNode, tmp_path: Path) -> None:
    """Everything died and the volume comes up elsewhere: finished from files where the terminal frame is whole."""
    node = await started(new_node("before"))
    async with NodeClient(node.address, reattach_s=0) as client:
        whole, middle = Follower(client, "whole", "[[demo:linger words=5]]"), Follower(client, "middle", LONG)
        await middle.has(5)
        await whole.has(5)
        directory = whole.directory(node.run_directories())
        os.kill(node.pid, signal.SIGSTOP)
        await until(lambda: b'"type":"result"' in (directory / "stdout").read_bytes())
        await asyncio.to_thread(node.close)
        await ended([whole, middle])
    (tmp_path / "after").mkdir()
    shutil.move(node.data_dir, tmp_path / "after" / "data")

    moved = await started(new_node("after"))
    async with client_of(moved) as client:
        found = {name: [event async for event in client.attach(name)] for name in ("whole", "middle")}
        async with asyncio.timeout(WITHIN_S):
            while (await client.status()).active_runs:
                await asyncio.sleep(0.02)

    directories = moved.run_directories()
    for name, outcome in (("whole", "complete"), ("middle", "interrupted")):
        directory = next(path for path in directories if stored_events(path)[0].run_id == name)
        assert_whole(name, directory, outcome, received=found[name])
    assert not moved.agent_processes()


@pytest.mark.req("BAN-18")
async def test_f17_a_removed_run_directory_ends_that_run_only(new_node: NewNode) -> None:
    node = await started(new_node())
    async with client_of(node) as client:
        followers = await many(client, 3, "[[demo words=100 delay_ms=20]]")
        victim, others = followers[0], followers[1:]
        directory = victim.directory(node.run_directories())
        with Frozen() as agents:
            pid = await agents.freeze(directory)
            clear_append_only(directory / "stdout")
            shutil.rmtree(directory)
        await ended(followers)

        assert [e.is_terminal for e in victim.events].count(True) == 1
        for follower in others:
            assert_whole(follower.run_id, follower.directory(node.run_directories()), received=follower.events)
        await until(lambda: not is_alive(pid))
        assert (await client.get(victim.run_id)).run.has_ended
        async with asyncio.timeout(WITHIN_S):  # a run leaves when what survived its terminal is gone
            while (await client.status()).active_runs:
                await asyncio.sleep(0.02)


@pytest.mark.req("BAN-18", "E-19")
async def test_f17_a_run_whose_directory_went_while_no_node_lived_is_interrupted(new_node: NewNode) -> None:
    node = await started(new_node())
    async with client_of(node) as client:
        followers = await many(client, 3, "[[demo words=100 delay_ms=20]]")
        victim, others = followers[0], followers[1:]
        directory = victim.directory(node.run_directories())
        with Frozen() as agents:
            pid = await agents.freeze(directory)
            await asyncio.to_thread(node.kill)
            clear_append_only(directory / "stdout")
            shutil.rmtree(directory)

        next_node = await started(new_node(listen=node.address))
        await ended(followers)
        events = [event async for event in client.attach(victim.run_id)]

    assert events[-1].failure is not None
    assert events[-1].failure.code == "interrupted"
    assert min(e.sequence for e in events) > max(e.sequence for e in victim.events if not e.metadata.get("recovered"))
    for follower in others:
        assert_whole(follower.run_id, follower.directory(next_node.run_directories()), received=follower.events)
    await until(lambda: not is_alive(pid))


# --- F19, F20: what must not be believed, and what must not be written


@pytest.mark.req("BAN-18", "E-6")
async def test_f19_a_second_terminal_frame_changes_nothing_and_is_noted(new_node: NewNode) -> None:
    def frame(**members: object) -> str:
        return "echo '" + json.dumps({"type": "result", "subtype": "success", "is_error": False, **members}) + "'\n"

    script = frame(result="the answer") + frame(result="forged") + "echo trailing bytes\n"
    node = await started(new_node())
    async with client_of(node) as client:
        follower = Follower(client, "forged", script, target="shell-json")
        await ended([follower])
        details = (await client.get("forged")).details

    assert [e.message for e in follower.events if e.is_terminal] == ["the answer"]
    assert details["noise"] == "after_terminal: 2"
    assert "trailing bytes" in details["noise_samples"]


@pytest.mark.req("E-19")
async def test_f20_secrets_are_in_no_file_and_no_core_can_be_written(new_node: NewNode) -> None:
    secret = "s3cr3t-of-the-failure-table-0123456789"
    profiles = {"secretive": {"secrets": {"MY_TOKEN": {"env": "SOURCE_OF_TOKEN"}}}}
    node = await started(new_node(env={"SOURCE_OF_TOKEN": secret}, profiles=profiles))
    async with client_of(node) as client:
        follower = Follower(client, "secret", "hello", target="secretive")
        await until(lambda: node.agent_processes())
        [directory] = node.run_directories()
        await until(lambda: read_owner(directory) is not None)
        owner = read_owner(directory)
        assert owner is not None
        pids = [(await client.status()).keeper_pid, warden_of(directory), owner.pid]
        cores = [resource.prlimit(pid, resource.RLIMIT_CORE) for pid in pids]
        written = files_holding(node.data_dir, secret)
        environment = Path(f"/proc/{owner.pid}/environ").read_bytes()
        (node.home / "go").touch()
        await ended([follower])
        details = (await client.get("secret")).details

    assert cores == [(0, 0)] * 3
    assert written == []
    assert secret.encode() in environment
    assert secret not in node.logged()
    assert follower.outcome == "process_failed"
    assert secret not in repr(follower.events)
    assert secret not in repr(details)
    after = {path.name for path in files_holding(node.data_dir, secret)}
    assert after <= {"stderr"}, "only what the agent itself printed may hold it"


@pytest.mark.req("BAN-18")
def test_every_row_has_its_test() -> None:
    """And none is left out without being named here."""
    import re

    rows = set(re.findall(r"^\| F(\d+) \|", (PROJECT / "docs/spec/keeper.md").read_text(), re.MULTILINE))
    sources = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    tested = {str(int(n)) for source in sources for n in re.findall(r"def test_f(\d\d)_", source)}

    assert rows - tested == {"9", "14", "21", "22"}
    assert tested <= rows
    documented = set(re.findall(r"^\| F(\d+) \|", (PROJECT / "docs/failure-table.md").read_text(), re.MULTILINE))
    assert documented == rows
