from __future__ import annotations

import asyncio
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from runtime.events import RuntimeEvent, complete, delta, start
from runtime.failure import RunCancelled
from runtime.journal import NAME as JOURNAL
from runtime.journal import Journal, peek_last
from runtime.permissions import ANSWERS
from runtime.provider import EventSink, Position, RunContext
from runtime.records import RunState
from runtime.recovery import BOOT_GAP
from runtime.run import CANCEL_FILE, write_cancel
from runtime.types import ExecutionSpec, RunRequest
from tests.support.hosts import (
    PATIENCE_S,
    Agent,
    Gate,
    crash_image,
    index_rows,
    open_host,
    read_all,
    read_one,
    recover_host,
    says,
    shape,
    until_settled,
    within,
    words,
)


def request(run_id: str, **fields: Any) -> RunRequest:
    whole: dict[str, Any] = {"target": "agent", "input": "hi", "run_id": run_id, "background": True}
    return RunRequest(**(whole | fields))


def run_directory(data: Path, run_id: str) -> Path:
    with index_rows(data) as rows:
        (ulid,) = rows.execute("SELECT ulid FROM runs WHERE run_id=?", (run_id,)).fetchone()
    return data / "runs" / str(ulid)


def change(data: Path, query: str, *parameters: Any) -> None:
    with index_rows(data) as rows:
        rows.execute(query, parameters)


async def killed(tmp_path: Path, *requests: RunRequest, begun: bool = True, **capabilities: Any) -> Path:
    """What a host leaves that is killed while *requests* are executing; begun ones have said "a"."""
    drafts = (start(), delta("a", message_id="m", offset=10)) if begun else ()
    gate = Gate(*drafts)
    async with open_host(tmp_path / "before", Agent(gate, **capabilities)) as host:
        readers = []
        for each in requests:
            gate.reached.clear()
            readers.append(await host.runs.dispatch(each))
            await within(gate.reached.wait())
        image = crash_image(tmp_path / "before", tmp_path / "image")
        gate.open.set()
        for reader in readers:
            await read_all(reader)
    return image


async def taken_up(image: Path, *providers: Agent, run_id: str = "r1", **given: Any) -> list[RuntimeEvent]:
    """All the events of a run after the next host has taken it up and it has ended."""
    async with open_host(image, *providers, **given) as host:
        await until_settled(host)
        return await read_all(await host.runs.attach(run_id))


@pytest.mark.req("E-19", "RT-17")
async def test_what_was_accepted_and_never_begun_is_executed_in_the_order_of_acceptance(tmp_path: Path) -> None:
    names = [f"r{n}" for n in range(8)]
    image = await killed(tmp_path, *(request(name) for name in names), begun=False)
    provider = Agent(says("hi"))

    async with open_host(image, provider) as host:
        await until_settled(host)
        seen = [words(await read_all(await host.runs.attach(name))) for name in names]
        found = [await host.runs.get(name) for name in names]

    assert provider.executed == names
    assert seen == ["sdC"] * len(names)
    assert [(record.state, record.recovered) for record in found] == [(RunState.COMPLETE, True)] * len(names)


@pytest.mark.req("E-1", "BAN-18")
async def test_a_run_that_had_begun_and_did_not_survive_is_interrupted(tmp_path: Path) -> None:
    image = await killed(tmp_path, request("r1", session_id="s1", session_mode="create_if_missing"))
    provider = Agent(says("again"))

    async with open_host(image, provider) as host:
        events = await read_all(await host.runs.attach("r1"))
        record = await host.runs.get("r1")
        reader = await host.runs.dispatch(request("r2", session_id="s1", session_mode="require_existing"))
        assert words(await read_all(reader)) == "sdC"
        assert host.leftovers == [record.ulid]

    assert shape(events) == [
        ("start", ""), ("delta", "a"), ("error", "interrupted: the node stopped while the run was executing"),
    ]  # fmt: skip
    assert events[-1].failure is not None
    assert (events[-1].failure.code, events[-1].failure.retryable) == ("interrupted", False)
    assert events[-1].failure.metadata == {"spawned": "true"}
    assert events[-1].metadata == {"recovered": "true"}
    assert [event.sequence for event in events] == [1, 2, 3]
    assert record.state is RunState.ERROR
    assert provider.executed == ["r2"]


