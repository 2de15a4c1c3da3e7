from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runtime import records
from runtime.emitter import Emitter, execute
from runtime.events import (
    Draft,
    EventType,
    Notice,
    RuntimeEvent,
    ToolCall,
    Usage,
    activity,
    complete,
    delta,
    error,
    reasoning_delta,
    start,
)
from runtime.failure import (
    CapacityExhausted,
    Conflict,
    CursorOutOfRange,
    Failure,
    FailureCode,
    FailureError,
    InvalidRequest,
    NotFound,
    RunCancelled,
    SessionBusy,
    SessionNotFound,
    TargetNotFound,
)
from runtime.index import IndexUnavailable
from runtime.journal import NAME as JOURNAL
from runtime.journal import peek_last
from runtime.provider import EventSink, RunContext
from runtime.records import RunState
from runtime.retention import sweep
from runtime.run import CANCEL_FILE, write_cancel
from runtime.runs import CancelReceipt, Draining
from runtime.storage import Storage
from runtime.types import Capabilities, ExecutionSpec, RunRequest, SessionMode, thaw
from tests.support.hosts import (
    PATIENCE_S,
    Agent,
    Gate,
    Host,
    ListWriter,
    index_rows,
    open_host,
    plays,
    read_all,
    read_one,
    says,
    shape,
    timeless,
    until_settled,
    within,
    words,
)

BROKEN = error(Failure(code=FailureCode.PROCESS_FAILED, message="exit 3"))


def request(**fields: Any) -> RunRequest:
    return RunRequest(**({"target": "agent", "input": "hi"} | fields))


def turn(session_id: str = "s1", mode: str = "create_if_missing", **fields: Any) -> RunRequest:
    return request(session_id=session_id, session_mode=mode, **fields)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


async def run_to_end(host: Host, what: RunRequest, **given: Any) -> list[RuntimeEvent]:
    return await read_all(await host.runs.dispatch(what, **given))


async def stored(host: Host) -> dict[str, int]:
    """How much the index and the folders hold, and what is taken."""
    counts = await host.index.run(
        lambda c: {t: c.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("runs", "sessions")}
    )
    return counts | {
        "directories": len(list((host.storage.root / "runs").iterdir())), "in use": host.runs.capacity.in_use,
        "live": len(host.runs.live),
    }  # fmt: skip


NOTHING = {"runs": 0, "sessions": 0, "directories": 0, "in use": 0, "live": 0}


# --- the same everywhere


@pytest.mark.req("RT-01", "RT-05", "RT-33")
@pytest.mark.parametrize("ending", [complete("ab", usage=Usage(output_tokens=2)), BROKEN, None])
async def test_a_bare_host_and_the_engine_give_the_same_events(data: Path, ending: Draft | None) -> None:
    script = plays(
        start(model="m"), reasoning_delta("hm", message_id="m1"), delta("a", message_id="m2", offset=5),
        activity(ToolCall(call_id="c", name="read", input_json="{}"), offset=5, index=1),
        delta("b", message_id="m2", offset=9), activity(Notice(code="n")), *([ending] if ending else []),
    )  # fmt: skip
    async with open_host(data, Agent(script)) as host:
        through = await run_to_end(host, turn(run_id="r1", background=True))
        spec = (await host.runs.get("r1")).spec

    assert spec is not None
    ctx, writer = RunContext(), ListWriter()
    await execute(Agent(script), ctx, spec, Emitter(ctx, spec, writer))
    assert timeless(through) == timeless(writer.events)


