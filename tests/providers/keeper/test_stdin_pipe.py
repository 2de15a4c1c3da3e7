"""The stdin of a warm process: whole messages in order, whatever dies; and a typed answer where that cannot be."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from providers.keeper.client import InputRefusal, InputRefused, WardenLink, open_keeper, read_exit
from providers.keeper.stdin_pipe import LIMIT_BYTES, StdinPipe
from tests.support.wardens import CommandOf, Printed, Spawn, Stop, Until, WardenOf

PROJECT = Path(__file__).parents[3]
MIB = 1 << 20
TERM: Stop = {"steps": ["term"], "grace_s": 5.0, "reason": "test"}


def told(message: bytes) -> bytes:
    """What ``reads_slowly.py`` prints about a line."""
    line = message.rstrip(b"\n")
    return b"%d %s\n" % (len(line), hashlib.sha256(line).hexdigest().encode())


class Warm(Protocol):
    async def __call__(self, program: str, *arguments: str) -> WardenLink: ...


@pytest.fixture
def warm(spawn: Spawn) -> Warm:
    """Spawns a program with the warden's pipe for stdin."""

    async def run(program: str, *arguments: str) -> WardenLink:
        return await spawn(program, *arguments, stdin_fd=None, stdin_pipe=True)

    return run


async def test_a_large_message_arrives_whole_at_a_slow_reader(warm: Warm, printed: Printed) -> None:
    link = await warm("reads_slowly.py", "0.3")
    message = os.urandom(8 * MIB).replace(b"\n", b"-") + b"\n"

    answer = link.send_input(message)
    assert not answer.done()
    await answer

    await printed(link, told(message))
    link.close_input()
    assert await link.wait_gone(10)
    assert link.exit is not None and link.exit.code == 0


async def test_messages_keep_their_order_and_end_of_input_follows_them(warm: Warm) -> None:
    link = await warm("reads_slowly.py", "0.2")
    messages = [b"%d " % number * (40_000 * (number % 3) + 1) + b"\n" for number in range(20)]

    answers = [link.send_input(message) for message in messages]
    link.close_input()
    await asyncio.gather(*answers)

    assert await link.wait_gone(10)
    assert (link.directory / "stdout").read_bytes() == b"ready\n" + b"".join(map(told, messages)) + b"left 0\n"


async def test_nothing_more_is_taken_after_the_end_of_input(warm: Warm) -> None:
    link = await warm("reads_slowly.py")
    link.close_input()

    with pytest.raises(InputRefused) as refused:
        link.send_input(b"late\n")

    assert refused.value.refusal is InputRefusal.CLOSED
    assert await link.wait_gone(10)


async def test_one_key_is_written_once(warm: Warm, until: Until) -> None:
    link = await warm("reads_slowly.py")

    await link.send_input(b"hello\n", key="turn-1")
    await link.send_input(b"hello\n", key="turn-1")
    await link.send_input(b"other\n", key="turn-2")
    link.close_input()

    assert await link.wait_gone(10)
    expected = b"ready\n" + told(b"hello") + told(b"other") + b"left 0\n"
    assert (link.directory / "stdout").read_bytes() == expected


async def test_more_than_the_limit_is_refused_and_what_was_taken_is_still_written(warm: Warm, printed: Printed) -> None:
    link = await warm("/bin/sleep", "300")
    first = link.send_input(b"a" * (10 * MIB))

    with pytest.raises(InputRefused) as refused:
        link.send_input(b"b" * (7 * MIB))

    assert (refused.value.refusal, refused.value.written) == (InputRefusal.FULL, 0)
    assert not first.done()
    link.stop(**TERM)
    with pytest.raises(InputRefused) as unfinished:
        await first
    assert (unfinished.value.refusal, unfinished.value.written) == (InputRefusal.GONE, 0), "nothing of it was read"
    assert await link.wait_gone(10)


async def test_a_child_that_ends_in_mid_message_is_told_with_what_it_read(warm: Warm) -> None:
    link = await warm("/bin/bash", "-c", "head -c 100000 > /dev/null")

    with pytest.raises(InputRefused) as unfinished:
        await link.send_input(b"a" * MIB)

    assert unfinished.value.refusal is InputRefusal.GONE
    assert unfinished.value.written is not None and 100_000 <= unfinished.value.written <= 200_000


async def test_what_was_in_the_pipe_and_never_read_is_told_with_the_exit(
    warm: Warm, until: Until, printed: Printed
) -> None:
    link = await warm("/bin/bash", "-c", "read line; echo got; exec sleep 300")
    await link.send_input(b"first\n", key="first")
    await printed(link, b"got")
    await link.send_input(b"second\n", key="second")
    await link.send_input(b"third\n", key="third")

    link.stop(**TERM)

    assert await link.wait_gone(10)
    assert link.exit is not None and set(link.exit.unread) == {"second", "third"}
    record = read_exit(link.directory)
    assert record is not None and (record.unread, record.taken) == (link.exit.unread, ("first", "second", "third"))
    assert [key for key in ("first", "second", "never sent") if record.never_had(key)] == ["second", "never sent"]
    assert not replace(record, taken=None).never_had("never sent"), "an older warden does not tell"


