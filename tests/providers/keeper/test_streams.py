"""What a child prints: nothing is lost, nothing grows without bound."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.keeper.client import ExitRecord, clear_append_only
from tests.support.wardens import Changes, Printed, Spawn, Until, WardenOf

PROJECT = Path(__file__).parents[3]
NOBODY = 65534
REOPENS = "echo one; echo lost > /dev/stdout; echo two; echo x > /dev/stderr; echo y >&2; echo three"


async def test_stderr_is_kept_whole_while_it_is_small(spawn: Spawn) -> None:
    link = await spawn("/bin/bash", "-c", "echo first >&2; echo second >&2")

    assert await link.wait_gone(10)
    assert (link.directory / "stderr").read_bytes() == b"first\nsecond\n"
    assert link.exit == ExitRecord(code=0, signal=None, stopped=None, killed=False, stderr_bytes=13)


@pytest.mark.req("CAT-33")
async def test_a_flood_on_stderr_blocks_nothing_and_is_bounded(spawn: Spawn) -> None:
    link = await spawn("floods.py", "stderr", "2")

    assert await link.wait_gone(60)
    kept = (link.directory / "stderr").read_bytes()
    assert link.exit is not None and link.exit.stderr_bytes == 2 << 20
    assert (link.directory / "stdout").read_bytes() == b"done\n"
    (gap,) = re.findall(rb"\n\[(\d+) bytes left out\]\n", kept)
    assert int(gap) == (2 << 20) - (128 << 10)
    assert len(kept) == (128 << 10) + len(b"\n[%s bytes left out]\n" % gap)
    assert kept.startswith(b"line 00000000 of a flood")


async def test_the_tail_of_a_flood_is_on_disk_while_the_child_lives(spawn: Spawn, until: Until) -> None:
    link = await spawn("/bin/bash", "-c", "head -c 300000 /dev/zero >&2; echo the last words >&2; exec sleep 300")

    await until(lambda: (link.directory / "stderr").exists())
    await until(lambda: (link.directory / "stderr").read_bytes().endswith(b"the last words\n"))

    link.stop(steps=["term"], grace_s=5, reason="test")
    assert await link.wait_gone(10)


@pytest.mark.req("CAT-27")
async def test_too_much_output_freezes_and_ends_the_run(spawn: Spawn) -> None:
    told: list[tuple[str | None, bool]] = []
    link = await spawn("/bin/bash", "-c", "yes 'a line of a flood'", output_bytes=1 << 20)
    link.on_change(lambda: told.append((link.limit, link.gone)))

    assert await link.wait_gone(60)

    assert told[0] == ("output_limit", False)
    assert link.exit == ExitRecord(code=None, signal=9, stopped="output_limit", killed=True, stderr_bytes=0)


async def test_a_full_disk_ends_only_the_run_that_prints(spawn: Spawn, printed: Printed) -> None:
    full: Changes = {"disk_watermark_bytes": 1 << 60}
    silent = await spawn("/bin/sleep", "300", **full)
    loud = await spawn("/bin/bash", "-c", "while :; do echo x; sleep 0.01; done", **full)

    assert await loud.wait_gone(60)

    assert (loud.limit, silent.limit) == ("storage_full", None)
    assert loud.exit is not None and loud.exit.stopped == "storage_full"
    silent.stop(steps=["term"], grace_s=5, reason="test")
    assert await silent.wait_gone(10)


async def test_reopening_the_streams_cuts_nothing(spawn: Spawn, tmp_path: Path) -> None:
    link = await spawn("/bin/bash", "-c", REOPENS)

    assert await link.wait_gone(10)
    if not link.is_protected:
        pytest.skip("root without the append-only attribute on this file system: the node says so in its status")
    assert (link.directory / "stdout").read_bytes() == b"one\ntwo\nthree\n"
    kept = (link.directory / "stderr").read_bytes()
    assert b"x\ny\n" in kept and b"/dev/stdout: " in kept
    os.unlink(link.directory / "stdout")  # the attribute is gone with the tree


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to set the attribute")
async def test_the_attribute_of_a_killed_warden_can_be_cleared(
    spawn: Spawn, printed: Printed, warden_of: WardenOf, until: Until
) -> None:
    link = await spawn("/bin/bash", "-c", "echo ready; exec sleep 300")
    await printed(link, b"ready")
    os.kill(warden_of(link), 9)
    await until(lambda: link.lost)

    assert clear_append_only(link.directory / "stdout") or not link.is_protected

    os.unlink(link.directory / "stdout")
    (link.directory / "stdout").touch()


@pytest.fixture
def users_directory() -> Iterator[Path]:
    """A data directory of a user without privileges, where such a user can reach it."""
    directory = Path(tempfile.mkdtemp(prefix="iop-user-"))
    os.chown(directory, NOBODY, NOBODY)
    yield directory
    shutil.rmtree(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests are of a normal user then")
async def test_reopening_the_streams_cuts_nothing_for_a_normal_user(users_directory: Path) -> None:
    python = _python_of_a_normal_user()

    shown = await asyncio.to_thread(_run_as_nobody, python, users_directory, "/bin/bash", "-c", REOPENS)

    assert [shown[0]["is_protected"], shown[1]] == [True, {"gone": True, "code": 0}]
    assert (users_directory / "run" / "stdout").read_bytes() == b"one\ntwo\nthree\n"
    kept = (users_directory / "run" / "stderr").read_bytes()
    assert b"x\ny\n" in kept and b"/dev/stdout: Permission denied" in kept


def _python_of_a_normal_user() -> str:
    for python in (sys.executable, "/usr/bin/python3"):
        check = "import sys; sys.path.insert(0, sys.argv[1]); import providers.keeper.client"
        try:
            subprocess.run(
                [python, "-c", check, PROJECT],
                user=NOBODY,
                group=NOBODY,
                extra_groups=[],
                check=True,
                cwd="/",
                timeout=60,
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    pytest.skip("no Python >= 3.11 that a user without privileges may run")


def _run_as_nobody(python: str, directory: Path, *argv: str) -> list[dict[str, object]]:
    node = Path(__file__).parent / "programs" / "node.py"
    shown = subprocess.run(
        [python, str(node), str(directory), "run", "1", *argv],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        env={"PYTHONPATH": str(PROJECT), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=60,
    )
    return [json.loads(line) for line in shown.stdout.splitlines()]
