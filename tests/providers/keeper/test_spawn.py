"""Starting a child: what it is given, what is recorded, and what is said when it cannot start."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from providers.keeper.client import (
    ExitRecord,
    Keeper,
    SpawnFailed,
    clear_append_only,
    lock_is_held,
    read_exit,
    read_owner,
)
from tests.support.nodes import files_holding
from tests.support.wardens import Printed, Request, Spawn, Until

SHOW = """
import json, os, resource, signal
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
print(json.dumps({
    "marker": os.environ.get("IOP_RUN"), "env": sorted(os.environ), "cwd": os.getcwd(), "session": os.getsid(0) == os.getpid(),
    "descriptors": sorted(int(n) for n in os.listdir("/proc/self/fd"))[:-1], "core": resource.getrlimit(resource.RLIMIT_CORE),
    "ignored": int(status["SigIgn"], 16), "blocked": int(status["SigBlk"], 16), "stdin": os.read(0, 100).decode(),
    "oom": open("/proc/self/oom_score_adj").read().strip(),
}))
"""


@pytest.mark.req("RT-21")
async def test_a_run_that_ends_is_recorded_before_it_is_told(keeper: Keeper, request_for: Request) -> None:
    request = request_for("/bin/bash", "-c", "echo hello; exit 7")

    link = await keeper.spawn(request)

    assert await link.wait_gone(10)
    assert link.exit == ExitRecord(code=7, signal=None, stopped=None, killed=False, stderr_bytes=0)
    assert read_exit(request.directory) == link.exit
    assert read_owner(request.directory) == link.owner
    assert (request.directory / "stdout").read_bytes() == b"hello\n"
    assert not lock_is_held(request.directory)
    assert not (request.directory / "ctl").exists()


async def test_a_child_that_dies_of_a_signal_is_recorded_with_it(spawn: Spawn) -> None:
    link = await spawn("/bin/bash", "-c", "kill -ABRT $$")

    assert await link.wait_gone(10)
    assert link.exit == ExitRecord(code=None, signal=6, stopped=None, killed=False, stderr_bytes=0)


async def test_a_child_gets_exactly_what_it_was_promised(data_dir: Path, spawn: Spawn) -> None:
    program = [sys.executable, "-I", "-S", "-c", SHOW]

    link = await spawn(*program, name="run-1", env={"PATH": "/bin", "KEY": "secret \udcff"})

    assert await link.wait_gone(10)
    shown = json.loads((link.directory / "stdout").read_bytes())
    # Python ignores these two in itself, signals 32 and 33 are the C library's own; LC_CTYPE is Python's addition too
    assert shown.pop("ignored") & ~(1 << 12 | 1 << 24 | 1 << 31 | 1 << 32) == 0
    assert set(shown.pop("env")) - {"LC_CTYPE"} == {"IOP_RUN", "KEY", "PATH"}
    assert shown == {
        "marker": "run-1",
        "cwd": str(data_dir),
        "session": True,
        "descriptors": [0, 1, 2],
        "core": [0, 0],
        "blocked": 0,
        "stdin": "",
        "oom": "500",
    }


async def test_secrets_are_never_written_to_disk(data_dir: Path, spawn: Spawn) -> None:
    link = await spawn("/bin/true", env={"KEY": "not-for-the-disk"})

    assert await link.wait_gone(10)
    assert files_holding(data_dir, "not-for-the-disk") == []


@pytest.mark.parametrize("workspace", ["missing", "a_file"])
async def test_a_missing_working_directory_is_not_blamed_on_the_program(
    workspace: str, data_dir: Path, keeper: Keeper, request_for: Request
) -> None:
    (data_dir / "a_file").touch()
    request = request_for("/bin/true", cwd=str(data_dir / workspace))

    with pytest.raises(SpawnFailed) as failure:
        await keeper.spawn(request)

    expected = errno.ENOENT if workspace == "missing" else errno.ENOTDIR
    assert (failure.value.stage, failure.value.errno) == ("cwd", expected)


async def test_a_missing_program_is_told_apart(keeper: Keeper, request_for: Request) -> None:
    with pytest.raises(SpawnFailed) as failure:
        await keeper.spawn(request_for("/nowhere/agent"))

    assert (failure.value.stage, failure.value.errno) == ("exec", errno.ENOENT)


async def test_an_argument_list_that_is_too_long_is_an_exec_failure(keeper: Keeper, request_for: Request) -> None:
    with pytest.raises(SpawnFailed) as failure:
        await keeper.spawn(request_for("/bin/true", "x" * 200_000))

    assert (failure.value.stage, failure.value.errno) == ("exec", errno.E2BIG)


async def test_an_argument_no_program_can_get_is_an_exec_failure(keeper: Keeper, request_for: Request) -> None:
    with pytest.raises(SpawnFailed, match="null") as failure:
        await keeper.spawn(request_for("/bin/true", "a\0b"))

    assert (failure.value.stage, failure.value.errno) == ("exec", 0)


async def test_a_limit_that_cannot_be_set_starts_nothing(keeper: Keeper, request_for: Request) -> None:
    with pytest.raises(SpawnFailed) as failure:
        await keeper.spawn(request_for("/bin/true", process_limit=1 << 70))

    assert failure.value.stage == "limits"


async def test_a_run_directory_that_is_gone_is_named(keeper: Keeper, request_for: Request) -> None:
    request = request_for("/bin/true")
    (request.directory / "stdin").unlink()
    (request.directory / "stdout").unlink()
    request.directory.rmdir()

    with pytest.raises(SpawnFailed) as failure:
        await keeper.spawn(request)

    assert failure.value.stage == "directory"


async def test_a_failed_start_leaves_a_directory_in_which_the_run_can_be_started(
    keeper: Keeper, request_for: Request
) -> None:
    with pytest.raises(SpawnFailed):
        await keeper.spawn(request_for("/nowhere/agent", name="again"))

    link = await keeper.spawn(request_for("/bin/true", name="again"))

    assert await link.wait_gone(10)
    assert link.exit is not None and link.exit.code == 0


@pytest.mark.req("RT-20")
async def test_a_run_directory_is_used_once(keeper: Keeper, request_for: Request, printed: Printed) -> None:
    program = ("/bin/bash", "-c", "echo started; exec sleep 300")
    first = await keeper.spawn(request_for(*program, name="once"))
    await printed(first, b"started")

    second = await keeper.spawn(request_for(*program, name="once"))

    assert second.owner == first.owner
    second.stop(steps=["term"], grace_s=5, reason="test")
    assert await second.wait_gone(10)
    third = await keeper.spawn(request_for(*program, name="once"))
    assert (third.gone, third.exit, third.owner) == (True, second.exit, second.owner)
    assert (first.directory / "stdout").read_bytes() == b"started\n"


async def test_two_spawns_at_once_make_one_child(keeper: Keeper, request_for: Request, until: Until) -> None:
    requests = [request_for("/bin/sleep", "300", name="twins") for _ in range(2)]

    links = await asyncio.gather(*(keeper.spawn(request) for request in requests))

    assert links[0].owner == links[1].owner
    for link in links:
        link.stop(steps=[], grace_s=0, reason="test")
    await until(lambda: not lock_is_held(requests[0].directory))


async def test_two_hundred_runs_all_end_well(data_dir: Path, spawn: Spawn) -> None:
    for _ in range(20):
        links = await asyncio.gather(*(spawn("/bin/true") for _ in range(10)))
        assert all([await link.wait_gone(10) for link in links])
        assert {link.exit.code if link.exit else None for link in links} == {0}

    (log,) = data_dir.glob("keeper-*/log")
    assert log.read_text() == ""


async def test_a_spawn_costs_the_node_no_descriptor(spawn: Spawn, request_for: Request) -> None:
    before = len(os.listdir("/proc/self/fd"))

    links = [await spawn("/bin/true") for _ in range(5)]

    assert all([await link.wait_gone(10) for link in links])
    assert len(os.listdir("/proc/self/fd")) == before + 2 * len(links)  # the fixture's own stdin and stdout


async def test_changes_are_told_in_their_order(spawn: Spawn) -> None:
    link = await spawn("/bin/bash", "-c", "read -t 0.2 < <(exec sleep 1); exit 3")
    seen: list[tuple[bool, bool]] = []
    link.on_change(lambda: seen.append((link.exit is not None, link.gone)))

    assert await link.wait_gone(10)

    assert seen[-1] == (True, True)
    assert (False, True) not in seen


async def test_a_renamed_run_directory_stays_the_runs_own(spawn: Spawn, printed: Printed, tmp_path: Path) -> None:
    link = await spawn("/bin/bash", "-c", f"echo ready; until [ -e {tmp_path}/go ]; do sleep 0.02; done; exit 5")
    await printed(link, b"ready")
    moved = link.directory.rename(tmp_path / "elsewhere")

    Path(tmp_path / "go").touch()

    assert await link.wait_gone(10)
    assert link.exit is not None and link.exit.code == 5
    assert read_exit(moved) == link.exit


async def test_a_removed_run_directory_hurts_that_record_only(spawn: Spawn, printed: Printed, tmp_path: Path) -> None:
    link = await spawn("/bin/bash", "-c", f"echo ready; until [ -e {tmp_path}/go ]; do sleep 0.02; done; exit 5")
    await printed(link, b"ready")
    clear_append_only(link.directory / "stdout")
    shutil.rmtree(link.directory)

    Path(tmp_path / "go").touch()

    assert await link.wait_gone(10)
    assert link.exit is not None and link.exit.code == 5