async def test_of_many_messages_the_last_are_told_with_the_exit(warm: Warm) -> None:
    link = await warm("/bin/cat")
    for number in range(40):
        await link.send_input(b"x\n", key=f"m{number}")

    link.stop(**TERM)

    assert await link.wait_gone(10)
    assert link.exit is not None and link.exit.taken == tuple(f"m{number}" for number in range(24, 40))


async def test_a_child_that_is_gone_is_told_with_nothing_written(warm: Warm, until: Until) -> None:
    link = await warm("/bin/true")
    await until(lambda: link.exit is not None)

    with pytest.raises(InputRefused) as refused:
        link.send_input(b"hello\n")

    assert (refused.value.refusal, refused.value.written) == (InputRefusal.GONE, 0)


async def test_a_child_that_closed_its_stdin_is_told_by_the_pipe(warm: Warm, printed: Printed) -> None:
    link = await warm("/bin/bash", "-c", "exec <&-; echo closed; exec sleep 300")
    await printed(link, b"closed")

    with pytest.raises(InputRefused) as refused:
        await link.send_input(b"hello\n")

    assert (refused.value.refusal, refused.value.written) == (InputRefusal.GONE, 0)
    link.stop(**TERM)
    assert await link.wait_gone(10)


async def test_a_killed_warden_leaves_no_waiter(warm: Warm, printed: Printed, warden_of: WardenOf) -> None:
    link = await warm("/bin/sleep", "300")
    answer = link.send_input(b"x" * MIB)

    os.kill(warden_of(link), signal.SIGKILL)

    with pytest.raises(InputRefused) as lost:
        await answer
    assert (lost.value.refusal, lost.value.written) == (InputRefusal.LOST, None)


@pytest.mark.parametrize("part", ["whole", "part"])
async def test_a_message_is_written_whole_or_not_at_all_when_the_node_is_killed(
    data_dir: Path, program: CommandOf, until: Until, part: str
) -> None:
    """One that the node got rid of, and the warden has not read yet when the next node comes, may be lost as a whole."""
    size = 4 * MIB
    argv = [str(data_dir), "warm", str(size), part, *program("reads_slowly.py"), "0.5"]
    node = Path(__file__).parent / "programs" / "sends_and_dies.py"
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, str(node), *argv], env={**os.environ, "PYTHONPATH": str(PROJECT)}, check=False
    )
    assert done.returncode == -signal.SIGKILL

    async with open_keeper(data_dir, generation=2) as keeper:
        link = await keeper.adopt(data_dir / "warm")
        assert link is not None
        await link.send_input(b"the next node\n", key="two")
        link.close_input()
        assert await link.wait_gone(10)

    rest = told(b"the next node") + b"left 0\n"
    possible = [b"ready\n" + rest, *([b"ready\n" + told(b"x" * size) + rest] if part == "whole" else [])]
    assert (data_dir / "warm" / "stdout").read_bytes() in possible


async def test_a_message_the_next_node_repeats_is_not_written_again(data_dir: Path, program: CommandOf) -> None:
    argv = [str(data_dir), "warm", "100000", "whole", *program("reads_slowly.py"), "0.2"]
    node = Path(__file__).parent / "programs" / "sends_and_dies.py"
    await asyncio.to_thread(
        subprocess.run, [sys.executable, str(node), *argv], env={**os.environ, "PYTHONPATH": str(PROJECT)}, check=False
    )

    async with open_keeper(data_dir, generation=2) as keeper:
        link = await keeper.adopt(data_dir / "warm")
        assert link is not None
        await link.send_input(b"x" * 100_000 + b"\n", key="one")
        link.close_input()
        assert await link.wait_gone(10)

    assert (data_dir / "warm" / "stdout").read_bytes() == b"ready\n" + told(b"x" * 100_000) + b"left 0\n"


async def test_a_deadline_can_be_set_and_taken_back(warm: Warm, until: Until) -> None:
    from runtime.clock import boot_time_s

    link = await warm("/bin/sleep", "300")
    link.set_deadline(boot_time_s() + 1.0)
    link.set_deadline(None)
    await asyncio.sleep(1.3)
    assert (link.exit, link.gone) == (None, False)

    link.set_deadline(boot_time_s() + 0.1)

    assert await link.wait_gone(10)
    assert link.exit is not None and link.exit.stopped == "deadline"


def test_the_queue_counts_what_is_arriving_too() -> None:
    reading, writing = os.pipe()
    pipe = StdinPipe(writing)
    piece = {"kind": "input", "key": "a", "offset": 0, "data": "QUFB", "last": False}

    answers = pipe.take(piece) + pipe.take({**piece, "offset": 3, "data": "", "last": True})

    assert answers == [] and pipe.write() == [{"kind": "taken", "key": "a"}]
    assert os.read(reading, 10) == b"AAA"
    assert LIMIT_BYTES == 16 * MIB
    os.close(reading)
    assert pipe.end() == [] and pipe.descriptor == -1