@pytest.mark.req("RT-05", "RT-18", "NB-20")
async def test_a_run_reaches_the_reader_whole(data: Path) -> None:
    """A profile without any unattended capability is executed as it is; nothing else is recorded of it."""
    async with open_host(data, Agent(says("hel", "lo"))) as host:
        events = await run_to_end(host, turn(run_id="r1"))
        await until_settled(host)
        record = await host.runs.get("r1")
        tables = await host.index.run(
            lambda c: {r[0] for r in c.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        )

    assert shape(events) == [("start", ""), ("delta", "hel"), ("delta", "lo"), ("complete", "hello")]
    assert {(e.run_id, e.session_id, e.background) for e in events} == {("r1", "s1", False)}
    assert (record.state, record.ended_ns, record.failure) == (RunState.COMPLETE, events[-1].time_ns, None)
    assert tables == {"meta", "runs", "sessions"}


# --- what the provider is given


async def spec_of(data: Path, what: RunRequest, **capabilities: Any) -> ExecutionSpec:
    given: list[ExecutionSpec] = []

    async def script(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        given.append(spec)

    async with open_host(data, Agent(script, **capabilities)) as host:
        await run_to_end(host, what)
    return given[0]


@pytest.mark.req("RT-06", "RT-07", "RT-33", "RT-34", "NB-03")
async def test_what_was_asked_for_reaches_the_provider_unmodified(data: Path, tmp_path: Path) -> None:
    policy = {"model": {"deep": [1, {"z": None, "a": [True, 2.5]}]}, "iop": {"silence_timeout_s": 9}}
    workspace = tmp_path / "w"
    workspace.mkdir()
    odd = f"{workspace}/../w/."

    spec = await spec_of(
        data,
        turn(
            run_id="r1", adapter="scripted", background=True, workspace=odd, policy=policy, timeout=timedelta(seconds=60),
            metadata={"k": "v"},
        ),
        policy_keys=frozenset({"model"}),
    )  # fmt: skip

    assert spec == ExecutionSpec(
        run_id="r1", adapter="scripted", target="agent", session_id="s1", session_mode=SessionMode.CREATE_IF_MISSING,
        background=True, workspace=odd, policy=policy, input="hi", timeout=timedelta(seconds=60), metadata={"k": "v"},
    )  # fmt: skip
    assert msgspec.json.encode(thaw(spec.policy)) == msgspec.json.encode(policy)


@pytest.mark.req("NB-03", "RT-08")
async def test_what_was_left_out_is_resolved_by_the_runtime(data: Path) -> None:
    spec = await spec_of(data, RunRequest(target="agent"))

    assert (spec.adapter, spec.session_mode, spec.timeout) == ("scripted", SessionMode.CREATE_IF_MISSING, None)
    assert spec.run_id and spec.session_id.startswith("anon-")
    assert Path(spec.workspace).is_dir()
    assert Path(spec.workspace).stat().st_mode & 0o777 == 0o700


async def test_a_session_has_one_private_workspace_and_another_has_another(data: Path) -> None:
    workspaces: list[str] = []

    async def script(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        workspaces.append(spec.workspace)

    async with open_host(data, Agent(script)) as host:
        for session_id in ("s1", "s1", "s2"):
            await run_to_end(host, turn(session_id))

    assert workspaces[0] == workspaces[1] != workspaces[2]


async def test_the_profiles_workspace_comes_before_the_private_one(data: Path, tmp_path: Path) -> None:
    assert (await spec_of(data, request(), default_workspace=str(tmp_path))).workspace == str(tmp_path)


@pytest.mark.parametrize(
    ("policy", "own_s", "expected"),
    [({}, None, 7.0), ({}, 5.0, 5.0), ({"iop": {"silence_timeout_s": 3}}, 5.0, 3.0)],
)
async def test_the_silence_bound_of_the_request_comes_first(
    data: Path, policy: dict[str, Any], own_s: float | None, expected: float
) -> None:
    found: list[float | None] = []

    async def script(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        found.append(ctx.silence_s)

    async with open_host(data, Agent(script, silence_timeout_s=own_s), silence_timeout_s=7.0) as host:
        await run_to_end(host, request(policy=policy))

    assert found == [expected]


async def test_runs_in_one_workspace_know_of_each_other(data: Path, tmp_path: Path) -> None:
    gate = Gate()
    async with open_host(data, Agent(gate)) as host:
        first = await host.runs.dispatch(request(run_id="r1", workspace=str(tmp_path)))
        second = await host.runs.dispatch(request(run_id="r2", workspace=str(tmp_path)))
        gate.open.set()
        await read_all(first)
        await read_all(second)

        assert [(await host.runs.get(r)).shared_with for r in ("r1", "r2")] == [(), ("r1",)]


# --- refused before anything happens


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"target": "unknown"}, "target_not_found", "'unknown' is not served here; served: scripted/agent"),
    ({"target": "Agent"}, "target_not_found", "'Agent'"),
    ({"target": ""}, "invalid_request", "target is empty"),
    ({"adapter": "cli"}, "target_not_found", "'cli/agent'"),
    ({"run_id": "../x"}, "invalid_request", "run_id '../x'"),
    ({"session_id": "a/b", "session_mode": "create_if_missing"}, "invalid_request", "session_id 'a/b'"),
    ({"session_id": "s"}, "invalid_request", "session_mode is not set"),
    ({"session_mode": "branch", "session_id": "s"}, "invalid_request", "session_mode 'branch' is unknown"),
    ({"session_mode": "require_existing", "session_id": "s"}, "session_not_found", "session 's' does not exist"),
    ({"timeout": timedelta(seconds=-1)}, "invalid_request", "timeout is -1.0 s"),
    ({"workspace": "here"}, "invalid_request", "workspace 'here' is not an absolute path"),
    ({"workspace": "/no/such/place"}, "invalid_request", "does not exist on this node"),
    ({"input": "x" * 2000}, "invalid_request", "input is 2000 bytes; the limit is 1000"),
    ({"policy": {"iop": {"x": 1}}}, "invalid_request", "policy.iop.x is unknown"),
    ({"policy": {"effort": 1}}, "invalid_request", "policy.effort is not understood by target 'agent'"),
    ({"metadata": {"k": 1}}, "invalid_request", "metadata 'k' must be a string"),
]


@pytest.mark.req("RT-04", "RT-07", "RT-09", "RT-10", "RT-31", "NB-03", "NB-16", "E-4")
@pytest.mark.parametrize(("fields", "code", "said"), REFUSED)
async def test_a_bad_request_leaves_no_trace(data: Path, fields: dict[str, Any], code: str, said: str) -> None:
    provider = Agent(says("hi"))
    async with open_host(data, provider, max_input_bytes=1000) as host:
        with pytest.raises(FailureError) as refusal:
            await host.runs.dispatch(request(**fields))

        assert (refusal.value.failure.code.value, refusal.value.failure.message.count(said)) == (code, 1)
        assert await stored(host) == NOTHING
    assert provider.executed == []


@pytest.mark.req("NB-03", "NB-15")
async def test_a_profile_with_a_missing_workspace_leaves_no_trace(data: Path) -> None:
    """Known only when the session is known; its row must not outlive the refusal."""
    provider = Agent(says("hi"), default_workspace="/no/such/place")
    async with open_host(data, provider) as host:
        refusals = await asyncio.gather(
            *(host.runs.dispatch(request(run_id="r1")) for _ in range(3)), return_exceptions=True
        )

        assert [type(refusal) for refusal in refusals] == [InvalidRequest] * 3
        with pytest.raises(NotFound):
            await host.runs.get("r1")
        assert await stored(host) == NOTHING
    assert provider.executed == []


@pytest.mark.req("NB-15")
@pytest.mark.parametrize("after", [-1, 1])
async def test_a_cursor_into_a_run_that_does_not_exist_yet_is_refused(data: Path, after: int) -> None:
    async with open_host(data, Agent(says("hi"))) as host:
        with pytest.raises((InvalidRequest, CursorOutOfRange)):
            await host.runs.dispatch(request(run_id="r1"), after=after)

        assert await stored(host) == NOTHING
        assert words(await run_to_end(host, request(run_id="r1"))) == "sdC"


@pytest.mark.req("RT-04")
async def test_a_target_that_its_provider_gave_up_meanwhile_is_refused(data: Path) -> None:
    provider = Agent(says("hi"), targets=("agent", "other"))
    async with open_host(data, provider) as host:
        provider._capabilities = Capabilities(targets=("other",))

        with pytest.raises(TargetNotFound, match="'agent' is no longer served"):
            await host.runs.dispatch(request())

        assert await stored(host) == NOTHING
    assert provider.executed == []


@pytest.mark.req("NB-15", "E-4")
async def test_an_index_that_takes_no_row_accepts_nothing(data: Path) -> None:
    provider = Agent(says("hi"))
    async with open_host(data, provider) as host:
        pages = await host.index.run(lambda c: c.execute("PRAGMA page_count").fetchone()[0])
        await host.index.run(lambda c: c.execute(f"PRAGMA max_page_count={pages}").fetchone())

        with pytest.raises(FailureError) as refusal:
            await host.runs.dispatch(request(input="x" * 1_000_000))

        await host.index.run(lambda c: c.execute("PRAGMA max_page_count=1000000").fetchone())
        assert refusal.value.failure.code is FailureCode.STORAGE_FULL
        assert await stored(host) == NOTHING
    assert provider.executed == []


async def test_a_disk_near_its_watermark_takes_no_new_runs(data: Path) -> None:
    async with open_host(data, Agent(says("hi")), disk_watermark_bytes=1 << 60) as host:
        with pytest.raises(FailureError) as refusal:
            await host.runs.dispatch(request())

    assert refusal.value.failure.code is FailureCode.STORAGE_FULL


@pytest.mark.req("E-4", "NB-16")
@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, "storage_full"), (errno.EROFS, "internal")])
async def test_a_directory_that_takes_no_run_refuses_it_in_words(
    data: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    def refuse(storage: Storage, ulid: str) -> None:
        raise OSError(number, os.strerror(number))

    async with open_host(data, Agent(says("hi"))) as host:
        with monkeypatch.context() as patched:
            patched.setattr(Storage, "make_run_directory", refuse)
            with pytest.raises(FailureError, match=f"takes no run: {os.strerror(number)}") as refusal:
                await host.runs.dispatch(request())

        assert refusal.value.failure.code.value == code
        assert await stored(host) == NOTHING


# --- durable first


@pytest.mark.req("E-19")
async def test_the_provider_begins_after_the_row_is_durable(data: Path) -> None:
    seen: list[tuple[str, str]] = []

    async def script(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        with index_rows(data) as rows:
            seen.extend((row["run_id"], row["state"]) for row in rows.execute("SELECT * FROM runs"))

    async with open_host(data, Agent(script)) as host:
        await run_to_end(host, request(run_id="r1"))

    assert seen == [("r1", "accepted")]


@pytest.mark.req("E-19", "NB-15")
async def test_whoever_sees_the_terminal_finds_it_stored_and_the_slot_free(data: Path) -> None:
    async with open_host(data, Agent(says("hi")), max_concurrent_runs=1) as host:
        reader = await host.runs.dispatch(turn(run_id="r1"))
        directory = host.runs.live["local", "r1"].directory
        events: list[RuntimeEvent] = []
        while not (events and events[-1].is_terminal):
            events += await read_one(reader)

        assert peek_last(directory / JOURNAL) == events[-1]
        assert host.runs.capacity.in_use == 0
        reader.close()


@pytest.mark.req("E-19", "BAN-18")
async def test_no_reader_sees_a_terminal_that_is_not_synced(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncing, let_on, sync = threading.Event(), threading.Event(), os.fdatasync

    def slow_sync(fd: int) -> None:
        syncing.set()
        let_on.wait(PATIENCE_S)
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", slow_sync)
    async with open_host(data, Agent(says("hi"))) as host:
        reader = await host.runs.dispatch(request(run_id="r1"))
        reading = asyncio.create_task(read_all(reader))
        assert await asyncio.to_thread(syncing.wait, PATIENCE_S)
        late = await host.runs.attach("r1")

        assert (words(await read_one(late)), reading.done()) == ("sd", False)
        assert (await host.runs.get("r1")).state is RunState.RUNNING
        let_on.set()
        assert words(await within(reading)) == "sdC"
        assert words(await read_all(late)) == "C"


@pytest.mark.req("E-19", "RT-20")
@pytest.mark.parametrize("is_background", [True, False])
async def test_a_caller_that_leaves_while_its_run_is_accepted_leaves_a_run(data: Path, is_background: bool) -> None:
    """The row may be durable already: it must not become a run that nobody executes."""
    let_on, blocked = threading.Event(), threading.Event()

    def hold(connection: sqlite3.Connection) -> None:
        blocked.set()
        let_on.wait(PATIENCE_S)

    gate = Gate(start())
    async with open_host(data, Agent(gate), foreground_grace_s=0.01) as host:
        dispatching = asyncio.create_task(host.runs.dispatch(request(run_id="r1", background=is_background)))
        while not host.runs.live:
            await asyncio.sleep(0)
        holding = asyncio.create_task(host.index.run(hold))
        dispatching.cancel()
        await asyncio.to_thread(blocked.wait, PATIENCE_S)
        let_on.set()
        with pytest.raises(asyncio.CancelledError):
            await within(dispatching)
        await holding
        if is_background:
            gate.open.set()

        await until_settled(host)
        assert (await host.runs.get("r1")).state is (RunState.COMPLETE if is_background else RunState.CANCELLED)


# --- the same run again


@pytest.mark.req("E-12")
async def test_the_same_request_again_attaches_to_the_same_run(data: Path) -> None:
    gate = Gate(start())
    provider = Agent(gate)
    async with open_host(data, provider) as host:
        readers = [await host.runs.dispatch(request(run_id="r1")) for _ in range(3)]
        gate.open.set()
        live = [await read_all(reader) for reader in readers]
        await until_settled(host)
        late = await run_to_end(host, request(run_id="r1"))

    assert live[0] == live[1] == live[2] == late
    assert provider.executed == ["r1"]


@pytest.mark.req("E-12", "NB-15")
async def test_of_many_equal_requests_at_once_one_is_executed(data: Path) -> None:
    provider = Agent(says("a", "b"))
    async with open_host(data, provider, max_concurrent_runs=1) as host:
        readers = await asyncio.gather(*(host.runs.dispatch(turn(run_id="r1")) for _ in range(20)))
        seen = [await read_all(reader) for reader in readers]

        assert all(events == seen[0] for events in seen)
        assert words(seen[0]) == "sddC"
        await until_settled(host)
        assert host.runs.capacity.in_use == 0
    assert provider.executed == ["r1"]


@pytest.mark.req("E-12")
async def test_a_duplicate_that_was_held_up_until_the_run_had_ended_attaches(data: Path) -> None:
    asked, let_on = asyncio.Event(), asyncio.Event()

    class Slow(Agent):
        questions = 0

        async def capabilities(self) -> Capabilities:
            self.questions += 1
            if self.questions == 2:  # the first is the registry's
                asked.set()
                await let_on.wait()
            return await super().capabilities()

    provider = Slow(says("hi"))
    async with open_host(data, provider) as host:
        held_up = asyncio.create_task(host.runs.dispatch(request(run_id="r1")))
        await within(asked.wait())
        first = await run_to_end(host, request(run_id="r1"))
        await until_settled(host)
        let_on.set()

        assert await read_all(await within(held_up)) == first
        assert await stored(host) == NOTHING | {"runs": 1, "sessions": 1, "directories": 1}
    assert provider.executed == ["r1"]


@pytest.mark.req("E-12")
@pytest.mark.parametrize("is_live", [True, False])
async def test_the_same_id_with_another_request_is_a_conflict(data: Path, is_live: bool) -> None:
    gate = Gate(start())
    provider = Agent(gate)
    async with open_host(data, provider) as host:
        reader = await host.runs.dispatch(request(run_id="r1"))
        if not is_live:
            gate.open.set()
            await read_all(reader)
            await until_settled(host)

        with pytest.raises(Conflict, match="'r1' exists with another request; use a new run_id"):
            await host.runs.dispatch(request(run_id="r1", input="other"))
        gate.open.set()
        assert words(await run_to_end(host, request(run_id="r1"))) == "sC"
    assert provider.executed == ["r1"]


@pytest.mark.req("E-12")
async def test_a_run_whose_id_the_host_made_can_be_asked_for_again_under_it(data: Path) -> None:
    provider = Agent(says("hi"))
    async with open_host(data, provider) as host:
        reader = await host.runs.dispatch(request())
        first = await read_all(reader)

        assert await run_to_end(host, request(run_id=reader.run_id)) == first
    assert len(provider.executed) == 1


@pytest.mark.req("E-12")
async def test_a_trimmed_run_answers_with_its_outcome_and_is_never_executed_again(data: Path) -> None:
    provider = Agent(plays(BROKEN))
    async with open_host(data, provider) as host:
        ended_ns = (await run_to_end(host, request(run_id="r1")))[-1].time_ns
        await until_settled(host)
        await sweep(host.runs, now_ns=ended_ns + 8 * 86400 * 1_000_000_000)

        for ask in (host.runs.dispatch(request(run_id="r1")), host.runs.attach("r1")):
            with pytest.raises(CursorOutOfRange) as refusal:
                await ask
            assert dict(refusal.value.failure.metadata) == {"run_id": "r1", "outcome": "error"}
        with pytest.raises(Conflict):
            await host.runs.dispatch(request(run_id="r1", input="other"))
    assert provider.executed == ["r1"]


async def test_another_principals_run_is_invisible(data: Path) -> None:
    gate = Gate(start())
    provider = Agent(gate)
    async with open_host(data, provider) as host:
        mine = await host.runs.dispatch(turn(run_id="r1"), principal="me")
        for ask in (
            host.runs.get("r1", principal="you"),
            host.runs.attach("r1", principal="you"),
            host.runs.cancel("r1", principal="you"),
        ):
            with pytest.raises(NotFound):
                await ask
        assert await host.runs.page(principal="you") == []
        yours = await host.runs.dispatch(turn(run_id="r1", input="other"), principal="you")
        gate.open.set()

        assert [words(await read_all(reader)) for reader in (mine, yours)] == ["sC", "sC"]
    assert provider.executed == ["r1", "r1"]


# --- slots


@pytest.mark.req("NB-15", "RT-12")
async def test_on_receiving_a_terminal_the_next_run_is_admitted_at_once(data: Path) -> None:
    """One slot and one session: whoever sees the terminal may dispatch, whatever the terminal was."""

    async def script(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        if spec.input == "cancelled":
            raise RunCancelled
        await sink.emit([complete("ok") if spec.input == "complete" else BROKEN])

    kinds = ("complete", "error", "cancelled")
    async with open_host(data, Agent(script, max_concurrency=1), max_concurrent_runs=1) as host:
        for n in range(200):
            reader = await host.runs.dispatch(turn(run_id=f"r{n}", input=kinds[n % 3]))
            last: list[RuntimeEvent] = []
            while not (last and last[-1].is_terminal):
                last = await read_one(reader)
            assert last[-1].type.value == kinds[n % 3]
            reader.close()


async def fails_in_the_middle(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
    await sink.emit([start()])
    raise RuntimeError("broke")


async def cancels_itself(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
    raise asyncio.CancelledError


async def outlives_its_time(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
    await ctx.stopped()
    raise TimeoutError


@pytest.mark.req("NB-15", "RT-12", "RT-17", "RT-35")
@pytest.mark.parametrize(
    ("script", "word"),
    [
        (says("a"), "sdC"), (plays(BROKEN), "sE"), (plays(), "sE"), (fails_in_the_middle, "sE"), (cancels_itself, "sX"),
        (outlives_its_time, "sE"), (plays(start(), Draft("nonsense")), "sE"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
async def test_every_end_frees_everything_exactly_once(data: Path, script: Any, word: str) -> None:
    provider = Agent(script)
    timeout = timedelta(seconds=0.02 if script is outlives_its_time else 60)
    async with open_host(data, provider, max_concurrent_runs=2) as host:
        held = host.runs.capacity.take(adapter="a", target="t", target_limit=0)  # a second release would free this one
        events = await run_to_end(host, turn(run_id="r1", timeout=timeout))
        await until_settled(host)

        assert words(events) == word
        assert (host.runs.capacity.in_use, host.runs.readers) == (1, 0)
        assert (await host.runs.get("r1")).state.is_terminal
        held.release()
        assert words(await run_to_end(host, turn(run_id="r2", mode="require_existing", timeout=timeout))) == word
    assert provider.closed == 1


@pytest.mark.req("E-4")
async def test_without_a_free_slot_a_run_is_refused_and_leaves_no_trace(data: Path) -> None:
    gate = Gate(start())
    async with open_host(data, Agent(gate), max_concurrent_runs=1) as host:
        reader = await host.runs.dispatch(turn("s1"))
        before = await stored(host)

        with pytest.raises(CapacityExhausted) as refusal:
            await host.runs.dispatch(turn("s2"))

        assert refusal.value.failure.retryable
        assert await stored(host) == before
        gate.open.set()
        await read_all(reader)
        assert words(await run_to_end(host, turn("s2"))) == "sC"  # its session was not left taken


async def test_with_a_queue_a_run_waits_and_begins_in_its_turn(data: Path) -> None:
    gate = Gate(start())
    provider = Agent(gate)
    async with open_host(data, provider, max_concurrent_runs=1, max_queued_runs=2) as host:
        readers = [await host.runs.dispatch(request(run_id=f"r{n}")) for n in range(3)]
        await within(gate.reached.wait())
        with pytest.raises(CapacityExhausted):
            await host.runs.dispatch(request(run_id="r3"))
        found = [await host.runs.get(f"r{n}") for n in range(3)]
        assert [(r.state.value, host.runs.queue_position(r)) for r in found] == [
            ("running", 0), ("accepted", 1), ("accepted", 2),
        ]  # fmt: skip

        gate.open.set()
        assert [words(await read_all(reader)) for reader in readers] == ["sC", "sC", "sC"]
    assert provider.executed == ["r0", "r1", "r2"]


@pytest.mark.req("RT-20")
async def test_a_run_cancelled_in_the_queue_is_never_executed(data: Path) -> None:
    gate = Gate(start())
    provider = Agent(gate)
    async with open_host(data, provider, max_concurrent_runs=1, max_queued_runs=1) as host:
        first = await host.runs.dispatch(request(run_id="r0"))
        second = await host.runs.dispatch(request(run_id="r1"))

        receipt = await within(host.runs.cancel("r1"))

        assert receipt == CancelReceipt(accepted=True, state=RunState.CANCELLED)
        assert words(await read_all(second)) == "sX"
        gate.open.set()
        assert words(await read_all(first)) == "sC"
        await until_settled(host)
        assert (host.runs.capacity.in_use, host.runs.capacity.waiting) == (0, 0)
    assert provider.executed == ["r0"]


async def test_nobody_waits_in_the_queue_for_ever(data: Path) -> None:
    provider = Agent(Gate(start()))
    async with open_host(data, provider, max_concurrent_runs=1, max_queued_runs=1, queue_timeout_s=0.01) as host:
        first = await host.runs.dispatch(request(run_id="r0"))
        events = await run_to_end(host, request(run_id="r1"))

        assert words(events) == "sE"
        assert events[-1].failure is not None
        assert (events[-1].failure.code, events[-1].failure.retryable) == ("capacity_exhausted", True)
        await host.runs.cancel("r0")
        await read_all(first)
    assert provider.executed == ["r0"]


async def test_more_slots_after_a_reload_let_the_queue_go_on(data: Path) -> None:
    gate = Gate(start())
    async with open_host(data, Agent(gate), max_concurrent_runs=1, max_queued_runs=1) as host:
        readers = [await host.runs.dispatch(request(run_id=f"r{n}")) for n in range(2)]

        host.runs.reconfigure(replace(host.runs.config, max_concurrent_runs=2))

        assert (await read_one(readers[1]))[0].type is EventType.START
        gate.open.set()
        assert words(await read_all(readers[0])) == "sC"
        readers[1].close()


async def test_a_run_whose_host_fails_between_slot_and_start_still_gets_its_terminal(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(ulid: str, deadline_boot_s: float | None) -> Any:
        raise IndexUnavailable("the run index cannot be written: disk I/O error")

    gate = Gate(start())
    provider = Agent(gate)
    async with open_host(data, provider, max_concurrent_runs=1, max_queued_runs=1) as host:
        first = await host.runs.dispatch(request(run_id="r0"))
        second = await host.runs.dispatch(request(run_id="r1", timeout=timedelta(seconds=60)))
        monkeypatch.setattr(records, "renew_deadline", refuse)
        gate.open.set()

        assert shape(await read_all(second))[1:] == [("error", "the run index cannot be written: disk I/O error")]
        await read_all(first)
        await until_settled(host)
        assert (await host.runs.get("r1")).state is RunState.ERROR
    assert provider.executed == ["r0"]


# --- sessions


@pytest.mark.req("RT-08", "RT-09", "RT-11", "BAN-17", "E-2")
async def test_the_native_id_is_in_its_slot_and_nowhere_else(data: Path) -> None:
    native, resumed = "native-conversation-4711", list[str | None]()

    async def script(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        resumed.append(ctx.session.native_id)
        await ctx.session.remember(native)
        await says("hi")(ctx, spec, sink)

    events: list[RuntimeEvent] = []
    async with open_host(data, Agent(script)) as host:
        events += await run_to_end(host, turn())
        events += await run_to_end(host, turn(mode="require_existing"))
        await until_settled(host)
        records = await host.runs.page()
    async with open_host(data, Agent(script)) as host:
        events += await run_to_end(host, turn(mode="require_existing"))

    assert resumed == [None, native, native]
    with index_rows(data) as rows:
        tables = [row["name"] for row in rows.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        places = {
            f"{table}.{name}"
            for table in tables
            for row in rows.execute(f"SELECT * FROM {table}")
            for name in row.keys()  # noqa: SIM118  # a row iterates over its values
            if native in str(row[name])
        }
    assert places == {"sessions.native_id"}
    files = [path for path in data.rglob("*") if path.is_file() and not path.name.startswith("index.sqlite3")]
    assert [path for path in files if native.encode() in path.read_bytes()] == []
    assert [path for path in data.rglob("*") if native in path.name] == []
    assert native not in msgspec.json.encode(events).decode() + repr(records)


@pytest.mark.req("RT-12", "RT-08")
async def test_of_two_turns_at_the_same_time_one_is_executed(data: Path) -> None:
    gate = Gate(start())
    provider = Agent(gate)
    async with open_host(data, provider) as host:
        both = await asyncio.gather(
            host.runs.dispatch(turn(run_id="r1")), host.runs.dispatch(turn(run_id="r2")), return_exceptions=True
        )
        busy = [found for found in both if isinstance(found, BaseException)]
        (reader,) = (found for found in both if not isinstance(found, BaseException))

        assert [type(refusal) for refusal in busy] == [SessionBusy]
        gate.open.set()
        await read_all(reader)
        assert words(await run_to_end(host, turn(run_id="r3"))) == "sC"
    assert len(provider.executed) == 2


@pytest.mark.req("RT-12")
async def test_turns_of_a_session_do_not_overlap(data: Path) -> None:
    """The next turn is accepted when the terminal is out, and begins when nothing of the one before is left."""
    inside = list[str]()

    async def script(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        inside.append(f"in {spec.run_id}")
        await sink.emit([complete("done")])
        for _ in range(20):  # what is left after the terminal
            await asyncio.sleep(0)
        inside.append(f"out {spec.run_id}")

    async with open_host(data, Agent(script)) as host:
        for run_id in ("r1", "r2"):
            await run_to_end(host, turn(run_id=run_id))
        await until_settled(host)

    assert inside == ["in r1", "out r1", "in r2", "out r2"]


@pytest.mark.req("RT-23", "E-5", "RT-19")
async def test_a_cancelled_run_leaves_its_session_resumable(data: Path) -> None:
    """Even the session that this very run made."""
    gate = Gate(start())

    async def script(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        if ctx.session.native_id is None:
            await ctx.session.remember("native-1")
            await gate(ctx, spec, sink)
        await sink.emit([complete(ctx.session.native_id or "")])

    async with open_host(data, Agent(script)) as host:
        reader = await host.runs.dispatch(turn(run_id="r1"))
        await within(gate.reached.wait())
        await within(host.runs.cancel("r1"))
        assert words(await read_all(reader)) == "sX"

        events = await run_to_end(host, turn(mode="require_existing"))

        assert shape(events) == [("start", ""), ("complete", "native-1")]


@pytest.mark.req("RT-09")
async def test_the_session_of_a_run_that_was_refused_does_not_exist(data: Path) -> None:
    async with open_host(data, Agent(Gate(start())), max_concurrent_runs=1) as host:
        reader = await host.runs.dispatch(turn("s1", run_id="r1"))
        with pytest.raises(CapacityExhausted):
            await host.runs.dispatch(turn("s2"))
        await host.runs.cancel("r1")
        await read_all(reader)

        with pytest.raises(SessionNotFound):
            await host.runs.dispatch(turn("s2", mode="require_existing"))


@pytest.mark.parametrize(
    "hostile",
    [
        "../../outside",
        "..",
        "-rf",
        "--dangerously-skip-permissions",
        "line1\nline2",
        "nul\0byte",
        "a" * 5000,
        "/absolute",
    ],
)
@pytest.mark.parametrize("name", ["session_id", "run_id"])
async def test_a_hostile_id_touches_no_file(data: Path, tmp_path: Path, hostile: str, name: str) -> None:
    async with open_host(data, Agent(says("hi"))) as host:
        before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))

        with pytest.raises(InvalidRequest) as refusal:
            await host.runs.dispatch(turn(**({"session_id": "s1"} | {name: hostile})))

        assert refusal.value.failure.metadata["field"] == name
        assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before


# --- readers


@pytest.mark.req("RT-33")
async def test_a_foreground_run_whose_reader_left_is_cancelled_after_the_grace(data: Path) -> None:
    async with open_host(data, Agent(Gate(start())), foreground_grace_s=0.01) as host:
        (await host.runs.dispatch(request(run_id="r1"))).close()
        await until_settled(host)

        events = await read_all(await host.runs.attach("r1"))
        assert shape(events) == [("start", ""), ("cancelled", "no reader for 0.01 s")]


@pytest.mark.req("RT-33")
async def test_a_background_run_goes_on_without_a_reader(data: Path) -> None:
    gate = Gate(start())
    async with open_host(data, Agent(gate), foreground_grace_s=0.0) as host:
        (await host.runs.dispatch(request(run_id="r1", background=True))).close()
        assert host.runs.live["local", "r1"]._grace is None  # nothing will end it
        await within(gate.reached.wait())
        gate.open.set()
        await until_settled(host)

        assert words(await read_all(await host.runs.attach("r1"))) == "sC"


@pytest.mark.req("RT-33")
async def test_a_reader_that_comes_back_within_the_grace_keeps_the_run(data: Path) -> None:
    gate = Gate(start())
    async with open_host(data, Agent(gate)) as host:
        first = await host.runs.dispatch(request(run_id="r1"))
        other = await host.runs.attach("r1")
        live = host.runs.live["local", "r1"]

        def is_patient() -> bool:
            return live._grace is None

        first.close()
        assert is_patient()  # the other is still here
        other.close()
        assert not is_patient()
        back = await host.runs.attach("r1")
        assert is_patient()

        gate.open.set()
        assert words(await read_all(back)) == "sC"


async def test_a_hundred_readers_that_left_cost_nothing(data: Path) -> None:
    gate = Gate(start(), delta("a", message_id="m"))
    async with open_host(data, Agent(gate)) as host:
        (await host.runs.dispatch(request(run_id="r1", background=True))).close()
        await within(gate.reached.wait())
        tasks = len(asyncio.all_tasks())
        for _ in range(100):
            with await host.runs.attach("r1") as reader:
                await read_one(reader)
                waiting = asyncio.create_task(reader.read())
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting

        assert (host.runs.readers, host.runs.live["local", "r1"].feed._waiters) == (0, [])
        assert len(asyncio.all_tasks()) <= tasks
        gate.open.set()
        assert words(await read_all(await host.runs.attach("r1"))) == "sdC"


async def test_two_readers_see_everything_and_a_late_one_the_tail(data: Path) -> None:
    gate = Gate(start(), delta("a", message_id="m"), after=says("b"))
    async with open_host(data, Agent(gate)) as host:
        one = await host.runs.dispatch(request(run_id="r1", background=True))
        other = await host.runs.attach("r1")
        await within(gate.reached.wait())
        first = await read_one(one)
        one.close()
        gate.open.set()
        whole = await read_all(other)
        await until_settled(host)

        assert words(whole) == "sddC"
        assert whole[: len(first)] == first
        assert await read_all(await host.runs.attach("r1", after=len(first))) == whole[len(first) :]
        assert await read_all(await host.runs.attach("r1")) == whole


@pytest.mark.req("E-4")
@pytest.mark.parametrize("is_live", [True, False])
async def test_cursors_at_and_beyond_the_edges(data: Path, is_live: bool) -> None:
    gate = Gate(start(), delta("a", message_id="m"))
    async with open_host(data, Agent(gate)) as host:
        reader = await host.runs.dispatch(request(run_id="r1"))
        await within(gate.reached.wait())
        last = 2
        if not is_live:
            gate.open.set()
            await read_all(reader)
            await until_settled(host)
            last = 3

        with pytest.raises(InvalidRequest):
            await host.runs.attach("r1", after=-1)
        for after in (last + 1, 10_000):
            with pytest.raises(CursorOutOfRange) as refusal:
                await host.runs.attach("r1", after=after)
            assert dict(refusal.value.failure.metadata) == {"first": "1", "last": str(last)}
        equal = await host.runs.attach("r1", after=last)
        waiting = asyncio.create_task(read_all(equal))
        await asyncio.sleep(0)
        assert waiting.done() is False or not is_live
        gate.open.set()

        assert words(await within(waiting)) == ("C" if is_live else "")


@pytest.mark.req("NB-19")
async def test_a_reader_that_stalls_slows_nobody_and_loses_nothing(data: Path) -> None:
    count = 5000

    async def firehose(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        for n in range(0, count, 50):
            await sink.emit([delta(f"{k:05};", message_id="m") for k in range(n, n + 50)])
            await asyncio.sleep(0)
        await sink.emit([complete("done")])

    expected = "".join(f"{k:05};" for k in range(count))
    async with open_host(data, Agent(firehose), ring_bytes=20_000) as host:
        stalled = await host.runs.dispatch(request(run_id="r1"))
        first = await read_one(stalled)
        fast = await read_all(await host.runs.attach("r1"))

        assert "".join(e.delta for e in fast) == expected
        feed = host.runs.live["local", "r1"].feed if host.runs.live else None
        assert feed is None or len(feed._ring) <= 100
        await until_settled(host)
        events = first + await read_all(stalled)
        assert "".join(e.delta for e in events) == expected
        assert (events[-1].type.value, events[-1].sequence) == ("complete", count + 2)
        assert [e.sequence for e in events] == sorted({e.sequence for e in events})


# --- cancel


@pytest.mark.req("RT-19", "RT-20", "E-5")
async def test_cancel_in_the_middle_ends_the_run_as_cancelled_once(data: Path) -> None:
    seen: list[object] = []

    async def script(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        await sink.emit([start(), delta("a", message_id="m")])
        seen.append(await ctx.stopped())
        assert ctx.directory is not None
        seen.append((ctx.directory / CANCEL_FILE).exists())  # durable before anything is signalled
        raise RunCancelled("gone")

    async with open_host(data, Agent(script)) as host:
        reader = await host.runs.dispatch(request(run_id="r1"))
        await read_one(reader)
        receipts = await within(asyncio.gather(*(host.runs.cancel("r1", reason="enough") for _ in range(3))))
        await until_settled(host)
        again = await within(host.runs.cancel("r1"))
        events = await read_all(await host.runs.attach("r1"))
        reader.close()

    assert receipts == [CancelReceipt(accepted=True, state=RunState.CANCELLED)] * 3
    assert again == CancelReceipt(accepted=False, state=RunState.CANCELLED)
    assert shape(events)[-1] == ("cancelled", "enough")
    assert words(events) == "sdX"
    assert len(seen) == 2 and seen[1] is True


@pytest.mark.req("RT-19")
@pytest.mark.parametrize("made", [RuntimeError("my own error"), TimeoutError(), None])
async def test_a_provider_that_makes_something_else_of_a_cancel_is_still_cancelled(
    data: Path, made: Exception | None
) -> None:
    async def script(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        await sink.emit([start()])
        await ctx.stopped()
        if made is not None:
            raise made
        await sink.emit([complete("finished all the same")])

    async with open_host(data, Agent(script)) as host:
        reader = await host.runs.dispatch(request(run_id="r1"))
        await read_one(reader)
        assert (await within(host.runs.cancel("r1"))).state is RunState.CANCELLED

        assert words(await read_all(reader)) == "X"


@pytest.mark.req("RT-20")
async def test_a_cancel_before_the_start_prevents_the_execution(data: Path) -> None:
    """Accepted, and waiting for what is left of the turn before it."""
    let_on = asyncio.Event()

    async def lingers(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        await sink.emit([complete("done")])
        await let_on.wait()

    provider = Agent(lingers)
    async with open_host(data, provider) as host:
        first = await host.runs.dispatch(turn(run_id="r1"))
        while not (await read_one(first))[-1].is_terminal:
            pass
        second = await host.runs.dispatch(turn(run_id="r2"))
        cancelling = asyncio.create_task(host.runs.cancel("r2"))
        await within(host.runs.live["local", "r2"].ctx.stopped())
        let_on.set()

        assert await within(cancelling) == CancelReceipt(accepted=True, state=RunState.CANCELLED)
        assert words(await read_all(second)) == "sX"
        first.close()
    assert provider.executed == ["r1"]


@pytest.mark.req("RT-20", "E-19")
async def test_a_cancel_whose_caller_leaves_meanwhile_is_a_cancel(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing, go_on = threading.Event(), threading.Event()

    def slow(directory: Path, reason: str) -> None:
        writing.set()
        assert go_on.wait(PATIENCE_S)
        write_cancel(directory, reason)

    monkeypatch.setattr("runtime.run.write_cancel", slow)
    async with open_host(data, Agent(Gate(start()))) as host:
        reader = await host.runs.dispatch(request(run_id="r1"))
        cancelling = asyncio.create_task(host.runs.cancel("r1"))
        await asyncio.to_thread(writing.wait, PATIENCE_S)

        cancelling.cancel()
        await asyncio.wait([cancelling])
        go_on.set()

        assert words(await read_all(reader)) == "sX"


@pytest.mark.req("RT-20")
async def test_a_cancel_after_the_terminal_changes_nothing(data: Path) -> None:
    async with open_host(data, Agent(says("hi"))) as host:
        reader = await host.runs.dispatch(request(run_id="r1"))
        events = await read_all(reader)
        receipts = [await host.runs.cancel("r1")]
        await until_settled(host)
        receipts.append(await host.runs.cancel("r1"))

        assert receipts == [CancelReceipt(accepted=False, state=RunState.COMPLETE)] * 2
        assert await read_all(await host.runs.attach("r1")) == events


@pytest.mark.req("RT-20", "E-4")
async def test_a_cancel_of_an_unknown_run_is_told_and_does_nothing(data: Path) -> None:
    async with open_host(data, Agent(says("hi"))) as host:
        with pytest.raises(NotFound, match="'r9' is not known here"):
            await host.runs.cancel("r9")

        assert await stored(host) == NOTHING


@pytest.mark.req("RT-20", "RT-19", "BAN-18")
async def test_a_late_cancel_does_not_hit_the_next_run_of_the_session(data: Path) -> None:
    gate = Gate(start())

    async def script(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        await (says("hi") if spec.run_id == "r1" else gate)(ctx, spec, sink)

    async with open_host(data, Agent(script)) as host:
        await run_to_end(host, turn(run_id="r1"))
        reader = await host.runs.dispatch(turn(run_id="r2"))
        await within(gate.reached.wait())

        receipts = [await host.runs.cancel("r1") for _ in range(2)]
        gate.open.set()

        assert receipts == [CancelReceipt(accepted=False, state=RunState.COMPLETE)] * 2
        assert words(await read_all(reader)) == "sC"


@pytest.mark.req("RT-15", "RT-20", "BAN-18", "E-1")
async def test_completion_and_cancel_in_the_same_instant_agree_on_one_end(data: Path) -> None:
    dice = random.Random(7)

    async def script(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        await asyncio.sleep(int(spec.input) / 1e6)
        await sink.emit([complete("done")])

    states = set()
    async with open_host(data, Agent(script)) as host:
        for n in range(80):
            reader = await host.runs.dispatch(request(run_id=f"r{n}", input=str(dice.randrange(40_000))))
            await asyncio.sleep(dice.randrange(20_000) / 1e6)
            receipt = await within(host.runs.cancel(f"r{n}"))
            events = await read_all(reader)
            now = (await host.runs.get(f"r{n}")).state
            await until_settled(host)

            later = (await host.runs.get(f"r{n}")).state
            assert words(events) in ("sC", "sX")
            assert {receipt.state, now, later} == {RunState(events[-1].type.value)}
            assert receipt.accepted is (later is RunState.CANCELLED)
            states.add(later)

    assert states == {RunState.COMPLETE, RunState.CANCELLED}


async def test_a_run_whose_directory_was_removed_can_still_be_cancelled(data: Path) -> None:
    gate = Gate(start())
    async with open_host(data, Agent(gate)) as host:
        reader = await host.runs.dispatch(request(run_id="r1"))
        await within(gate.reached.wait())
        host.storage.remove_run(host.runs.live["local", "r1"].record.ulid)

        assert (await within(host.runs.cancel("r1"))).accepted
        assert words(await read_all(reader)) == "sX"


async def test_a_run_whose_directory_was_removed_still_leaves(data: Path) -> None:
    """Its facts cannot be written any more; its outcome can."""

    async def talks_too_long(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        await sink.emit([start()])
        assert ctx.directory is not None
        shutil.rmtree(ctx.directory)
        await sink.emit([complete("done"), complete("and again")])

    async with open_host(data, Agent(talks_too_long)) as host:
        assert words(await run_to_end(host, request(run_id="r1"))) == "sC"
        await until_settled(host)

        assert (await host.runs.get("r1")).state is RunState.COMPLETE


# --- deadline


@pytest.mark.req("RT-24", "E-15", "FAIL-07")
@pytest.mark.parametrize(
    ("timeout_s", "outer_s", "is_background"),
    [(0.02, None, False), (0.02, 60.0, False), (60.0, 0.02, False), (None, 0.02, False), (0.02, 0.001, True)],
)
async def test_the_tightest_bound_ends_the_run_as_deadline_exceeded(
    data: Path, timeout_s: float | None, outer_s: float | None, is_background: bool
) -> None:
    timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
    async with open_host(data, Agent(outlives_its_time)) as host:
        events = await run_to_end(
            host, request(run_id="r1", timeout=timeout, background=is_background), outer_deadline_s=outer_s
        )
        await until_settled(host)
        record = await host.runs.get("r1")

    assert words(events) == "sE"
    assert events[-1].failure is not None
    assert (events[-1].failure.code, events[-1].failure.retryable) == ("deadline_exceeded", True)
    assert record.state is RunState.ERROR
    assert record.failure == events[-1].failure.to_failure()


@pytest.mark.req("E-15")
async def test_the_callers_patience_does_not_bound_a_background_run(data: Path) -> None:
    gate = Gate(start())
    async with open_host(data, Agent(gate)) as host:
        reader = await host.runs.dispatch(request(run_id="r1", background=True), outer_deadline_s=0.001)
        await within(gate.reached.wait())

        assert (await host.runs.get("r1")).deadline_boot_s is None
        gate.open.set()
        assert words(await read_all(reader)) == "sC"


@pytest.mark.req("RT-24", "E-15", "RT-07")
@pytest.mark.parametrize("timeout", [None, timedelta(0)])
async def test_a_time_out_of_the_providers_own_is_not_the_run_deadline(data: Path, timeout: timedelta | None) -> None:
    async def script(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        assert ctx.deadline_boot_s is None
        raise TimeoutError("a socket")

    async with open_host(data, Agent(script)) as host:
        events = await run_to_end(host, request(timeout=timeout))

    assert events[-1].failure is not None
    assert events[-1].failure.code == "internal"


# --- look


async def test_runs_are_listed_newest_first_page_by_page_with_their_present_state(data: Path) -> None:
    gate = Gate(start())

    async def script(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        await (gate if spec.run_id == "r6" else says("hi"))(ctx, spec, sink)

    async with open_host(data, Agent(script)) as host:
        for n in range(7):
            reader = await host.runs.dispatch(request(run_id=f"r{n}"))
            if n < 6:
                await read_all(reader)
                async with asyncio.timeout(PATIENCE_S):
                    while host.runs.live:
                        await asyncio.sleep(0.001)
                await asyncio.sleep(0.002)  # so that no two are accepted in one millisecond
        await within(gate.reached.wait())
        await host.runs.dispatch(request(run_id="x"), principal="other")

        pages, before = [], ""
        while page := await host.runs.page(before=before, limit=3):
            pages.append([(record.run_id, record.state.value) for record in page])
            before = page[-1].ulid
        active = [record.run_id for record in await host.runs.page(active_only=True)]
        gate.open.set()
        await read_all(reader)

    done = "complete"
    assert pages == [
        [("r6", "running"), ("r5", done), ("r4", done)], [("r3", done), ("r2", done), ("r1", done)], [("r0", done)],
    ]  # fmt: skip
    assert active == ["r6"]


# --- leave


async def test_leaving_cancels_what_would_not_survive_and_says_so(data: Path) -> None:
    async with open_host(data, Agent(Gate(start()))) as host:
        reader = await host.runs.dispatch(request(run_id="r1"))
        await read_one(reader)
        await within(host.runs.close())

        assert shape(await read_all(reader)) == [("cancelled", "the node is shutting down")]
    async with open_host(data) as host:
        assert (await host.runs.get("r1")).state is RunState.CANCELLED


async def test_leaving_leaves_what_survives_to_the_next_host(data: Path) -> None:
    async with open_host(data, Agent(Gate(start()), survives_host=True)) as host:
        reader = await host.runs.dispatch(request(run_id="r1"))
        first = await read_one(reader)
        path = host.runs.live["local", "r1"].directory / JOURNAL
        await within(host.runs.close())

        assert await read_all(reader) == []
        assert peek_last(path) == first[-1]
    with index_rows(data) as rows:
        assert [tuple(row) for row in rows.execute("SELECT run_id, ended_ns FROM runs")] == [("r1", None)]


@pytest.mark.req("RT-33", "NB-12")
@pytest.mark.parametrize("leaving", [True, False])
async def test_readers_that_the_host_sends_away_abandon_no_run(data: Path, leaving: bool) -> None:
    async with open_host(data, Agent(Gate(start()), survives_host=True), foreground_grace_s=0) as host:
        reader = await host.runs.dispatch(request(run_id="r1"))
        await read_one(reader)
        ctx = host.runs.live["local", "r1"].ctx

        if leaving:
            host.runs.leave()
        reader.close()
        if not leaving:
            await within(ctx.stopped())
        await asyncio.sleep(0.05)

        assert (ctx.stop is None) is leaving


async def test_a_draining_host_takes_no_new_runs_and_serves_those_it_has(data: Path) -> None:
    gate = Gate(start())
    async with open_host(data, Agent(gate)) as host:
        reader = await host.runs.dispatch(request(run_id="r1"))
        host.runs.drain()

        with pytest.raises(Draining) as refusal:
            await host.runs.dispatch(request(run_id="r2"))
        again = await host.runs.dispatch(request(run_id="r1"))
        gate.open.set()

        assert (refusal.value.failure.code, refusal.value.failure.retryable) == (FailureCode.DRAINING, True)
        assert [words(await read_all(each)) for each in (reader, again)] == ["sC", "sC"]


@pytest.mark.req("NB-13")
async def test_a_run_keeps_its_provider_when_the_registry_is_replaced(data: Path) -> None:
    gate = Gate(start(), after=says("old"))
    old, new = Agent(gate), Agent(says("new"))
    async with open_host(data, old) as host:
        reader = await host.runs.dispatch(request(run_id="r1"))
        await within(gate.reached.wait())
        await host.registry.replace([("scripted", new)])
        assert shape(await run_to_end(host, request(run_id="r2")))[-1] == ("complete", "new")
        assert old.closed == 0

        gate.open.set()

        assert shape(await read_all(reader))[-1] == ("complete", "old")
    assert (old.executed, new.executed, old.closed, new.closed) == (["r1"], ["r2"], 1, 1)


# --- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("only root can mount a disk small enough to fill")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.req("RT-35", "E-4", "NB-15")
@pytest.mark.parametrize("at_once", [True, False])
async def test_on_a_full_disk_a_run_still_gets_its_terminal_for_now_and_later(small_disk: Path, at_once: bool) -> None:
    async def floods(ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        deltas = [delta("x" * 200_000, message_id="m") for _ in range(40)]
        if at_once:
            await sink.emit([*deltas, complete("the whole answer")])
        for draft in (*deltas, complete("the whole answer")):
            await sink.emit([draft])

    async with open_host(small_disk / "data", Agent(floods), disk_watermark_bytes=0) as host:
        live = await run_to_end(host, request(run_id="r1"))
        await until_settled(host)
        late = await read_all(await host.runs.attach("r1"))

        assert live[-1] == late[-1]
        assert live[-1].is_terminal
        if not at_once:
            assert live[-1].failure is not None
            assert (words(live)[-1], live[-1].failure.code) == ("E", "storage_full")
        assert (await host.runs.get("r1")).state.value == live[-1].type.value
        assert host.runs.capacity.in_use == 0
