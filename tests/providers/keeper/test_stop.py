"""Ending a run: one grace, the whole tree, and no signal to anybody else."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from providers.keeper.client import ExitRecord
from providers.keeper.kernel import boot_now
from tests.support.wardens import IsRunning, Marked, Printed, Spawn, StopManner

TERM: StopManner = {"steps": ["term"], "reason": "cancelled"}


@pytest.mark.req("RT-21")
async def test_a_tree_that_ignores_polite_signals_is_killed_after_the_grace(
    spawn: Spawn, printed: Printed, marked: Marked
) -> None:
    link = await spawn("ignores_signals.py")
    await printed(link, b"worker ready")
    await printed(link, b"parent ready")
    started = time.monotonic()

    link.stop(**TERM, grace_s=0.3)

    assert await link.wait_gone(10)
    assert time.monotonic() - started >= 0.3
    assert link.exit == ExitRecord(code=None, signal=9, stopped="cancelled", killed=True, stderr_bytes=0)
    assert marked(link.directory.name) == []


@pytest.mark.req("RT-21")
async def test_a_launcher_that_forwards_nothing_hides_nobody(spawn: Spawn, printed: Printed, marked: Marked) -> None:
    link = await spawn("shim.sh")
    await printed(link, b"ready")

    link.stop(**TERM, grace_s=60)

    assert await link.wait_gone(30)
    assert link.exit is not None and not link.exit.killed
    assert marked(link.directory.name) == []


@pytest.mark.req("RT-21")
@pytest.mark.parametrize("stops", [1, 3])
async def test_the_whole_grace_is_given_once_and_more_stops_change_nothing(
    stops: int, spawn: Spawn, printed: Printed
) -> None:
    link = await spawn("needs_time.py", "0.6")
    await printed(link, b"ready")

    link.stop(**TERM, grace_s=10)
    for _ in range(stops - 1):
        link.stop(steps=["int"], grace_s=0, reason="impatient")

    assert await link.wait_gone(10)
    assert link.exit == ExitRecord(code=0, signal=None, stopped="cancelled", killed=False, stderr_bytes=0)
    assert (link.directory / "stdout").read_bytes() == b"ready\nclean after 1 TERM\n"


@pytest.mark.req("RT-21")
async def test_repeated_stops_do_not_restart_the_grace(spawn: Spawn, printed: Printed) -> None:
    link = await spawn("ignores_signals.py")
    await printed(link, b"parent ready")
    started = time.monotonic()

    while not await link.wait_gone(0.1):
        link.stop(**TERM, grace_s=0.5)
        assert time.monotonic() - started < 20, "each stop gave it another half second"

    assert time.monotonic() - started >= 0.5


async def test_the_steps_share_one_grace(spawn: Spawn, printed: Printed) -> None:
    script = "trap 'echo int' INT; trap 'echo term; exit 4' TERM; echo ready; while :; do sleep 0.01; done"
    link = await spawn("/bin/bash", "-c", script)
    await printed(link, b"ready")

    link.stop(steps=["int", "term"], grace_s=4.0, reason="cancelled")

    assert await link.wait_gone(20)
    assert (link.directory / "stdout").read_bytes() == b"ready\nint\nterm\n"
    assert link.exit is not None and (link.exit.code, link.exit.killed) == (4, False)


async def test_an_unknown_step_is_refused_before_anything_is_sent(spawn: Spawn) -> None:
    link = await spawn("/bin/sleep", "300")

    with pytest.raises(ValueError, match="kill"):
        link.stop(steps=["kill"], grace_s=1, reason="x")

    link.stop(steps=[], grace_s=0, reason="x")
    assert await link.wait_gone(10)


@pytest.mark.req("RT-21")
@pytest.mark.parametrize("manners", ["polite", "stubborn"])
async def test_what_outlives_a_natural_end_is_ended_too(manners: str, spawn: Spawn, is_running: IsRunning) -> None:
    link = await spawn("daemonises.py", manners)

    assert await link.wait_gone(10)
    daemon = int((link.directory / "stdout").read_bytes().split()[-1])
    assert not is_running(daemon)
    assert link.exit == ExitRecord(code=0, signal=None, stopped=None, killed=False, stderr_bytes=0)


async def test_the_exit_is_told_before_the_survivors_are_gone(spawn: Spawn) -> None:
    link = await spawn("daemonises.py", "stubborn")
    told = [(link.exit is not None, link.gone)]
    link.on_change(lambda: told.append((link.exit is not None, link.gone)))

    assert await link.wait_gone(10)

    assert (True, False) in told


@pytest.mark.req("RT-24")
async def test_the_warden_keeps_the_deadline(spawn: Spawn, printed: Printed) -> None:
    link = await spawn("/bin/bash", "-c", "echo ready; exec sleep 300", deadline_boot_s=boot_now() + 2)

    assert await link.wait_gone(10)

    assert link.exit == ExitRecord(code=None, signal=15, stopped="deadline", killed=False, stderr_bytes=0)


@pytest.mark.req("RT-24")
async def test_a_deadline_that_has_passed_ends_the_run_at_once(spawn: Spawn) -> None:
    link = await spawn("/bin/sleep", "300", deadline_boot_s=0.0)

    assert await link.wait_gone(10)
    assert link.exit is not None and link.exit.stopped == "deadline"


@pytest.mark.req("RT-20", "RT-21")
async def test_a_stop_in_the_instant_of_the_end_is_one_of_two_outcomes(data_dir: Path, spawn: Spawn) -> None:
    chance = random.Random(13)

    async def race() -> ExitRecord | None:
        link = await spawn("/bin/bash", "-c", f"sleep 0.0{chance.randrange(5)}; exit 3")
        await asyncio.sleep(chance.random() * 0.05)
        link.stop(**TERM, grace_s=5)
        assert await link.wait_gone(10)
        return link.exit

    for _ in range(10):
        for end in await asyncio.gather(*(race() for _ in range(4))):
            assert end is not None and not end.killed
            assert end.stopped == "cancelled" or (end.code, end.stopped) == (3, None)
    (log,) = data_dir.glob("keeper-*/log")
    assert log.read_text() == ""


@pytest.mark.req("RT-21")
async def test_a_tree_that_forks_without_end_is_ended(spawn: Spawn, printed: Printed, marked: Marked) -> None:
    # each generation leaves two more and ends: no list of processes is ever right for long
    script = "trap '' TERM; f() { sleep 0.02; f & f & }; echo ready; f; sleep 300"
    bound = "ulimit -u 4000; "
    link = await spawn("/bin/bash", "-c", bound + script)
    await printed(link, b"ready")

    link.stop(steps=[], grace_s=0, reason="cancelled")

    assert await link.wait_gone(60)
    assert marked(link.directory.name) == []


async def test_no_process_outside_of_the_tree_is_signalled(spawn: Spawn, printed: Printed) -> None:
    bystander = await asyncio.create_subprocess_exec("/bin/sleep", "300", env={"IOP_RUN": "another"})
    link = await spawn("ignores_signals.py")
    await printed(link, b"parent ready")

    link.stop(steps=["term"], grace_s=0.1, reason="cancelled")

    assert await link.wait_gone(10)
    assert bystander.returncode is None
    os.kill(bystander.pid, 9)
    await bystander.wait()
