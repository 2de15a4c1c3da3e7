from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.config import RuntimeConfig
from runtime.failure import CursorOutOfRange, NotFound
from runtime.keys import new_ulid
from runtime.records import EndedRun, RunState
from runtime.retention import keep_sweeping, sweep, to_trim
from runtime.types import RunRequest
from tests.support.hosts import PATIENCE_S, Agent, Gate, Host, open_host, read_all, says, until_settled, within, words

DAY_NS = 86400 * 1_000_000_000


def request(run_id: str, **fields: Any) -> RunRequest:
    return RunRequest(**({"target": "agent", "input": "hi", "run_id": run_id} | fields))


async def ended_run(host: Host, run_id: str, **fields: Any) -> int:
    """The time at which a run has ended."""
    events = await read_all(await host.runs.dispatch(request(run_id, **fields)))
    await until_settled(host)
    return events[-1].time_ns


def ended(name: str, ended_ns: int, size_bytes: int = 1) -> EndedRun:
    return EndedRun(ulid=name, run_id=name, ended_ns=ended_ns, size_bytes=size_bytes)


@pytest.mark.parametrize(
    ("bounds", "gone"),
    [
        ({}, []), ({"keep_runs_s": 10.0}, ["old"]), ({"keep_runs_count": 1}, ["mid", "old"]),
        ({"keep_runs_bytes": 150}, ["mid", "old"]), ({"keep_runs_count": 0}, ["new", "mid", "old"]),
    ],
)  # fmt: skip
def test_the_oldest_go_first_by_age_by_number_and_by_size(bounds: dict[str, Any], gone: list[str]) -> None:
    second = 1_000_000_000
    runs = [ended("new", 99 * second, 100), ended("mid", 95 * second, 100), ended("old", 80 * second, 100)]

    trimmed = to_trim(runs, RuntimeConfig(data_dir=Path("d"), **bounds), now_ns=100 * second)

    assert [run.ulid for run in trimmed] == gone


@pytest.mark.req("E-12")
async def test_an_old_run_leaves_a_tombstone_and_nothing_else(tmp_path: Path) -> None:
    async with open_host(tmp_path, Agent(says("hi"))) as host:
        ended_ns = await ended_run(host, "r1")

        assert (await sweep(host.runs, now_ns=ended_ns + 6 * DAY_NS)).runs == ()
        swept = await sweep(host.runs, now_ns=ended_ns + 8 * DAY_NS)

        assert [run.run_id for run in swept.runs] == ["r1"]
        assert swept.bytes > 0
        assert list((tmp_path / "runs").iterdir()) == []
        found = await host.runs.get("r1")
        assert (found.state, found.spec) == (RunState.COMPLETE, None)
        with pytest.raises(CursorOutOfRange):
            await host.runs.attach("r1")
        assert await host.runs.page() == []


async def test_a_dry_sweep_only_says_what_would_go(tmp_path: Path) -> None:
    async with open_host(tmp_path, Agent(says("hi"))) as host:
        ended_ns = await ended_run(host, "r1")

        swept = await sweep(host.runs, now_ns=ended_ns + 60 * DAY_NS, dry_run=True)

        assert [run.run_id for run in swept.runs] == ["r1"]
        assert words(await read_all(await host.runs.attach("r1"))) == "sdC"


async def test_a_tombstone_goes_after_its_time_and_the_id_is_free_again(tmp_path: Path) -> None:
    provider = Agent(says("hi"))
    async with open_host(tmp_path, provider) as host:
        buried_ns = await ended_run(host, "r1") + 8 * DAY_NS
        await sweep(host.runs, now_ns=buried_ns)
        await sweep(host.runs, now_ns=buried_ns + 29 * DAY_NS)
        with pytest.raises(CursorOutOfRange):
            await host.runs.dispatch(request("r1"))

        await sweep(host.runs, now_ns=buried_ns + 31 * DAY_NS)

        with pytest.raises(NotFound):
            await host.runs.get("r1")
        await ended_run(host, "r1")
    assert provider.executed == ["r1", "r1"]


async def test_a_live_run_is_never_let_go_of(tmp_path: Path) -> None:
    gate = Gate()
    async with open_host(tmp_path, Agent(gate), keep_runs_count=0) as host:
        reader = await host.runs.dispatch(request("r1"))
        await within(gate.reached.wait())
        accepted_ns = (await host.runs.get("r1")).accepted_ns

        await sweep(host.runs, now_ns=accepted_ns + 999 * DAY_NS)
        gate.open.set()

        assert words(await read_all(reader)) == "sC"


@pytest.mark.req("RT-08")
async def test_a_session_nobody_named_expires_with_its_workspace_and_a_named_one_stays(tmp_path: Path) -> None:
    async with open_host(tmp_path, Agent(says("hi"))) as host:
        await ended_run(host, "r1")
        ended_ns = await ended_run(host, "r2", session_id="s1", session_mode="create_if_missing")
        assert len(list((tmp_path / "sessions").iterdir())) == 2

        before = await sweep(host.runs, now_ns=ended_ns + 1800 * 1_000_000_000)
        after = await sweep(host.runs, now_ns=ended_ns + 3601 * 1_000_000_000)

        assert (before.sessions, after.sessions) == (0, 1)
        assert len(list((tmp_path / "sessions").iterdir())) == 1
        await ended_run(host, "r3", session_id="s1", session_mode="require_existing")


async def test_sweeping_goes_on_after_a_sweep_that_failed(tmp_path: Path) -> None:
    async with open_host(tmp_path, Agent(says("hi")), keep_runs_count=0) as host:
        await ended_run(host, "r1")
        await host.index.run(
            lambda c: c.execute("CREATE TRIGGER no BEFORE UPDATE ON runs BEGIN SELECT RAISE(ABORT, 'no'); END")
        )
        sweeping = asyncio.create_task(keep_sweeping(host.runs, every_s=0.001))
        await asyncio.sleep(0)
        await host.index.run(lambda c: c.execute("DROP TRIGGER no"))

        async with asyncio.timeout(PATIENCE_S):
            while (await host.runs.get("r1")).spec is not None:
                await asyncio.sleep(0.001)
        sweeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sweeping


async def test_a_directory_that_no_row_knows_goes_once_it_is_old(tmp_path: Path) -> None:
    async with open_host(tmp_path, Agent(says("hi"))) as host:
        await ended_run(host, "r1")
        known = set(host.runs.storage.run_keys())
        now_ns = 1_900_000_000 * 1_000_000_000
        old, young = new_ulid(now_ns // 1_000_000 - 7_200_000), new_ulid(now_ns // 1_000_000 - 60_000)
        for key in (old, young, "not-ours"):
            host.runs.storage.run_directory(key).mkdir()
        host.runs.config = replace(host.runs.config, keep_runs_s=1e9)

        await sweep(host.runs, now_ns=now_ns)

        assert set(host.runs.storage.run_keys()) == known | {young, "not-ours"}
