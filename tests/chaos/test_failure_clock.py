"""The rows of the failure table about time and slow disks (F13, F18).

A test must not turn the machine's clock or suspend it, so the clock is handed in: what is tested is the arithmetic. A slow
disk is a journal whose ``sync`` waits, in a real host of the runtime.
"""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest
from grpc_health.v1 import health

from node import health as node_health
from runtime import clock
from runtime.clock import Alarm
from runtime.emitter import Emitter
from runtime.events import RuntimeEvent, complete, delta, start
from runtime.failure import FailureCode
from runtime.journal import Journal
from runtime.provider import RunContext
from runtime.types import ExecutionSpec, RunRequest, SessionMode
from tests.support.hosts import (
    PATIENCE_S,
    Agent,
    Gate,
    ListWriter,
    crash_image,
    index_rows,
    open_host,
    read_all,
    read_one,
    says,
    until_settled,
    within,
    words,
)

ANOTHER_BOOT = "11111111-2222-3333-4444-555555555555"


# --- F13: clock jumps, suspend, another boot


@pytest.mark.req("RT-24", "E-15")
async def test_f13_a_deadline_counts_the_time_of_a_suspend(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK_BOOTTIME jumps over a suspend, the loop's clock stands still: the alarm looks again often enough to notice."""
    now = [1000.0]
    monkeypatch.setattr(clock, "boot_time_s", lambda: now[0])
    monkeypatch.setattr(clock, "_LONGEST_SLEEP_S", 0.01)
    rang = asyncio.Event()
    alarm = Alarm(1000.0 + 3600, rang.set)
    await asyncio.sleep(0.05)
    assert not rang.is_set()

    now[0] += 3601  # suspended for an hour
    await within(rang.wait())
    alarm.cancel()


@pytest.mark.req("RT-24", "E-15")
async def test_f13_the_wall_clock_moves_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    rang = asyncio.Event()
    alarm = Alarm(clock.boot_time_s() + 0.05, rang.set)

    monkeypatch.setattr(time, "time_ns", lambda: 0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    await within(rang.wait())
    alarm.cancel()


@pytest.mark.req("E-15")
async def test_f13_stamps_never_go_back_when_the_wall_clock_does(tmp_path: Path) -> None:
    times = iter([1_000, 900, 5, 1_200])
    writer = ListWriter()
    spec = ExecutionSpec(
        run_id="r", adapter="a", target="t", session_id="s", session_mode=SessionMode.CREATE_IF_MISSING,
        background=False, workspace="/", policy={}, input="", timeout=None, metadata={},
    )  # fmt: skip
    emitter = Emitter(RunContext(directory=tmp_path), spec, writer, clock=lambda: next(times))

    for draft in (start(), delta("a", message_id="m"), delta("b", message_id="m"), complete("ab")):
        await emitter.emit([draft])

    assert [event.time_ns for event in writer.events] == [1_000, 1_000, 1_000, 1_200]


@pytest.mark.req("E-15", "E-19")
async def test_f13_a_deadline_of_another_boot_has_passed(tmp_path: Path) -> None:
    """Its clock means nothing any more: what had not begun does not begin."""
    agent, gate = Agent(says("never"), max_concurrency=1), Gate(start())
    holder = Agent(gate, targets=("holder",))
    async with open_host(tmp_path / "data", holder, agent, max_concurrent_runs=1, max_queued_runs=5) as host:
        first = await host.runs.dispatch(RunRequest(run_id="holder", target="holder", background=True))
        await within(gate.reached.wait())
        second = await host.runs.dispatch(RunRequest(run_id="queued", target="agent"), outer_deadline_s=3600)
        image = crash_image(tmp_path / "data", tmp_path / "image")
        gate.open.set()
        first.close()
        second.close()
        await until_settled(host)
    with index_rows(image) as rows:
        rows.execute("UPDATE runs SET boot_id=? WHERE run_id='queued'", (ANOTHER_BOOT,))

    later = Agent(says("never"))
    async with open_host(image, Agent(gate, targets=("holder",)), later, max_queued_runs=5) as host:
        events = await read_all(await host.runs.attach("queued"))

    assert events[-1].failure is not None
    assert events[-1].failure.code == FailureCode.DEADLINE_EXCEEDED
    assert later.executed == []


@pytest.mark.req("BAN-18", "E-19")
async def test_f13_after_a_reboot_no_sequence_is_used_twice(tmp_path: Path) -> None:
    """The page cache may be gone with events that readers had seen already."""
    gate = Gate(start(), delta("seen", message_id="m"))
    async with open_host(tmp_path / "data", Agent(gate)) as host:
        reader = await host.runs.dispatch(RunRequest(run_id="r", target="agent"))
        await within(gate.reached.wait())
        image = crash_image(tmp_path / "data", tmp_path / "image")
        gate.open.set()
        await read_all(reader)
    with index_rows(image) as rows:
        rows.execute("UPDATE runs SET boot_id=?", (ANOTHER_BOOT,))

    async with open_host(image, Agent(gate)) as host:
        events = await read_all(await host.runs.attach("r"))

    assert words(events) == "sdE"
    assert events[-1].sequence > (1 << 20)


# --- F18: slow fdatasync, a loop that is held up


@pytest.mark.req("E-6", "NB-15", "BAN-18")
async def test_f18_terminals_wait_for_a_slow_disk_and_deltas_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_sync, original = threading.Event(), Journal.sync

    def slow_sync(self: Journal) -> None:
        may_sync.wait(PATIENCE_S)
        original(self)

    monkeypatch.setattr(Journal, "sync", slow_sync)
    gate = Gate(start())
    async with open_host(
        tmp_path, Agent(says("a", "b")), Agent(gate, targets=("other",)), max_concurrent_runs=2
    ) as host:
        waiting = await host.runs.dispatch(RunRequest(run_id="ends", target="agent"))
        got: list[RuntimeEvent] = []
        while not got or got[-1].delta != "b":
            got += await read_one(waiting)
        other = await host.runs.dispatch(RunRequest(run_id="other", target="other"))
        assert words(await read_one(other)) == "s"
        terminal = asyncio.create_task(waiting.read())
        await asyncio.sleep(0.1)
        was_shown = terminal.done()

        may_sync.set()
        [last] = await within(terminal)
        gate.open.set()
        await read_all(other)
        waiting.close()

    assert not was_shown, "a reader saw a terminal that was not on the disk"
    assert last.is_terminal


@pytest.mark.req("E-6")
async def test_f18_a_loop_that_is_held_up_is_told_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_health, "LAG_LIMIT_S", 1.0)
    monkeypatch.setattr(node_health, "LOOK_S", 0.05)
    servicer = health.aio.HealthServicer()
    said: list[bool] = []

    async def note(_: object, __: object, *, is_serving: bool) -> None:
        said.append(is_serving)

    monkeypatch.setattr(node_health, "set_health", note)
    async with open_host(tmp_path, Agent(says("a"))) as host:
        reporting = asyncio.create_task(node_health.report_health(host.runs, servicer, ["x"]))
        async with asyncio.timeout(PATIENCE_S):
            while said != [True]:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.02)
            time.sleep(1.5)  # noqa: ASYNC251  # the very thing: nothing on this loop can go on
            while said != [True, False, True]:
                await asyncio.sleep(0.01)
        host.runs.drain()
        async with asyncio.timeout(PATIENCE_S):
            while said[-1]:
                await asyncio.sleep(0.01)
        reporting.cancel()

    assert said == [True, False, True, False]