async def test_a_run_that_survived_is_asked_for_again_and_nothing_comes_twice(tmp_path: Path) -> None:
    image = await killed(tmp_path, request("r1"), survives_host=True)
    before = peek_last(run_directory(image, "r1") / JOURNAL)
    contexts: list[tuple[bool, Position, bool]] = []

    async def goes_on(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        assert ctx.directory is not None
        contexts.append((ctx.adopting, ctx.recorded, ctx.directory.is_dir()))
        await sink.emit([start(), delta("a", message_id="m", offset=10), delta("b", message_id="m", offset=20)])
        ctx.caught_up.set()
        await sink.emit([complete("ab")])

    events = await taken_up(image, Agent(goes_on, survives_host=True))

    assert contexts == [(True, Position(10, 0), True)]
    assert shape(events) == [("start", ""), ("delta", "a"), ("delta", "b"), ("complete", "ab")]
    assert [event.sequence for event in events] == [1, 2, 3, 4]
    assert events[1] == before


async def test_serving_begins_when_every_survivor_has_caught_up(tmp_path: Path) -> None:
    image = await killed(tmp_path, request("r1"), survives_host=True)
    gate = Gate(start(), delta("a", message_id="m", offset=10))

    async def goes_on(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        gate.reached.set()
        await gate.open.wait()
        ctx.caught_up.set()
        await ctx.stopped()
        raise RunCancelled

    async with open_host(image, Agent(goes_on, survives_host=True), recovering=False) as host:
        asking = asyncio.create_task(host.runs.get("r1"))
        recovering = asyncio.create_task(recover_host(host))
        await within(gate.reached.wait())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not (host.runs.recovered.is_set() or asking.done())
        gate.open.set()
        await within(recovering)

        assert (await within(asking)).state is RunState.RUNNING
        assert (await within(host.runs.cancel("r1"))).accepted


async def test_a_run_that_begins_anew_does_not_hold_up_the_start(tmp_path: Path) -> None:
    image = await killed(tmp_path, request("r1"), begun=False)
    gate = Gate(start())

    async with open_host(image, Agent(gate)) as host:
        assert host.runs.recovered.is_set()
        reader = await host.runs.attach("r1")
        gate.open.set()
        assert words(await read_all(reader)) == "sC"


@pytest.mark.req("RT-15", "BAN-18", "E-19")
async def test_a_terminal_that_only_the_journal_knew_is_the_outcome(tmp_path: Path) -> None:
    async with open_host(tmp_path / "data", Agent(says("hi"))) as host:
        whole = await read_all(await host.runs.dispatch(request("r1")))
        await until_settled(host)
        ulid = (await host.runs.get("r1")).ulid
    change(tmp_path / "data", "UPDATE runs SET state='accepted', ended_ns=NULL")
    provider = Agent(says("again"))

    async with open_host(tmp_path / "data", provider) as host:
        record = await host.runs.get("r1")
        assert (record.state, record.ended_ns) == (RunState.COMPLETE, whole[-1].time_ns)
        assert await read_all(await host.runs.attach("r1")) == whole
        assert host.leftovers == [ulid]
    assert provider.executed == []


@pytest.mark.req("RT-20", "E-5")
@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("survives", [True, False])
async def test_a_cancel_that_was_accepted_is_finished(tmp_path: Path, begun: bool, survives: bool) -> None:
    image = await killed(tmp_path, request("r1"), begun=begun, survives_host=survives)
    write_cancel(run_directory(image, "r1"), "the user left")

    async def stops(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        assert ctx.stop is not None
        raise RunCancelled("gone")

    provider = Agent(stops, survives_host=survives)

    events = await taken_up(image, provider)

    assert shape(events)[-1] == ("cancelled", "the user left")
    assert words(events) == ("sdX" if begun else "sX")
    assert provider.executed == (["r1"] if survives else [])  # what may still live has to be ended by its provider


async def test_a_run_whose_directory_is_gone_is_interrupted_and_no_other(tmp_path: Path) -> None:
    image = await killed(tmp_path, request("r1"), request("r2"), survives_host=True)
    shutil.rmtree(run_directory(image, "r1"))

    async with open_host(image, Agent(says("b"), survives_host=True)) as host:
        await until_settled(host)
        lost, other = [await read_all(await host.runs.attach(name)) for name in ("r1", "r2")]

    assert shape(lost) == [("start", ""), ("error", "interrupted: the run's directory is gone")]
    assert lost[0].sequence > BOOT_GAP  # numbers that may have been given are not given again
    assert words(other)[-1] == "C"


@pytest.mark.parametrize("begun", [True, False])
async def test_a_run_whose_target_was_removed_is_interrupted(tmp_path: Path, begun: bool) -> None:
    image = await killed(tmp_path, request("r1"), begun=begun)
    provider = Agent(says("hi"), targets=("other",))

    events = await taken_up(image, provider)

    assert events[-1].error == "interrupted: target 'agent' is no longer configured"
    assert words(events) == ("sdE" if begun else "sE")
    assert provider.executed == []


@pytest.mark.req("RT-18")
async def test_after_a_reboot_no_number_is_used_twice(tmp_path: Path) -> None:
    """Events that readers saw may be gone with the page cache."""
    image = await killed(tmp_path, request("r1"), survives_host=True)
    change(image, "UPDATE runs SET boot_id='another boot'")

    async def goes_on(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        await sink.emit([delta("b", message_id="m", offset=20), complete("ab")])

    async with open_host(image, Agent(goes_on, survives_host=True)) as host:
        await until_settled(host)
        events = await read_all(await host.runs.attach("r1"))
        from_a_lost_place = await read_all(await host.runs.attach("r1", after=700))

    assert [event.sequence for event in events] == [1, 2, BOOT_GAP + 3, BOOT_GAP + 4]
    assert from_a_lost_place == events[2:]
    assert [event.time_ns for event in events] == sorted(event.time_ns for event in events)


@pytest.mark.req("RT-24", "E-15")
@pytest.mark.parametrize("boot", ["same", "another"])
async def test_a_deadline_that_passed_meanwhile_ends_the_run_before_it_begins(tmp_path: Path, boot: str) -> None:
    image = await killed(tmp_path, request("r1", timeout=timedelta(seconds=300)), begun=False)
    if boot == "same":
        change(image, "UPDATE runs SET deadline_boot_s=1")
    else:
        change(image, "UPDATE runs SET boot_id='another boot', deadline_boot_s=1e12")
    provider = Agent(says("hi"))

    events = await taken_up(image, provider)

    assert events[-1].failure is not None
    assert (words(events), events[-1].failure.code) == ("sE", "deadline_exceeded")
    assert provider.executed == []


@pytest.mark.req("RT-24")
async def test_a_survivor_keeps_its_deadline(tmp_path: Path) -> None:
    image = await killed(tmp_path, request("r1", timeout=timedelta(seconds=300)), survives_host=True)
    change(image, "UPDATE runs SET deadline_boot_s=1")

    async def goes_on(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        ctx.caught_up.set()
        await ctx.stopped()
        raise TimeoutError

    events = await taken_up(image, Agent(goes_on, survives_host=True))

    assert events[-1].failure is not None
    assert events[-1].failure.code == "deadline_exceeded"


@pytest.mark.req("RT-24", "RT-15")
async def test_a_survivor_that_ended_in_time_is_not_ended_by_its_deadline(tmp_path: Path) -> None:
    image = await killed(tmp_path, request("r1", timeout=timedelta(seconds=300)), survives_host=True)
    change(image, "UPDATE runs SET deadline_boot_s=1")

    async def finds_the_end(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        await sink.emit([complete("done in time")])

    assert shape(await taken_up(image, Agent(finds_the_end, survives_host=True)))[-1] == ("complete", "done in time")


async def test_cursors_stay_where_they_are_over_a_restart(tmp_path: Path) -> None:
    """Two turns of one session with a restart in between: each run has its own numbers, and they do not move."""
    data = tmp_path / "data"
    before: dict[str, list[RuntimeEvent]] = {}
    for run_id in ("r1", "r2"):
        async with open_host(data, Agent(says("x"))) as host:
            what = request(run_id, session_id="s1", session_mode="create_if_missing")
            before[run_id] = await read_all(await host.runs.dispatch(what))
    async with open_host(data, Agent(says("x"))) as host:
        for run_id, events in before.items():
            assert [event.sequence for event in events] == [1, 2, 3]
            for after in range(4):
                assert await read_all(await host.runs.attach(run_id, after=after)) == events[after:]


async def test_a_reader_goes_on_from_its_cursor_after_a_kill(tmp_path: Path) -> None:
    gate = Gate(start(), delta("a", message_id="m", offset=10))
    async with open_host(tmp_path / "before", Agent(gate, survives_host=True)) as host:
        reader = await host.runs.dispatch(request("r1"))
        await within(gate.reached.wait())
        first = await read_one(reader)
        image = crash_image(tmp_path / "before", tmp_path / "image")
        gate.open.set()
        await read_all(reader)

    async def goes_on(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        await sink.emit([delta("a", message_id="m", offset=10), delta("b", message_id="m", offset=20), complete("ab")])

    async with open_host(image, Agent(goes_on, survives_host=True)) as host:
        rest = await read_all(await host.runs.attach("r1", after=first[-1].sequence))

    assert [event.sequence for event in first + rest] == [1, 2, 3, 4]
    assert words(first + rest) == "sddC"


async def test_a_record_torn_by_the_kill_is_given_again_whole(tmp_path: Path) -> None:
    image = await killed(tmp_path, request("r1"), survives_host=True)
    path = run_directory(image, "r1") / JOURNAL
    path.write_bytes(path.read_bytes()[:-7])

    async def goes_on(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        await sink.emit([start(), delta("a", message_id="m", offset=10), complete("a")])

    events = await taken_up(image, Agent(goes_on, survives_host=True))

    assert shape(events) == [("start", ""), ("delta", "a"), ("complete", "a")]
    assert [event.sequence for event in events] == [1, 2, 3]


@pytest.mark.req("RT-33")
async def test_a_foreground_run_nobody_comes_back_to_is_cancelled_after_the_grace(tmp_path: Path) -> None:
    image = await killed(tmp_path, request("r1", background=False), survives_host=True)

    async def goes_on(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        ctx.caught_up.set()
        await ctx.stopped()
        raise RunCancelled

    events = await taken_up(image, Agent(goes_on, survives_host=True), foreground_grace_s=0.01)

    assert shape(events)[-1] == ("cancelled", "no reader for 0.01 s")


@pytest.mark.req("NB-15")
async def test_adopted_runs_hold_their_slots_and_give_them_back(tmp_path: Path) -> None:
    image = await killed(tmp_path, request("r1"), request("r2"), survives_host=True)
    gate = Gate()

    async def goes_on(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        ctx.caught_up.set()
        await gate(ctx, spec, sink)

    async with open_host(image, Agent(goes_on, survives_host=True), max_concurrent_runs=1) as host:
        assert host.runs.capacity.in_use == 2
        gate.open.set()
        await until_settled(host)
        assert host.runs.capacity.in_use == 0


@pytest.mark.req("E-12")
async def test_the_same_request_after_a_restart_is_the_same_run(tmp_path: Path) -> None:
    image = await killed(tmp_path, request("r1"))
    provider = Agent(says("again"))

    async with open_host(image, provider) as host:
        assert words(await read_all(await host.runs.dispatch(request("r1")))) == "sdE"
    assert provider.executed == []


async def test_a_run_that_cannot_be_taken_up_harms_no_other(tmp_path: Path) -> None:
    image = await killed(tmp_path, request("r1"), request("r2"), begun=False)
    directory = run_directory(image, "r1")
    (directory / JOURNAL).unlink()
    (directory / JOURNAL).mkdir()  # nothing can be opened there

    async with open_host(image, Agent(says("hi"))) as host:
        async with asyncio.timeout(PATIENCE_S):
            assert words(await read_all(await host.runs.attach("r2"))) == "sdC"


async def test_recovering_twice_finds_nothing_more_to_do(tmp_path: Path) -> None:
    image = await killed(tmp_path, request("r1"))
    first = await taken_up(image, Agent(says("hi")))

    async with open_host(image, Agent(says("hi"))) as host:
        assert host.leftovers == []
        assert await read_all(await host.runs.attach("r1")) == first


async def test_a_kill_during_recovery_is_recovered_from(tmp_path: Path) -> None:
    """The interruption is in the journal, the index does not know it yet."""
    image = await killed(tmp_path, request("r1"))
    second = crash_image(image, tmp_path / "second")
    events = await taken_up(image, Agent(says("hi")))
    journal = Journal(run_directory(second, "r1"))
    journal.append([events[-1]])
    journal.close()

    assert await taken_up(second, Agent(says("hi"))) == events


async def test_answers_that_cannot_be_read_cost_neither_the_run_nor_a_slot(tmp_path: Path) -> None:
    image = await killed(tmp_path, request("r1"), survives_host=True)
    (run_directory(image, "r1") / ANSWERS).write_bytes(b"\xff\xfe\x00")

    events = await taken_up(image, Agent(says("on"), survives_host=True), max_concurrent_runs=1)

    assert events[-1].message == "on"


async def test_a_run_that_cannot_be_taken_up_holds_nothing(tmp_path: Path) -> None:
    image = await killed(tmp_path, request("r1", session_id="s1", session_mode="create_if_missing"), survives_host=True)
    (run_directory(image, "r1") / CANCEL_FILE).mkdir()  # reading it raises

    async with open_host(image, Agent(says("hi"), survives_host=True), max_concurrent_runs=1) as host:
        assert host.runs.capacity.in_use == 0
        reader = await host.runs.dispatch(request("r2", session_id="s1", session_mode="require_existing"))
        assert words(await read_all(reader)) == "sdC"


async def test_what_a_run_left_is_counted_though_its_host_died_before_it_could(tmp_path: Path) -> None:
    async with open_host(tmp_path / "before", Agent(says("hi"))) as host:
        await read_all(await host.runs.dispatch(request("r1")))
        await until_settled(host)
    change(tmp_path / "before", "UPDATE runs SET ended_ns=NULL, state='running', size_bytes=0")

    async with open_host(tmp_path / "before", Agent(says("hi"))):
        pass

    with index_rows(tmp_path / "before") as rows:
        ((size, ended),) = rows.execute("SELECT size_bytes, ended_ns FROM runs").fetchall()
    assert ended is not None
    assert size >= (run_directory(tmp_path / "before", "r1") / JOURNAL).stat().st_size
